"""/infill as llama.cpp's server answers it: its fields, cuts by indentation and time, and other files."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from toys.served import asking, characters, text_session

from longgraft.completion.prompt.layout import PromptLayout
from longgraft.completion.snippets import Cursor, Snippet
from longgraft.engine.session import Session
from longgraft.engine.step import Step
from longgraft.prefill.prefixes import Prefixes
from longgraft.serve.infill_stops import InfillStop

BEFORE = "def total(xs):\n    return sum(xs)\n\ndef mean(xs):\n"
EXTRA = [{"filename": "a.py", "text": "def one():\n    return 1\n"}, {"filename": "b.py", "text": "TWO = 2"}]
# Options that llama.vim sends beside its prompt, and the fields that it reads.
VIM: dict[str, Any] = {
    "id_slot": 0,
    "samplers": ["top_k", "top_p", "infill"],
    "top_k": 40,
    "top_p": 0.9,
    "stop": [],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1000,
    "response_fields": [
        "content",
        "timings/prompt_n",
        "timings/prompt_ms",
        "timings/prompt_per_token_ms",
        "timings/prompt_per_second",
        "timings/predicted_n",
        "timings/predicted_ms",
        "timings/predicted_per_token_ms",
        "timings/predicted_per_second",
        "truncated",
        "tokens_cached",
    ],
}


def filled(*bodies: dict[str, Any], session: Session | None = None, status: int = 200, **options: Any) -> list[Any]:
    """Sends these bodies to one server, and returns its responses in order."""

    async def ask(http):
        json_type = {"Content-Type": "application/json"}  # ASCII, so that half a character can be sent
        found = [await http.post("/infill", content=json.dumps(body), headers=json_type) for body in bodies]
        assert {one.status_code for one in found} == {status}, found[-1].text
        return found

    return asking(ask, session, **options)


def one(session: Session | None = None, **body: Any) -> dict[str, Any]:
    (response,) = filled({"input_prefix": BEFORE, "input_suffix": "\n"} | body, session=session)
    return response.json()


def laid(cursor: Cursor, *pieces: Snippet, new: int = 20) -> tuple[int, ...]:
    return PromptLayout(characters(), 96).lay_out(cursor, pieces, 512 - new - 1, "myproject").ids


def test_the_answer_is_the_sessions_answer_to_the_layouts_prompt():
    found = one(prompt="    return ", input_extra=EXTRA, n_predict=20, return_tokens=True)
    pieces = [Snippet("b.py", "TWO = 2"), Snippet("a.py", EXTRA[0]["text"])]
    ids = laid(Cursor("filename", BEFORE + "    return ", "\n"), *pieces)
    wanted = text_session().generate(list(ids), 20)
    # The blank before the cursor is left to the model, whose tokens begin with blanks.
    assert found["content"] == wanted.text.removeprefix(" ") and found["tokens"] == wanted.token_ids
    assert found["prompt"] == text_session().tokenizer.decode(ids)
    assert found["tokens_predicted"] == 20 and found["tokens_evaluated"] == len(ids) and found["stop"] is True
    assert found["stop_type"] == "limit" and not found["truncated"] and found["layout"] == "left-to-right"


def test_a_response_has_the_fields_of_llama_cpps_server():
    found = one(n_predict=12, temperature=0.7, top_k=5, seed=3, stop=["zzz"], n_indent=2)
    assert {
        "index",
        "content",
        "tokens",
        "id_slot",
        "stop",
        "model",
        "tokens_predicted",
        "tokens_evaluated",
        "generation_settings",
        "prompt",
        "has_new_line",
        "truncated",
        "stop_type",
        "stopping_word",
        "tokens_cached",
        "timings",
    } <= set(found)
    assert {
        "temperature": 0.7,
        "top_k": 5,
        "seed": 3,
        "stop": ["zzz"],
        "n_predict": 12,
        "n_indent": 2,
        "stream": False,
    }.items() <= found["generation_settings"].items()
    timings = found["timings"]
    assert timings["prompt_n"] == found["tokens_evaluated"] and timings["cache_n"] == 0 == found["tokens_cached"]
    assert timings["predicted_n"] == found["tokens_predicted"]
    assert timings["draft_n"] >= timings["draft_n_accepted"] >= 0 < timings["draft_n"]
    for name in ("prompt", "predicted"):
        assert timings[f"{name}_per_second"] == pytest.approx(timings[f"{name}_n"] / timings[f"{name}_ms"] * 1000)
        assert timings[f"{name}_per_token_ms"] == pytest.approx(timings[f"{name}_ms"] / timings[f"{name}_n"])


def test_llama_vim_gets_the_fields_that_it_reads():
    asked = VIM | {
        "input_prefix": BEFORE,
        "input_suffix": "x\n",
        "input_extra": EXTRA,
        "prompt": "    ",
        "n_indent": 4,
        "n_predict": 16,
    }
    (response,) = filled(asked)
    found = response.json()
    assert set(found) == set(VIM["response_fields"]) and found["timings/predicted_n"] > 0
    # It searches the text, which must be one line, before it reads the JSON.
    assert '"content":"' in response.text and "\n" not in response.text


def test_a_warm_up_request_answers_nothing_and_is_not_read_again():
    session = text_session()
    session.engine.prefixes = Prefixes(2**24)
    extra = [{"filename": f"{n}.py", "text": f"def f{n}(x):\n    return x * {n}\n"} for n in range(9)]
    warm = {
        "input_prefix": "",
        "input_suffix": "",
        "input_extra": extra,
        "prompt": "",
        "n_predict": 0,
        "temperature": 0.0,
        "samplers": [],
        "t_max_predict_ms": 1,
        "response_fields": [""],
    }
    full = warm | {"response_fields": None, "return_tokens": True}
    after = {"input_prefix": BEFORE, "input_suffix": "", "input_extra": extra, "n_predict": 6}
    warmed, again, answer = (response.json() for response in filled(warm, full, after, session=session))
    assert warmed == {}
    assert again["content"] == "" and again["tokens"] == [] and again["tokens_predicted"] == 0
    assert (
        answer["tokens_cached"] >= 128
        and answer["timings"]["prompt_n"] == answer["tokens_evaluated"] - answer["tokens_cached"]
    )
    (cold,) = filled(after)
    assert answer["content"] == cold.json()["content"]


def test_the_pieces_of_the_last_prompt_keep_their_places():
    first, second = [{"filename": f"{name}.py", "text": f"def {name}(): ...\n"} for name in ("one", "two")]
    body = {"input_prefix": BEFORE, "input_suffix": "\n", "n_predict": 1}
    prompts = [
        response.json()["prompt"]
        for response in filled(body | {"input_extra": [first, second]}, body | {"input_extra": [second, first]})
    ]
    assert prompts[0] == prompts[1] and prompts[0].index("def one") < prompts[0].index("def two")


def test_text_that_does_not_fit_is_reported_and_becomes_a_prediction():
    session = text_session(method="graft-x-text")
    extra = [{"filename": "old.py", "text": "x = 1\n" * 40}, {"filename": "new.py", "text": "y = 2\n" * 20}]
    opened, given = [], session.open
    session.open = lambda *args, **more: opened.append(args[0].predictions) or given(*args, **more)
    found = one(
        session, input_extra=extra, n_predict=8, input_suffix="def after():\n    return 7\n", prediction="said = 1"
    )
    assert found["truncated"] and "y = 2" in found["prompt"] and "x = 1" not in found["prompt"]
    told = [session.tokenizer.decode(list(text)) for text in opened[0]]
    assert any("x = 1" in text for text in told) and told[-1] == "said = 1"
    assert any(text.startswith("def after():") for text in told)  # this model fills in left to right


def test_new_lines_are_indented_enough_or_the_answer_ends_before_them():
    cut = InfillStop(indent=4)
    for text, kept in (
        ("a", None),
        ("a\n    b\n      c", None),
        ("a\n    b\n  c\nd", "a\n    b"),
        ("a\n\n    b", "a"),
        ("a\n\tb", "a"),
        ("a\n  ", None),
        ("\n    a\nb", "\n    a"),
        ("a\n", None),
    ):
        end = cut.end(text)
        assert (None if end is None else text[:end]) == kept
    assert [cut.certain(text) for text in ("ab", "ab\n", "ab\n   ", "ab\n    ", "a\n    b")] == [2, 2, 2, 7, 7]
    assert InfillStop().end("a\nb") is None and InfillStop().certain("a\n") == 2


def test_a_streamed_answer_equals_the_whole_one():
    body = {"input_prefix": BEFORE, "input_suffix": "", "n_predict": 40, "temperature": 1.0, "n_indent": 1}
    cut = 0
    for seed in (0, 1, 6, 11):
        whole, streamed = filled(body | {"seed": seed}, body | {"seed": seed, "stream": True})
        events = [json.loads(line.removeprefix("data: ")) for line in streamed.text.split("\n\n") if line]
        content = whole.json()["content"]
        assert "".join(event["content"] for event in events) == content
        assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
        assert all(line.startswith((" ", "\t")) for line in content.split("\n")[1:])
        assert events[-1]["tokens_evaluated"] == whole.json()["tokens_evaluated"]
        cut += events[-1]["tokens_predicted"] < 40
    assert cut >= 2  # otherwise this proves nothing


def test_an_answer_ends_before_a_line_with_too_little_indentation():
    asked = dict(n_predict=200, temperature=1.0, seed=1)
    whole = one(**asked)["content"]
    cut = one(n_indent=4, **asked)
    assert cut["content"] == whole[: InfillStop(indent=4).end(whole)] != whole and cut["tokens_predicted"] < 200


def test_an_answer_ends_with_a_line_when_its_time_is_up(monkeypatch):
    asked = dict(n_predict=200, temperature=1.0, seed=5)
    whole = one(**asked)["content"]
    line = whole[: whole.index("\n") + 1]
    found = one(t_max_predict_ms=0.001, prediction=whole, **asked)  # a step decodes more than the line
    assert found["content"] == line and len(line) < found["tokens_predicted"] < 200
    assert found["has_new_line"] and found["stop_type"] == "limit"
    clock = SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr("longgraft.serve.infill_stops.time", clock)
    reached = InfillStop(seconds=1.0).detector()
    for clock.now, text, ends in (
        (10.0, "", False),
        (20.0, "a\n", False),
        (20.9, "b\n", False),
        (21.1, "c", False),
        (21.2, "d\ne", True),
    ):
        assert reached(Step(tokens=(1,) if text else (), text=text)) == ends


def test_an_answer_whose_time_is_up_has_nothing_of_the_next_line():
    async def of(steps):
        for step in steps:
            yield step

    async def texts(stop, steps):
        return [step.text async for step in stop.trimmed(of(steps))]

    stop = InfillStop(seconds=0.0, held="  ")
    steps = [Step(tokens=(1,), text="  a"), Step(tokens=(1,), text="b\n    c\nd")]
    detect = stop.detector()
    assert [detect(step) for step in steps] == [False, True]
    assert "".join(asyncio.run(texts(stop, steps))) == "ab\n"


def test_a_file_with_other_line_ends_is_shown_and_answered_with_one_kind_of_them():
    asked = dict(input_suffix="\nx = 1\n", input_extra=EXTRA, n_predict=60, temperature=1.0, seed=3, stop=["zz\n"])
    plain = one(**asked)
    assert "\n" in plain["content"]
    for end in ("\r\n", "\r"):
        other = json.loads(json.dumps(asked | {"input_prefix": BEFORE}).replace("\\n", json.dumps(end)[1:-1]))
        found = one(**other)
        assert found["prompt"] == plain["prompt"]
        assert found["content"] == plain["content"].replace("\n", end)


def test_line_ends_that_the_model_writes_in_two_steps_are_one():
    async def steps():
        for text in ("a\r", "\nb", "\rc\r\n"):
            yield Step(tokens=(1,), text=text)

    async def texts(stop):
        return [step.text async for step in stop.trimmed(steps())]

    assert "".join(asyncio.run(texts(InfillStop(line_end="\r\n")))) == "a\r\nb\r\nc\r\n"
    assert "".join(asyncio.run(texts(InfillStop()))) == "a\r\nb\rc\r\n"


@pytest.mark.parametrize(
    ("held", "said", "kept"),
    [("  ", "  x", "x"), ("  ", " ", ""), ("  ", " x", "x"), ("", " x", " x"), ("\t", "  x", "  x")],
)
def test_blanks_before_the_cursor_are_not_repeated(held, said, kept):
    assert InfillStop(held=held).after_cursor(said) == kept


def test_a_stop_string_is_named():
    said = one(n_predict=30)["content"]
    word = said[5:8]
    found = one(n_predict=30, stop=[word, "unsaid"])
    assert found["content"] == said[: said.index(word)]
    assert found["stop_type"] == "word" and found["stopping_word"] == word


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input_suffix": ...}, "input_suffix"),
        ({"input_prefix": ...}, "input_prefix"),  # these are missing
        ({"input_prefix": 5}, "input_prefix"),
        ({"input_suffix": "\ud800"}, "input_suffix"),
        ({"input_extra": [{"text": "\udc00"}]}, "input_extra[0].text"),
        ({"input_extra": [{"text": ""}] * 257}, "input_extra"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
        ({"stop_token_ids": [96]}, "stop_token_ids"),
        ({"n_predict": -2}, "n_predict"),
        ({"n_indent": -1}, "n_indent"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"temperature": -1}, "temperature"),
        ({"prediction": "x" * 600}, "prediction"),
        ({"speculative": {"method": "pld"}}, "speculative"),
    ],
)
def test_a_mistake_is_reported_in_one_sentence_about_its_field(body, param):
    whole = {"input_prefix": BEFORE, "input_suffix": ""} | body
    (response,) = filled({name: value for name, value in whole.items() if value is not ...}, status=400)
    error = response.json()["error"]
    assert error["param"] == param and error["message"]


def test_infill_without_a_tokenizer_is_refused():
    session = Session(text_session().engine, None)
    (response,) = filled({"input_prefix": "a", "input_suffix": ""}, session=session, status=400)
    assert "without a tokenizer" in response.json()["error"]["message"]

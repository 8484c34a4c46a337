"""Suites: every layout of prompts gives the official prompt, and missing parts are named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from toys.served import characters

from longgraft.eval.prompts.suites import SUITES, Example, load_suite
from longgraft.files.data_files import read_recording

ROWS = Path(__file__).parents[3] / "shared" / "data"


def write(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def longbench(suite: str, identity: str = "a", **changes) -> dict:
    return {
        "input": "Why?",
        "context": "PM: Yes.\nUI: {no}.",
        "answers": ["Because."],
        "length": 4,
        "dataset": suite,
        "language": "en",
        "all_classes": None,
        "_id": identity,
    } | changes


@pytest.fixture
def rows() -> Path:
    """The real rows, which lie beside a developer's checkout."""
    if not ROWS.is_dir():
        pytest.skip("the real rows (shared/data) are not beside this checkout")
    return ROWS


class Letters:
    """A tokenizer of letters; with a template it marks the answer's start."""

    def __init__(self, chat_template: str | None = None) -> None:
        self.chat_template = chat_template

    def __call__(self, text: str) -> dict:
        return {"input_ids": [ord(letter) for letter in text]}

    def apply_chat_template(self, messages, tokenize, add_generation_prompt, return_dict) -> dict:
        assert tokenize and add_generation_prompt and return_dict and messages[0]["role"] == "user"
        return {"input_ids": [1, *self(messages[0]["content"])["input_ids"], 2]}


# Prompts ------------------------------------------------------------------------------------------------------------


def test_a_row_is_put_into_the_official_prompt_and_only_its_context_may_be_cut(tmp_path):
    write(tmp_path / "qmsum.jsonl", longbench("qmsum"))
    (example,) = load_suite("qmsum", tmp_path)
    assert example.prompt().startswith("You are given a meeting transcript and a query")
    assert example.prompt().endswith("\n\nQuery: Why?\nAnswer:")
    assert example.body == "PM: Yes.\nUI: {no}." and example.prompt("x") == example.before + "x" + example.after
    assert (example.id, example.answers, example.chat, example.unit, example.max_new_tokens) == (
        "a",
        ("Because.",),
        True,
        "turn",
        512,
    )


def test_the_code_before_the_line_continues_the_text_of_the_other_files(tmp_path):
    write(tmp_path / "repobench-p.jsonl", longbench("repobench-p", context="a.py\nx = 1\n", input="import a\n"))
    (example,) = load_suite("repobench-p", tmp_path)
    assert example.body == "a.py\nx = 1\nimport a\n" and example.after == "Next line of code:\n"
    assert not example.chat and example.unit == "line" and example.max_new_tokens == 64


def test_prompts_and_lengths_of_a_folder_override_the_official_ones(tmp_path):
    write(tmp_path / "qmsum.jsonl", longbench("qmsum"))
    write(tmp_path / "narrativeqa.jsonl", longbench("narrativeqa"))
    prompts = {
        "qmsum": {"prompt": "Q {input} C {context}!", "max_gen": 7},
        "_source": "a note",
        "narrativeqa": {"prompt": "Story {context} {input}", "max_gen": 9},
    }
    (tmp_path / "longbench_prompts.json").write_text(json.dumps(prompts))
    (qmsum,) = load_suite("qmsum", tmp_path)
    assert qmsum.prompt() == "Q Why? C PM: Yes.\nUI: {no}.!" and qmsum.max_new_tokens == 7 and qmsum.unit == "turn"
    (story,) = load_suite("narrativeqa", tmp_path)
    assert story.prompt().startswith("Story PM: Yes.") and story.max_new_tokens == 9 and story.suite == "narrativeqa"
    (tmp_path / "longbench_prompts.json").write_text('{"qmsum": {"prompt": "no place"}}')
    with pytest.raises(ValueError, match=r"prompt of qmsum must contain \{context\}"):
        load_suite("qmsum", tmp_path)
    (tmp_path / "longbench_prompts.json").write_text('{"qmsum": {"text": ""}}')
    with pytest.raises(ValueError, match="must map suites to"):
        load_suite("qmsum", tmp_path)


def test_a_book_is_continued_and_not_asked_about(tmp_path):
    write(tmp_path / "pg19.jsonl", longbench("pg19", context="Call me Ishmael.", answers=[], input=""))
    (example,) = load_suite("pg19", tmp_path)
    assert example.prompt() == example.body == "Call me Ishmael." and not example.chat and example.answers == ()


def test_the_chat_template_is_used_for_prompts_other_than_code():
    talk, code = Example("s", "1", "a", "b", "c"), Example("s", "1", "a", "b", "c", chat=False)
    plain, chat = Letters(), Letters("template")
    assert talk.encode(chat) == [1, 97, 98, 99, 2] and talk.encode(chat, "") == [1, 97, 99, 2]
    assert talk.encode(plain) == code.encode(chat) == [97, 98, 99]


# Question sets and any JSONL file -----------------------------------------------------------------------------------


def test_question_sets_keep_their_turns_and_are_found_under_eagles_names(tmp_path):
    write(
        tmp_path / "eagle_mt_bench.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["One", "Two"], "reference": ["ref"]},
    )
    write(tmp_path / "eagle_sum.jsonl", {"question_id": 1, "category": "", "turns": ["Summarize: text"]})
    (example,) = load_suite("mt_bench", tmp_path)
    assert (example.id, example.before, example.body, example.follow_ups) == ("81", "One", "", ("Two",))
    assert example.answers == ("ref",) and example.suite == "mt_bench" and example.max_new_tokens == 1024
    assert load_suite("cnn_dm", tmp_path)[0].prompt() == "Summarize: text"


@pytest.mark.parametrize(
    ("row", "prompt", "body", "chat"),
    [
        ({"prompt": "Hi"}, "Hi", "", True),
        ({"prompt": ["Hi", "And?"]}, "Hi", "", True),
        ({"question": "Why?"}, "Why?", "", True),
        ({"instruction": "Add", "input": "1 2"}, "Add\n\n1 2", "", True),
        ({"text": "Once", "prompt": ""}, "Once", "Once", False),
        ({"context": "Long", "input": ""}, "Long", "Long", False),
        ({"context": "Long", "question": "Why?"}, "Long\n\nWhy?", "Long", True),
        (
            {
                "messages": [
                    {"role": "system", "content": "Be."},
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "Yo"},
                    {"role": "user", "content": "And?"},
                ]
            },
            "Be.\n\nHi",
            "",
            True,
        ),
    ],
)
def test_any_file_with_a_prompt_column_is_a_suite(tmp_path, row, prompt, body, chat):
    (example,) = load_suite(str(write(tmp_path / "mine.jsonl", row)))
    assert (example.prompt(), example.body, example.chat) == (prompt, body, chat)
    assert (example.suite, example.id) == ("mine", "mine-1")
    assert example.follow_ups == (("And?",) if "messages" in row or isinstance(row.get("prompt"), list) else ())


@pytest.mark.parametrize(
    "row",
    [
        {"before": "x = 1\n", "after": "x = 2\n", "instruction": "Set x to 2."},
        {
            "before": "x = 1\n",
            "after": "x = 2\n",
            "instruction_descriptive": "Set x to 2.",
            "instruction_lazy": "x is 2",
        },
        {"old_contents": "x = 1\n", "new_contents": "x = 2\n", "message": "Set x to 2."},
    ],
)
def test_a_row_with_a_file_before_and_after_is_an_edit(tmp_path, row):
    (example,) = load_suite(str(write(tmp_path / "mine.jsonl", row)))
    assert example.prompt().startswith("x = 1\n\n\nEdit this file: Set x to 2.\n") and example.chat and not example.body
    assert (example.prediction, example.continuations) == ("x = 1\n", {"true": "x = 2\n"})
    assert example.predicted(characters()) == characters()("x = 1\n")["input_ids"]
    plain = replace(example, prediction="")
    assert plain.predicted(characters()) == [] and plain.fingerprint("greedy") != example.fingerprint("greedy")


def test_a_longbench_row_keeps_its_prompt_in_a_file_of_any_name(tmp_path):
    path = write(tmp_path / "dump.jsonl", longbench("qmsum"), longbench("other", "b"))
    official, other = load_suite(str(path))
    assert official.suite == "qmsum" and official.prompt().endswith("Answer:")
    assert other.suite == "dump" and other.prompt().endswith("\n\nWhy?")


def test_line_separators_inside_a_text_do_not_split_a_row(tmp_path):
    (example,) = load_suite(str(write(tmp_path / "a.jsonl", {"prompt": "one\u2028two\x85three"})))
    assert example.prompt() == "one\u2028two\x85three"


# Recordings ---------------------------------------------------------------------------------------------------------


def test_recordings_are_named_after_their_model_and_cut_where_it_ran_away(tmp_path):
    write(tmp_path / "lcc.jsonl", longbench("lcc"), longbench("lcc", "b"))
    write(tmp_path / "meta.jsonl", {"_id": "a", "continuation": "true lines"}, {"_id": "b", "kind": "real"})
    write(
        tmp_path / "recorded.jsonl",
        {"_id": "b", "model": "phi-4", "continuation": "good[INST] bad", "runaway_at": 4},
        {"_id": "b", "model": "llama", "continuation": "whole", "runaway_at": None},
        {"_id": "elsewhere", "model": "llama", "continuation": "of another suite"},
    )
    extra = write(
        tmp_path / "ours.jsonl",
        {"_id": "a", "continuation": "ours"},
        {"_id": "a", "continuation": "theirs", "model": "qwen"},
    )
    first, second = load_suite("lcc", tmp_path, [extra])
    assert first.continuations == {"true": "true lines", "ours": "ours", "qwen": "theirs"}
    assert second.continuations == {"phi-4": "good", "llama": "whole"}
    assert load_suite("lcc", tmp_path)[0].continuations == {"true": "true lines"}


def test_each_turn_of_a_conversation_has_its_own_recording(tmp_path):
    path = write(tmp_path / "talk.jsonl", {"question_id": 81, "turns": ["One", "Two", "Three"]})
    said = write(tmp_path / "said.jsonl", *({"_id": name, "continuation": name} for name in ("81", "81#2", "81#3")))
    (example,) = load_suite(str(path), recorded=[said])
    turns = example.turns()
    assert [turn.recording for turn in turns] == [turn.id for turn in turns] == ["81", "81#2", "81#3"]


def test_a_rows_own_continuation_is_replayable(tmp_path):
    path = write(tmp_path / "a.jsonl", {"id": 7, "text": "x", "continuation": "y"})
    assert load_suite(str(path))[0].continuations == {"true": "y"}
    more = write(tmp_path / "r.jsonl", {"_id": 7, "model": "phi-4", "continuation": "z"})
    assert load_suite(str(path), recorded=[more])[0].continuations == {"true": "y", "phi-4": "z"}


@pytest.mark.parametrize(
    ("text", "found"),
    [("[5, 6, 7]", [5, 6, 7]), ("return x[1]", "return x[1]"), ("[not json", "[not json"), ("3", "3"), ('"a"', '"a"')],
)
def test_a_file_holds_text_or_one_list_of_ids(tmp_path, text, found):
    (tmp_path / "said").write_text(text)
    assert read_recording(tmp_path / "said") == found


@pytest.mark.parametrize("text", ["[1.5]", "[[1]]", '{"a": 1}', "[true]", "[-1]", "[]", '["a"]', "[" * 100_000])
def test_other_json_is_refused_and_not_replayed_as_text(tmp_path, text):
    (tmp_path / "said").write_text(text)
    with pytest.raises(ValueError, match=r"one JSON list of token ids|nested too deeply"):
        read_recording(tmp_path / "said")
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_recording(tmp_path / "absent")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"_id": "b", "said": "x"}, "column continuation is missing. Columns found: _id, said"),
        ({"continuation": "x"}, "no id"),
        ({"_id": "a", "continuation": [1, 2]}, "column continuation must be text; it is list"),
        ({"_id": "a", "continuation": "x", "runaway_at": "3"}, 'runaway_at must be a number of characters; it is "3"'),
        ({"_id": True, "continuation": "x"}, "_id must be text or a whole number; it is true"),
        ({"_id": 1.5, "continuation": "x"}, "_id must be text or a whole number; it is 1.5"),
    ],
)
def test_a_recorded_row_of_another_kind_is_named_with_its_line(tmp_path, row, message):
    path = write(tmp_path / "s.jsonl", {"_id": "a", "text": "words"})
    with pytest.raises(ValueError, match=r"r\.jsonl, line 2: ") as error:
        load_suite(str(path), recorded=[write(tmp_path / "r.jsonl", {"_id": "b", "continuation": "x"}, row)])
    assert message in str(error.value)


# Missing parts ------------------------------------------------------------------------------------------------------


def test_a_missing_column_names_the_file_the_line_and_the_columns(tmp_path):
    row = longbench("qmsum")
    write(tmp_path / "qmsum.jsonl", row, {name: row[name] for name in ("input", "_id")})
    with pytest.raises(ValueError, match=r"qmsum.jsonl, line 2: column context or text is missing.*input, _id"):
        load_suite("qmsum", tmp_path)
    path = write(tmp_path / "mine.jsonl", {"category": "x", "id": 3})
    with pytest.raises(ValueError, match=r"mine.jsonl, line 1: no prompt(?s:.*)Columns found: category, id"):
        load_suite(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": \n', "line 2 is not JSON"),
        ('["a"]\n', "1: one JSON object is needed; found list"),
        ("\n", "has no rows"),
        ('{"prompt": "a", "id": 1}\n\n{"prompt": "b", "id": 1}\n', "line 3: id '1' is that of"),
        ('{"prompt": 5}\n', "column prompt must be text; it is int"),
        ('{"turns": ["a", 3]}\n', "turns must be a list of"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}\n', "no user's turn"),
        ('{"messages": "a"}\n', "must be a list of {role, content}"),
        ('{"messages": ["a"]}\n', "message 1 is a str; a message such as"),
        ('{"text": "a\\udc00"}', "half a character"),
        ("[" * 100_000, "nested too deeply"),
        ('{"text": "a", "continuation": 3}', "column continuation must be text"),
    ],
)
def test_a_broken_file_names_its_line(tmp_path, text, message):
    path = tmp_path / "mine.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        load_suite(str(path))
    assert message in str(caught.value) and "mine.jsonl" in str(caught.value)


def test_a_missing_file_or_name_says_what_was_looked_for_and_what_to_give(tmp_path):
    write(tmp_path / "lcc.jsonl", longbench("lcc"))
    with pytest.raises(ValueError, match=r"looked for qmsum.jsonl, (?s:.*), qmsum.parquet; its JSONL files: lcc.jsonl"):
        load_suite("qmsum", tmp_path)
    with pytest.raises(ValueError, match=r"cannot be read: No such file.*Give the path of a JSONL file"):
        load_suite(str(tmp_path / "no.jsonl"))
    with pytest.raises(ValueError, match=r"data folder .*nowhere does not exist"):
        load_suite("qmsum", tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"'qmsun' is unknown. Known: qmsum, (?s:.*)path of a JSONL file"):
        load_suite("qmsun")


# The hub ------------------------------------------------------------------------------------------------------------


def hub(monkeypatch, answer):
    """Makes `datasets.load_dataset` return answer(*args, **kwargs), and returns the list of its calls."""
    calls = []

    def load_dataset(*args, **kwargs):
        calls.append((*args, kwargs))
        found = answer(*args, **kwargs)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("longgraft.eval.prompts.sources.hub_answers", lambda: True)
    return calls


def test_without_a_folder_a_suite_comes_from_the_hub(monkeypatch):
    calls = hub(monkeypatch, lambda *args, **kwargs: [longbench("qmsum"), longbench("qmsum", "b")])
    first, second = load_suite("qmsum")
    assert calls == [("THUDM/LongBench", "qmsum", {"split": "test"})]
    assert first.prompt().endswith("Query: Why?\nAnswer:") and second.id == "b"


def test_longbenchs_archive_is_read_where_its_script_is_refused(monkeypatch):
    calls = hub(
        monkeypatch,
        lambda name, *_, **__: (
            [longbench("lcc")]
            if name == "json"
            else RuntimeError("Dataset scripts are no longer supported, but found LongBench.py")
        ),
    )
    assert load_suite("lcc")[0].suite == "lcc"
    assert calls[1] == (
        "json",
        {"data_files": "zip://data/lcc.jsonl::hf://datasets/THUDM/LongBench/data.zip", "split": "train"},
    )


@pytest.mark.parametrize(
    ("name", "row", "prompt", "repository"),
    [
        (
            "humaneval",
            {"task_id": "HumanEval/0", "prompt": "def f():\n"},
            "Complete the code I provided.\ndef f():\n",
            "openai/openai_humaneval",
        ),
        ("gsm8k", {"question": "1+1?", "answer": "#### 2"}, "1+1?", "openai/gsm8k"),
        ("cnn_dm", {"article": "News.", "highlights": "h", "id": "x"}, "Summarize: News.", "abisee/cnn_dailymail"),
        ("pg19", {"short_book_title": "t", "text": "Once."}, "Once.", "emozilla/pg19"),
        (
            "speed_bench_throughput_8k",
            {"question_id": "q", "category": "c", "turns": ["Hi"]},
            "Hi",
            "nvidia/SPEED-Bench",
        ),
    ],
)
def test_columns_of_the_hub_are_read(monkeypatch, name, row, prompt, repository):
    calls = hub(monkeypatch, lambda *args, **kwargs: [row])
    assert load_suite(name)[0].prompt() == prompt and calls[0][0] == repository


@pytest.mark.parametrize("error", [ConnectionError("Couldn't reach the hub\nmore"), RuntimeError("no"), KeyError("x")])
def test_an_unreachable_hub_says_how_to_do_without(monkeypatch, error):
    hub(monkeypatch, lambda *args, **kwargs: error)
    with pytest.raises(ValueError) as caught:
        load_suite("qmsum")
    said = str(caught.value)
    assert "THUDM/LongBench, qmsum, split test" in said and type(error).__name__ in said and "more" not in said
    assert "(--data) that holds qmsum.jsonl" in said and "path of a JSONL file" in said


def test_without_a_network_the_hub_is_tried_once_and_in_silence(monkeypatch, capfd):
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    monkeypatch.setattr(constants, "ENDPOINT", "http://localhost:9")  # where nothing listens
    with pytest.raises(ValueError, match=r"qmsum, split test.: the hub does not answer, and this machine has no copy"):
        load_suite("qmsum")
    assert capfd.readouterr() == ("", "") and offline == constants.HF_HUB_OFFLINE


def test_rows_that_the_hub_withholds_or_lacks_are_refused(monkeypatch):
    hub(
        monkeypatch,
        lambda *args, **kwargs: [
            {"question_id": "q", "turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"]}
        ],
    )
    with pytest.raises(ValueError, match=r"row 1: SPEED-Bench has no text(?s:.*)prepare_data.py"):
        load_suite("speed_bench")
    with pytest.raises(ValueError, match=r"not on the hub. Download it from https://github.com/hemingkx/Spec-Bench"):
        load_suite("spec_bench")


# Real rows ----------------------------------------------------------------------------------------------------------


def test_every_suite_of_the_real_folder_loads(rows):
    found = {
        name: load_suite(name, rows)
        for name in SUITES
        if not name.startswith(("speed", "longbench_v2", "can_it_edit", "instruct_coder", "blazedit"))
    }
    assert all(len(examples) >= 36 for examples in found.values())
    assert all(example.continuations for name in ("lcc", "repobench-p") for example in found[name])
    assert {model for example in found["qmsum"] for model in example.continuations} >= {"phi-4", "turbo-16k-0613"}


def test_the_kinds_of_spec_bench_divide_its_rows(rows):
    kinds = [name for name in SUITES if name.startswith("spec_bench_")]
    apart = [example.id for kind in kinds for example in load_suite(kind, rows)]
    assert len(kinds) == 6 and sorted(apart) == sorted(example.id for example in load_suite("spec_bench", rows))


def test_the_built_in_prompts_are_the_official_ones(rows):
    official = json.loads((rows / "longbench_prompts.json").read_text())
    for name in ("qmsum", "gov_report", "multi_news", "lcc", "repobench-p"):
        assert (SUITES[name].template, SUITES[name].max_new_tokens) == (
            official[name]["prompt"],
            official[name]["max_gen"],
        )
        raw = json.loads((rows / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")[0])
        whole = official[name]["prompt"].format(context=raw["context"], input=raw["input"])
        assert load_suite(name, rows)[0].prompt() == whole

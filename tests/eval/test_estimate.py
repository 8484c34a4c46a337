"""`longgraft estimate` tells what a log would gain; its lines are read in every form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toys.commands import run

from longgraft.eval.replay.logs import LoggedAnswer, read_log

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Copy: a b c"}]
SAID = {"role": "assistant", "content": "a b c"}
PARTS = [{"type": "text", "text": "Copy:"}, {"type": "text", "text": "a b c"}]
CALL = {"function": {"name": "read", "arguments": '{"path": "a.py"}'}}


def logged(tmp_path: Path, *rows: object):
    """Returns the log of these rows, which are JSON unless they are texts."""
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return read_log(path)


def before(one: LoggedAnswer) -> list[dict[str, str]]:
    """Returns the messages before an answer."""
    return one.prompt[: one.end]


@pytest.mark.parametrize("key", ["answer", "completion", "response", "output"])
def test_a_prompt_has_its_answer_beside_it(tmp_path, key):
    found = logged(tmp_path, {"prompt": "a b", key: "c"}, {"id": 7, "prompt": [1, 2], key: [3, 4]})
    assert found.answers == [LoggedAnswer("line 1", "a b", "c"), LoggedAnswer("7", [1, 2], [3, 4])]


def test_each_answer_of_a_chat_follows_all_messages_before_it(tmp_path):
    more = {"role": "user", "content": "Again"}
    found = logged(tmp_path, {"messages": [*CHAT, SAID, more, SAID]})
    assert [(one.id, before(one), one.answer) for one in found.answers] == [
        ("line 1, message 3", CHAT, "a b c"),
        ("line 1, message 5", [*CHAT, SAID, more], "a b c"),
    ]


CHAT_RESPONSE = {"choices": [{"message": SAID}]}
RESPONSES_RESPONSE = {"output": [{"type": "message", "content": [{"type": "output_text", "text": "a b c"}]}]}
MESSAGES_RESPONSE = {"content": [{"type": "text", "text": "a b c"}]}


@pytest.mark.parametrize(
    ("request_body", "response"),
    [
        ({"messages": CHAT}, CHAT_RESPONSE),
        ({"system": "Be brief.", "messages": [{"role": "user", "content": "Copy: a b c"}]}, MESSAGES_RESPONSE),
        ({"instructions": "Be brief.", "input": "Copy: a b c"}, RESPONSES_RESPONSE),
        ({"instructions": "Be brief.", "input": [{"role": "user", "content": "Copy: a b c"}]}, RESPONSES_RESPONSE),
    ],
    ids=["chat", "messages", "responses", "items"],
)
def test_requests_of_all_apis_with_their_responses_are_the_same_prompt_and_answer(tmp_path, request_body, response):
    rows = (
        {"request": request_body, "response": response},
        {"body": request_body, "response": {"status_code": 200, "body": response}},
        {"request": json.dumps(request_body), "response": json.dumps(response)},
        {**request_body, "response": response},
    )
    found = logged(tmp_path, *rows)
    assert [(one.prompt, one.answer) for one in found.answers] == [(CHAT, "a b c")] * 4


def test_a_completion_of_a_request_is_its_text(tmp_path):
    found = logged(tmp_path, {"custom_id": "x", "body": {"prompt": "a b"}, "response": {"choices": [{"text": "c"}]}})
    assert found.answers == [LoggedAnswer("x", "a b", "c")]


def test_calls_and_their_results_are_text(tmp_path):
    result = {"role": "tool", "content": "x = 1"}
    found = logged(tmp_path, {"messages": [*CHAT, {**SAID, "content": None, "tool_calls": [CALL]}, result, SAID]})
    assert found.answers[0].answer == 'read\n{"path": "a.py"}'
    assert before(found.answers[1])[-1] == result


def test_the_tools_of_a_request_are_a_part_of_its_prompt(tmp_path):
    found = logged(tmp_path, {"request": {"messages": CHAT, "tools": [CALL]}, "response": CHAT_RESPONSE})
    assert before(found.answers[0]) == [{"role": "system", "content": json.dumps([CALL])}, *CHAT]


@pytest.mark.parametrize(("role", "known"), [("function", "tool"), ("human", "user"), ("developer", "system")])
def test_only_the_assistants_messages_are_answers(tmp_path, role, known):
    found = logged(tmp_path, {"messages": [*CHAT, {"role": role, "content": "x = 1"}, SAID]})
    (one,) = found.answers
    assert before(one)[-1] == {"role": known, "content": "x = 1"}


def test_the_chunks_of_a_stream_are_one_answer(tmp_path):
    chunks = [{"choices": [{"delta": {"role": "assistant", "content": text}}]} for text in ("a b", " c", "")]
    found = logged(tmp_path, {"request": {"messages": CHAT}, "response": chunks})
    assert found.answers[0].answer == "a b c"


def test_a_session_of_claude_code_is_one_conversation(tmp_path):
    found = logged(
        tmp_path,
        {"type": "summary", "summary": "A title"},
        {"type": "user", "sessionId": "s", "message": {"role": "user", "content": PARTS}},
        {
            "type": "assistant",
            "sessionId": "s",
            "message": {"role": "assistant", "content": [{"type": "tool_use", "name": "read", "input": {"path": "a"}}]},
        },
        {
            "type": "user",
            "sessionId": "s",
            "message": {"role": "user", "content": [{"type": "tool_result", "content": "x = 1"}]},
        },
        {"type": "assistant", "sessionId": "s", "message": SAID},
    )
    first, second = found.answers
    assert (first.id, before(first), first.answer) == (
        "line 3",
        [{"role": "user", "content": "Copy:\na b c"}],
        'read\n{"path": "a"}',
    )
    assert [message["content"] for message in before(second)] == ["Copy:\na b c", 'read\n{"path": "a"}', "x = 1"]
    assert second.answer == "a b c" and found.without == 3 and not found.problems


def test_a_session_of_codex_is_one_conversation(tmp_path):
    def item(**payload: object) -> dict[str, object]:
        return {"timestamp": "t", "type": "response_item", "payload": payload}

    found = logged(
        tmp_path,
        {"timestamp": "t", "type": "session_meta", "payload": {"id": "s"}},
        item(type="message", role="user", content=[{"type": "input_text", "text": "Copy: a b c"}]),
        {"timestamp": "t", "type": "event_msg", "payload": {"type": "token_count"}},
        item(type="function_call", name="shell", arguments='{"command": "ls"}', call_id="c"),
        item(type="function_call_output", call_id="c", output="a.py"),
        item(type="message", role="assistant", content=[{"type": "output_text", "text": "a b c"}]),
    )
    first, second = found.answers
    assert first.answer == 'shell\n{"command": "ls"}'
    assert [message["role"] for message in before(second)] == ["user", "assistant", "tool"]
    assert second.answer == "a b c"


def claude(session: str, role: str, text: str, **more: object) -> dict[str, object]:
    return {"type": role, "sessionId": session, "message": {"role": role, "content": text}, **more}


def test_sessions_and_subagents_in_one_file_are_apart(tmp_path):
    rows = [claude(name, role, f"{name} {role}") for name in "ab" for role in ("user", "assistant")]
    rows.insert(1, claude("a", "user", "of a subagent", isSidechain=True))
    found = logged(tmp_path, *rows)
    assert [[message["content"] for message in before(one)] for one in found.answers] == [["a user"], ["b user"]]


def test_a_summary_stands_for_the_conversation_before_it(tmp_path):
    compacted = {"type": "compacted", "payload": {"message": "In short: x."}}
    codex = [
        {"type": "response_item", "payload": {"type": "message", "role": role, "content": text}}
        for role, text in (("user", "A long text."), ("assistant", "Yes."))
    ]
    ends = (
        [claude("a", "user", "A long text."), claude("a", "user", "In short: x.", isCompactSummary=True)],
        [codex[0], compacted],
    )
    for rows, last in zip(ends, (claude("a", "assistant", "Yes."), codex[1]), strict=True):
        (one,) = logged(tmp_path, *rows, last).answers
        assert before(one) == [{"role": "user", "content": "In short: x."}]


def test_errors_of_the_api_are_no_answers(tmp_path):
    rows = claude("a", "user", "Hello."), claude("a", "assistant", "API Error: 529", isApiErrorMessage=True)
    found = logged(tmp_path, *rows, claude("a", "assistant", "Hello."))
    assert [one.answer for one in found.answers] == ["Hello."]


def test_older_sessions_of_codex_have_bare_items(tmp_path):
    header = {"id": "s", "timestamp": "t", "instructions": None}
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List."}]}
    call = {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls", "-l"]}}
    found = logged(tmp_path, header, user, call, {"record_type": "state"})
    assert found.answers[0].answer == "ls\n-l" and not found.problems


def test_bad_lines_are_named_and_the_others_count(tmp_path):
    bad = [
        "{",
        [1],
        {"prompt": "a"},
        {"colour": 1},
        {"messages": [{"role": "nobody", "content": "a"}]},
        {"prompt": [1, -1], "answer": "c"},
        json.dumps({"prompt": "a", "answer": "Z"}).replace("Z", "\udcff"),
    ]
    path = tmp_path / "log.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in (*bad, {"prompt": "a b", "answer": "c"})]
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    found = read_log(path)
    assert [one.id for one in found.answers] == ["line 8"]
    assert [problem[:6] for problem in found.problems] == [f"line {number}" for number in range(1, 8)]
    with pytest.raises(ValueError, match=r"holds no prompts with answers.*The first problem: line 1: found colour"):
        logged(tmp_path, {"colour": 1})


@pytest.mark.parametrize("response", [{"choices": [None]}, {"error": {"message": "busy"}}, None, {"choices": []}])
def test_a_response_without_an_answer_is_counted(tmp_path, response):
    found = logged(tmp_path, {"messages": CHAT, "response": response}, {"prompt": "a b", "answer": "c"})
    assert len(found.answers) == 1 and found.without == 1 and not found.problems


def test_answers_with_one_id_are_told_apart(tmp_path):
    found = logged(tmp_path, *[{"id": 0, "prompt": "a", "answer": "b"}] * 2, {"id": 1, "prompt": "a", "answer": "b"})
    assert [one.id for one in found.answers] == ["0 (1)", "0 (2)", "1"]


# The command ---------------------------------------------------------------------------------------------------------

TEXT = " ".join(f"word{n} means {n * n}." for n in range(60))


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "log.jsonl"
    rows = [{"id": f"copy {n}", "prompt": f"{TEXT}\nAgain: ", "answer": TEXT[n * 30 : 400 + n * 30]} for n in range(7)]
    rows.append({"id": "new", "prompt": "Hello.", "answer": "The quick brown fox jumps over the lazy dog again."})
    path.write_text("\n".join(map(json.dumps, rows)) + "\nnot JSON\n")
    return path


@pytest.fixture
def estimated(log, capsys, monkeypatch):
    """Returns what the command prints of the log with these options, on stdout and stderr."""

    def call(*options: object) -> tuple[str, str]:
        code, out, err = run(capsys, monkeypatch, "estimate", log, *options)
        assert code == 0, err
        return out, err

    return call


def test_the_command_tells_what_a_log_would_gain(estimated):
    out, err = estimated("--costs", "h100,zen5")
    assert "left out: line 9" in err
    assert "| all | 8 |" in out and "Times plain decoding on h100" in out
    assert "On these 8 answers graft-x-text would decode" in out
    assert "answers that gain nothing: " in out
    assert out.split("these gain least: ")[1].startswith("new (")
    assert "word1" not in out + err


def test_the_object_for_programs_has_each_answers_figures(estimated):
    found = json.loads(estimated("--json", "--methods", "suffix", "--costs", "h100")[0])
    assert [row["id"] for row in found["answers"]] == [*(f"copy {n}" for n in range(7)), "new"]
    first = found["answers"][0]["methods"]["suffix"]["h100"]
    assert first["tokens_per_step"] > 3 and first["speedup"] > 2 and found["answers"][0]["oracle"]["h100"] > 3
    assert found["answers"][0]["copied"] > 0.9 > found["answers"][-1]["copied"]
    assert found["left_out"] == 1 and found["long_enough"] == 8


def test_answers_that_are_too_short_or_cannot_be_encoded_are_told_of(estimated, log):
    rows = [{"id": "short", "prompt": TEXT, "answer": "Yes."}, {"id": "ids", "prompt": [10**7], "answer": TEXT}]
    log.write_text(log.read_text() + "\n".join(map(json.dumps, rows)))
    out, err = estimated("--costs", "h100")
    assert "1 more answers have fewer than 8 tokens" in out
    assert "left out: ids: The prompt has token ids from 10000000" in err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--methods", "graft-x"), "graft-x needs a head, whose drafts are not known to a log."),
        (("--methods", "token-recycling"), "token-recycling needs a model, so a log is not enough to replay it."),
        (("--explain", "copy 9"), "is named 'copy 9'. --json lists their names."),
        (("--explain", "copy 1", "--methods", "pld"), "pld decides nothing by costs. Give --methods graft-x-text."),
        (("--explain", "copy 1", "--plot", "x.svg"), "Leave --plot out."),
        (("--costs", "h200"), "No costs are named 'h200'"),
    ],
)
def test_a_wrong_option_is_refused_in_a_sentence(log, capsys, monkeypatch, options, sentence):
    code, _, err = run(capsys, monkeypatch, "estimate", log, *options)
    assert code == 2 and sentence in err


def test_the_steps_of_one_answer_are_explained(estimated):
    rows = json.loads(estimated("--explain", "copy 1", "--costs", "h100", "--json")[0])
    assert rows[0]["token"] == 1 and any(row["accepted"] > 5 for row in rows)
    table = estimated("--explain", "copy 1", "--costs", "h100")[0].splitlines()
    assert table[0].startswith("| token | known | its price |") and len(table) == len(rows) + 2


def test_a_long_log_is_sampled_the_same_way_each_time(estimated):
    first, again = (estimated("--answers", 3, "--costs", "h100")[0] for _ in range(2))
    assert "On a sample of 3 of 8 answers" in first
    assert first.split("Times plain")[0] == again.split("Times plain")[0]


def test_a_picture_is_drawn(estimated, tmp_path):
    pytest.importorskip("matplotlib")
    estimated("--plot", tmp_path / "gains.svg")
    assert "<svg" in (tmp_path / "gains.svg").read_text()

"""The benchmark of editors: its requests are those that the product and editors make."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from toys.completing import completing, toy

from benchmarks import editor_clients, editors
from benchmarks.cursors import asked_at
from benchmarks.editor_clients import Reply
from longgraft.completion.prompt.next_edit import NextEditLayout

LINES = [f"    value_{n} = compute({n}, {n + 1})" for n in range(30)]


@pytest.fixture
def repo(tmp_path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "main.py").write_text("def main():\n" + "\n".join(LINES) + "\n")
    (folder / "other.py").write_text("def compute(one, two):\n    return one + two\n" * 40)
    return folder


def test_zeds_request_has_the_prompt_of_a_next_edit(repo):
    asked = asked_at(repo, "", 0, 1)[0].typing().changed()
    others, sent = editor_clients.pieces(asked, "Zed", 200), []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        *_, current, _ = sent[0]["prompt"].split("<|file_sep|>")
        typed = asked.cursor.before.rpartition("\n")[2]
        rewritten = current.partition("\n")[2].replace(typed + "\n", typed + asked.truth + "\n")
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
        return httpx.Response(200, json={"choices": [{"text": rewritten}], "usage": usage})

    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://server") as client:
        found = editor_clients.zed(client, asked.cursor, others, 32)
    model, tokenizer = toy(True)
    laid = NextEditLayout(tokenizer, model.config.vocab_size).lay_out(asked.cursor, others[::-1])
    assert others and sent[0]["prompt"] == tokenizer.decode(laid.ids)
    assert (
        "value" in found.said and found.said.strip() == (asked.cursor.before.rpartition("\n")[2] + asked.truth).strip()
    )
    assert (found.prompt_tokens, found.read, found.new_tokens) == (10, 6, 5)


def test_pieces_of_other_files_fill_the_context_in_an_order_of_each_cursor(repo):
    for n in range(20):
        (repo / f"file{n}.py").write_text(f"VALUE_{n} = {n}\n" * 50)
    one, two = asked_at(repo, "", 0, 2)
    first, second = (editor_clients.pieces(asked, "Zed", 2000) for asked in (one, two))
    assert (
        first != second
        and first == editor_clients.pieces(one, "Zed", 2000)
        and editor_clients.pieces(one, "Zed", 0) == []
    )
    size = sum(len(piece.text) for piece in first)
    assert 5000 < size <= 2000 * editor_clients.PER_TOKEN and all(piece.path != one.cursor.path for piece in first)


def test_a_suggestion_that_was_asked_for_ahead_is_given_up_when_the_user_types_on(repo, monkeypatch):
    asked, calls = asked_at(repo, "", 0, 1)[0], []

    def ask(client, cursor, others, new):
        calls.append((client.timeout.read, cursor.before.rpartition("\n")[2].strip(), cursor.after))
        if client.timeout.read == 0.25:
            raise httpx.ReadTimeout("given up")
        return Reply("", 9, 1, 1, 0.5)

    monkeypatch.setitem(editors.CLIENTS, "line", ask)
    with httpx.Client(base_url="http://server", timeout=60) as client:
        rows = list(editors.Asking("server", "line", 8, leave=0.25).rows(client, asked))
    assert [row.state for row in rows] == ["cold", "typing", "left"]
    (_, _, after), (_, some, _), (_, ahead, behind), (_, more, _) = calls
    assert asked.truth.startswith(more) and more.startswith(some) and len(more) > len(some) > 0 and ahead == ""
    assert [seconds for seconds, *_ in calls] == [60, 60, 0.25, 60] and "\n" + behind == after


def test_a_recent_change_is_the_line_above_and_what_is_typed(repo):
    asked = asked_at(repo, "", 0, 1)[0].typing().changed()
    session = completing(fim=True)
    laid = NextEditLayout(session.tokenizer, session.target.vocab_size).lay_out(asked.cursor)
    original = session.tokenizer.decode(laid.ids).split("<|file_sep|>original/main.py\n")[1].split("<|file_sep|>")[0]
    above = asked.cursor.before.split("\n")[-2]
    assert above not in original and asked.cursor.before.split("\n")[-3] in original

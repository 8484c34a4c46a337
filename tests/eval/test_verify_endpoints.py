"""`longgraft verify --endpoints`: the comparison of two servers' completions."""

from __future__ import annotations

import io
import json
from contextlib import ExitStack

import pytest
from toys.commands import assert_before_loading, run
from toys.completion_servers import ToyServer, columns, rows, served
from toys.served import listening, text_session

from longgraft.eval.checks.completion_server import CompletionServer, read_reply, spelling

WORDS = (" to", " be", ",", " or")
OTHER = (" to", " be", " né", "!")


@pytest.fixture
def verify(capsys, monkeypatch, tmp_path):
    """Runs the command on two toys, and returns (exit status, report or lines, stderr)."""
    prompt = tmp_path / "prompt.jsonl"
    prompt.write_text('{"prompt": "once"}\n{"prompt": "twice"}\n')
    assert_before_loading(monkeypatch)

    def verified(*toys, words=("--json",)):
        with ExitStack() as stack:
            urls = [toy if isinstance(toy, str) else stack.enter_context(served(toy)) for toy in toys]
            code, out, err = run(
                capsys, monkeypatch, "verify", "--endpoints", *urls, "--prompts", prompt, "--count", 1, *words
            )
        return code, json.loads(out) if out and "--json" in words else out, err

    return verified


@pytest.mark.parametrize("first", [columns, rows])
@pytest.mark.parametrize("second", [columns, rows])
def test_first_difference_has_its_token_and_both_margins(verify, first, second):
    a = ToyServer(WORDS, 0.5, first)
    b = ToyServer(OTHER, 0.25, second)
    code, report, _ = verify(a, b)
    (row,) = report["rows"]
    found = row["first_difference"]
    assert code == 1 and row["verdict"] == "differs" and report["verdicts"] == {"differs": 1}
    assert (found["token"], found["character"], found["shown"]) == (2, 6, [",", " né"])
    assert found["margins"] == pytest.approx([0.5, 0.25])
    assert row["texts"] == ["".join(WORDS), "".join(OTHER)] and not row["seeded_equal"]


def test_equal_servers_pass_and_are_asked_five_times_each(verify):
    toys = ToyServer(WORDS, logprobs=columns), ToyServer(WORDS, logprobs=columns)
    words = ("--json", "--temperature", 0.7, "--seed", 3, "--max-new-tokens", 9, "--model-name", "m")
    code, report, err = verify(*toys, words=words)
    assert code == 0 and report["verdicts"] == {"equal": 1} and not report["notes"]
    assert report["rows"][0]["seeded_equal"] and "A, http://127.0.0.1" in err
    common = {"prompt": "once", "max_tokens": 9, "model": "m"}
    greedy = common | {"temperature": 0}
    seeded = common | {"temperature": 0.7, "seed": 3}
    for toy in toys:
        assert toy.asked == [greedy, greedy, greedy | {"logprobs": 5}, seeded, seeded]


def test_servers_that_do_not_equal_themselves_prove_nothing(verify):
    code, lines, _ = verify(ToyServer(WORDS, drifts=True), ToyServer(OTHER, drifts=True), words=())
    assert code == 0 and "greedy: 1 of 1 say nothing, because neither server answered twice the same" in lines
    assert "A equals itself: 0 of 1 greedy, 0 of 1 seeded" in lines and "B equals itself: 0 of 1 greedy" in lines


@pytest.mark.parametrize("place", [0, 1])
def test_one_server_that_does_not_equal_itself_varies(verify, place):
    toys = [ToyServer(WORDS, 0.5, columns), ToyServer(WORDS, drifts=True, last=(" or",))]
    code, report, _ = verify(*(toys if place else reversed(toys)))
    (row,) = report["rows"]
    assert code == 1 and row["verdict"] == "varies" and row["seeded_steady"][place] is False
    assert row["own_differences"][1 - place] is None and row["own_differences"][place]["shown"] == ["or", "2"]
    assert row["first_difference"]["token"] == 3 and row["first_difference"]["margins"][1 - place] == pytest.approx(0.5)


def test_missing_logprobs_are_said_and_texts_are_compared(verify):
    code, lines, _ = verify(ToyServer(WORDS), ToyServer(OTHER, 0.25, columns), words=())
    assert code == 1 and "A gives no log-probabilities, so margins are unknown" in lines
    assert "| no | token 2, character 6: `', or'` and `' né'` | - | 0.2500 | yes | yes | no |" in lines


def test_refused_fields_are_said_with_the_servers_words(verify):
    code, report, _ = verify(ToyServer(WORDS, refused=("seed",)), ToyServer(WORDS, refused=("logprobs",)))
    assert code == 0 and report["rows"][0]["seeded_equal"] is None
    assert "A refuses seed" in report["notes"][1] and "seed is not supported" in report["notes"][1]
    assert "B refuses logprobs" in report["notes"][2] and "logprobs is not supported" in report["notes"][2]


def test_small_margin_counts_as_rounding_if_asked(verify):
    toys = ToyServer(WORDS, 0.5, columns), ToyServer(OTHER, 0.25, columns)
    for tie, code, verdict in (("0.4", 1, "differs"), ("0.6", 0, "near tie")):
        found = verify(*toys, words=("--json", "--tie", tie))
        assert (found[0], found[1]["rows"][0]["verdict"]) == (code, verdict)


def test_answers_to_other_prompts_are_not_compared(verify):
    code, report, _ = verify(ToyServer(WORDS), ToyServer(OTHER, prompt_tokens=8))
    assert code == 0 and report["rows"][0]["verdict"] == "other prompt"


def test_answer_that_ends_earlier_differs_at_its_end(verify):
    code, lines, _ = verify(ToyServer(WORDS[:2], logprobs=rows), ToyServer(WORDS, 1.5, columns), words=())
    assert code == 1 and "token 2, character 6: its end and `','` | - | 1.5000 |" in lines


def test_answer_that_logprobs_change_has_no_margin(verify):
    def others(words, margin):
        return columns(["no", *words[1:]], margin)

    _, report, _ = verify(ToyServer(WORDS, logprobs=others), ToyServer(OTHER, 0.25, columns))
    assert report["rows"][0]["first_difference"]["margins"] == [None, pytest.approx(0.25)]


def test_rows_are_written_and_the_key_comes_from_the_environment(verify, monkeypatch, tmp_path):
    monkeypatch.setenv("TOY_KEY", "secret")
    toys = ToyServer(WORDS), ToyServer(WORDS)
    code, _, _ = verify(*toys, words=("--key-env", "TOY_KEY", "--out", tmp_path / "rows.jsonl", "--count", 2))
    written = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert code == 0 and [row["prompt"] for row in written] == [1, 2]
    assert set(toys[0].keys + toys[1].keys) == {"Bearer secret"}
    code, _, err = verify(*toys, words=("--key-env", "NO_SUCH_KEY"))
    assert code == 2 and "NO_SUCH_KEY of --key-env is not set" in err


def test_one_url_twice_waits_for_a_restart(verify, monkeypatch):
    toy = ToyServer(WORDS)
    with served(toy) as url:
        monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
        code, _, err = verify(url, url + "/v1")
        assert code == 0 and f"restart {url}/v1 with the other setting" in err and len(toy.asked) == 10
        code, _, err = verify(url, url)
        assert code == 2 and "Standard input ended before the restart" in err


@pytest.mark.parametrize(
    "urls, words, said",
    [
        (("localhost:1", "http://x"), (), "'localhost:1' is no URL of a server"),
        (("http://127.0.0.1:9", "http://127.0.0.1:9/x"), (), "127.0.0.1:9/v1/completions does not answer"),
        (
            ("http://x", "http://y"),
            ("--method", "ar", "--top-p", "0.5", "--level", "bits"),
            "--level, --method, --top-p",
        ),
        (("http://x", "http://y"), ("--tie", "-1"), "--tie is -1.0"),
        (("http://x", "http://y"), ("--threads", 1), "--endpoints goes without --threads"),
    ],
)
def test_wrong_endpoints_get_one_sentence(verify, urls, words, said):
    code, _, err = verify(*urls, words=words)
    assert code == 2 and said in err.splitlines()[-1]


def test_options_of_endpoints_are_refused_without_them(capsys, monkeypatch, tmp_path):
    (tmp_path / "p.txt").write_text("once")
    code, _, err = run(capsys, monkeypatch, "verify", "--prompts", tmp_path / "p.txt", "--tie", 0.1)
    assert code == 2 and "--tie was given without --endpoints" in err


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/", "/v1/completions"])
def test_url_may_end_in_v1(end):
    assert CompletionServer(f"http://host:1/base{end}").address == "http://host:1/base/v1/completions"


@pytest.mark.parametrize("body", [b"<html>", b'{"choices": []}', b'{"error": "no"}'])
def test_response_that_is_no_completion_is_refused(body):
    with pytest.raises(ValueError, match="http://x answered"):
        read_reply(body, "http://x")


def test_parts_of_characters_are_joined():
    assert spelling("bytes:\\xc3") + spelling("bytes:\\xa9") == "é".encode()
    assert spelling("bytes:") == b"bytes:" and spelling("\\x41") == b"\\x41"


def test_our_server_equals_itself_with_and_without_speculation(verify):
    with listening(text_session(method="graft")) as (one, _), listening(text_session(method="ar")) as (two, _):
        code, report, _ = verify(one, two, words=("--json", "--max-new-tokens", 24))
    (row,) = report["rows"]
    assert code == 0 and row["verdict"] == "equal" and row["seeded_equal"] and not report["notes"]

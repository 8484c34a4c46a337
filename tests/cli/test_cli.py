"""The command line on a toy pair in the real layout: answers, JSON, and one clear sentence for each mistake."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from dataclasses import replace

import pytest
import torch
from toys.commands import assert_before_loading, run
from toys.configurations import tiny
from toys.sessions import METHODS, toy_prompt
from transformers import CONFIG_MAPPING

from longgraft.acceptance.rules import Sampled
from longgraft.budget.cost_model import Costs
from longgraft.cli import generate
from longgraft.cli.prompts import GivenPrompt, PromptOptions
from longgraft.comparison import with_plain
from longgraft.eval.runs.plan import Reader
from longgraft.methods.find import CORE, zoo
from longgraft.methods.summaries import Summary, summaries
from longgraft.models.fetch import NotFetched
from longgraft.yarn_drafters.checkpoint import save_head
from longgraft.yarn_drafters.network import Eagle3Network, HeadConfig


def ask(pair, *more):
    return [
        "generate",
        "--model",
        pair / "target",
        "--drafter",
        pair / "head",
        "--prompt-file",
        pair / "prompt.txt",
        "--max-new-tokens",
        12,
        *more,
    ]


def test_json_prints_one_object_with_every_field(pair, cli):
    code, out, _ = cli(*ask(pair, "--json", "--compare"))
    answer = json.loads(out)
    assert code == 0 and answer["compare"]["identical"] is True
    assert len(answer["token_ids"]) == 12 and answer["text"].startswith(" w")
    assert set(answer["stats"]) == {
        "prompt_tokens",
        "reused_tokens",
        "new_tokens",
        "steps",
        "accepted_per_step",
        "mat",
        "tokens_per_step",
        "prefill_seconds",
        "decode_seconds",
        "decode_tokens_per_second",
        "accepted_by_origin",
        "stages",
        "kinds",
        "forwards",
        "by_probability",
        "by_match",
        "seconds_by_part",
        "peak_memory_bytes",
    }
    assert "logprobs" not in answer
    first = answer["token_ids"][0]
    other = json.loads(
        cli(*ask(pair, "--json", "--logprobs", 2, "--prompt-logprobs", 1, "--logit-bias", f"{first}=-1e9"))[1]
    )
    assert len(other["prompt_logprobs"]) == other["stats"]["prompt_tokens"] - 1
    assert other["token_ids"][0] != first and len(other["logprobs"]) == 12
    assert other["logprobs"][0]["token"] == other["token_ids"][0] and other["logprobs"][0]["top"][0][0] == first
    stats = answer["stats"]
    assert stats["new_tokens"] == 1 + sum(stats["accepted_per_step"]) + stats["steps"] == 12
    assert sum(stats["accepted_by_origin"].values()) == sum(stats["accepted_per_step"])
    assert sum(stats["kinds"].values()) == stats["steps"]


def test_a_saved_prefix_is_not_read_again(pair, cli, monkeypatch, tmp_path):
    path, models = tmp_path / "p", ["--model", pair / "target", "--drafter", pair / "head"]
    words = [f"w{i}" for i in toy_prompt(200)]
    (tmp_path / "text").write_text(" ".join(words[:160]))
    (tmp_path / "long").write_text(" ".join(words))
    for text in ([tmp_path / "text"], ["--prompt-file", tmp_path / "text"]):
        path.unlink(missing_ok=True)
        code, out, err = cli("prefill", *text, *models, "--method", "graft", "--save", path)
        assert (code, out) == (0, "") and f"{path}: 159 tokens, {path.stat().st_size:,} bytes, " in err
    asked = [
        "generate",
        *models,
        "--method",
        "graft",
        "--prompt-file",
        tmp_path / "long",
        "--max-new-tokens",
        8,
        "--json",
    ]
    known, cold = (json.loads(cli(*asked, *more)[1]) for more in (["--prefix", path], []))
    assert known["token_ids"] == cold["token_ids"]
    assert (known["stats"]["reused_tokens"], cold["stats"]["reused_tokens"]) == (158, 0)
    assert known["settings"]["prefix"] == [str(path)]
    assert f"prefix {path}: 159 tokens are known" in cli(*asked[:-1], "--prefix", path)[2]
    code, _, err = cli(*asked, "--prefix", tmp_path / "text")
    assert code == 2 and err.startswith(f"longgraft: Prefix {tmp_path / 'text'} cannot be read")
    assert_before_loading(monkeypatch)
    for text, save, said in (
        ([tmp_path / "text"], path, "exists already"),
        ([], tmp_path / "q", "Give one of"),
        ([tmp_path / "text", "--messages", "m"], tmp_path / "q", "Give one of"),
        ([tmp_path / "nowhere"], tmp_path / "q", "cannot be read"),
    ):
        code, _, err = cli("prefill", *text, *models, "--save", save)
        assert code == 2 and said in err and err.count("\n") == 1


def test_a_prediction_is_reported_and_changes_no_answer(pair, cli, tmp_path):
    ask_pld = ask(pair, "--json", "--method", "pld")
    answer = json.loads(cli(*ask_pld)[1])
    (tmp_path / "right").write_text(answer["text"])
    code, out, err = cli(*ask_pld, "--prediction", tmp_path / "right")
    told = json.loads(out)
    assert told["token_ids"] == answer["token_ids"] and "prediction" not in answer
    assert told["prediction"] == {"accepted_tokens": 12, "rejected_tokens": 0}
    assert told["stats"]["steps"] < answer["stats"]["steps"]
    _, _, err = cli(*ask(pair, "--prediction", tmp_path / "right"))
    assert "prediction: the answer repeats 12 of its 12 tokens" in err
    code, _, err = cli(*ask(pair, "--prediction", tmp_path / "absent"))
    assert code == 2 and "absent cannot be read" in err and err.count("\n") == 1


def test_an_answer_names_its_model_method_and_settings(pair, cli):
    _, out, _ = cli(*ask(pair, "--json", "--temperature", 1, "--seed", 5, "--budget", 8))
    answer = json.loads(out)
    assert (answer["model"], answer["method"], answer["seed"]) == (str(pair / "target"), "graft-x", 5)
    assert answer["finish_reason"] == "length"
    settings = answer["settings"]
    assert (settings["budget"], settings["dtype"], settings["temperature"], settings["max_new_tokens"]) == (
        8,
        "float32",
        1.0,
        12,
    )
    _, out, _ = cli("generate", "--model", pair / "target", "--prompt", "w1", "--json", "--max-new-tokens", 2)
    answer = json.loads(out)  # no head is known for this target, and the budget adapts
    assert answer["method"] == answer["settings"]["method"] == "graft-x-text" and answer["settings"]["budget"] is None
    _, out, _ = cli(*ask(pair, "--json", "--budget", "paper"))
    assert json.loads(out)["settings"]["budget"] == 60
    _, out, _ = cli(*ask(pair, "--json", "--method", "eagle3"))
    assert json.loads(out)["settings"]["budget"] == 16  # the default is smaller on a CPU


def test_an_answer_that_loops_is_no_measure_of_speed(pair, cli):
    code, out, err = cli(*ask(pair, "--json"))
    assert code == 0 and not json.loads(out)["loops"]
    assert "repeats itself" not in cli(*ask(pair))[2]
    token = json.loads(out)["token_ids"][0]
    err = cli(*ask(pair, "--compare", "--logit-bias", f"{token}=1e9"))[2]
    assert err.splitlines()[-1].startswith("the answer repeats itself: in a loop every guess is right")


def test_a_terminal_shows_the_answer_before_it_is_compared(pair, cli, monkeypatch):
    monkeypatch.setattr(generate, "print_report", lambda found: print("[report]"))
    monkeypatch.setattr(with_plain, "compare_with_plain", lambda *_: print("[compared]"))
    for more, terminal in (([], True), (["--stream"], False)):
        with monkeypatch.context() as patch:
            patch.setattr(sys.stdout, "isatty", lambda shown=terminal: shown)
            out = cli(*ask(pair, "--compare", *more))[1].splitlines()
        assert len(out[0].split()) == 12 and out[1:] == ["[compared]", "[report]"]


def test_steps_are_explained_where_the_method_chooses_what_they_spend(pair, cli):
    code, out, err = cli(*ask(pair, "--method", "graft-x-text", "--explain-steps", "--json"))
    assert code == 0, err
    steps = json.loads(out)["steps"]
    assert steps and sum(1 + step["accepted"] for step in steps) <= 11
    assert all(bool(step["refused"]) == (step["nodes"] == 0) for step in steps)
    assert "| token | known | its price |" in cli(*ask(pair, "--method", "graft-x-text", "--explain-steps"))[2]
    code, _, err = cli(*ask(pair, "--method", "graft-x-text", "--budget", "8", "--explain-steps"))
    assert code == 2 and "Choose graft-x or graft-x-text, and leave --budget out" in err


def test_an_answer_of_one_token_has_no_speed(pair, cli):
    said = cli(*ask(pair, "--compare", "--max-new-tokens", 1))[2]
    assert "its first token alone (stopped at --max-new-tokens), so it has no steps and no speed" in said
    assert "no speeds compare; identical answers" in said and "tokens/s" not in said and "times" not in said
    compared = json.loads(cli(*ask(pair, "--compare", "--max-new-tokens", 1, "--json"))[1])["compare"]
    assert compared["speedup"] is None


def test_the_embedded_model_replaces_one_that_cannot_be_fetched_only_if_requested(cli, capsys, monkeypatch):
    opened = []

    def open_session(pair, *_, **__):
        opened.append(pair.model)
        if pair.model:
            raise NotFetched("Model 'smollm2' could not be fetched: no index.")
        raise RuntimeError("loaded")

    monkeypatch.setattr(generate, "open_session", open_session)
    asked = ["generate", "--model", "smollm2", "--chat", "--prompt", "w1"]
    code, _, err = cli(*asked)
    assert code == 2 and err == (
        "longgraft: loading smollm2\nlonggraft: Model 'smollm2' could not be fetched: no index.\n"
    )
    with pytest.raises(RuntimeError, match="loaded"):
        cli(*asked, "--or-embedded")
    assert opened == ["smollm2", "smollm2", None] and "the embedded model answers instead" in capsys.readouterr().err
    chat = GivenPrompt("w1").as_chat().with_system("w0")
    assert (chat.as_text().prompt, GivenPrompt([1]).as_text().prompt) == ("w0\n\nw1", [1])


def test_each_of_many_prompts_gets_an_object_and_a_bad_one_stops_no_other(pair, cli, monkeypatch, tmp_path):
    rows = [{"prompt": "w1 w2 w3", "id": "a"}, {"prompt_ids": [1, 2, 10**9]}, {"prompt_ids": [1, 2, 3]}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    command = [
        "generate",
        "--model",
        pair / "target",
        "--drafter",
        pair / "head",
        "--prompts",
        tmp_path / "rows.jsonl",
        "--max-new-tokens",
        5,
    ]
    code, out, err = cli(*command)
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 1 and [answer["id"] for answer in answers] == ["a", "2", "3"] and "1 of 3 prompts" in err
    assert "knows 0 to" in answers[1]["error"] and answers[0]["token_ids"] == answers[2]["token_ids"]
    code, out, _ = cli(*command, "--out", tmp_path / "answers.jsonl")
    written = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert out == "" and [json.loads(line)["id"] for line in written] == ["a", "2", "3"]
    assert_before_loading(monkeypatch)
    code, _, err = cli(*command, "--out", tmp_path / "answers.jsonl")
    assert code == 2 and "exists already" in err


USER = {"role": "user", "content": "w1 w2\nw3"}
SYSTEM = {"role": "system", "content": "w9"}
FILES = {"prompt_file": ("a", "c")}


@pytest.mark.parametrize(
    ("options", "prompts"),
    [
        (FILES, ["w1 w2\nw3"]),
        ({"prompt_file": ("b", "a", "-")}, ["w3\nw1 w2\nw5"]),
        ({"prompt_file": ("a", "b"), "prompt": "w4"}, ["w1 w2\nw3\n\nw4"]),
        ({"prompt": "-"}, ["w5"]),
        ({"messages": "-"}, [[SYSTEM]]),
        ({"prompt_ids": "-"}, [[1, 2]]),
        ({"prompts": "-"}, ["w1"]),
        ({"prompts": "rows"}, ["w1 w2\nw3", [USER]]),
        (FILES | {"chat": True}, [[USER]]),
        (FILES | {"chat": True, "system": "w9"}, [[SYSTEM, USER]]),
        ({"prompt": "w1 w2\nw3", "chat": True}, [[USER]]),
        ({"messages": "m", "chat": True}, [[USER]]),
        ({"messages": "m", "system": "w9"}, [[SYSTEM, USER]]),
        ({"prompts": "rows", "chat": True, "system": "w9"}, [[SYSTEM, USER], [SYSTEM, USER]]),
    ],
)
def test_a_prompt_is_made_of_files_standard_input_messages_and_rows(monkeypatch, tmp_path, options, prompts):
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(map(json.dumps, [{"prompt": "w1 w2\nw3"}, {"messages": [USER]}]))
    for name, text in (("a", "w1 w2"), ("b", "w3\n"), ("c", "w3"), ("m", json.dumps([USER])), ("rows", rows)):
        (tmp_path / name).write_text(text)
    given = {"messages": json.dumps([SYSTEM]), "prompt_ids": "[1, 2]", "prompts": '{"prompt": "w1"}'}
    text = given.get(next(iter(options)), "w5")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert [one.prompt for one in PromptOptions(**options).read()] == prompts


def test_files_and_standard_input_are_given_by_flags_and_by_a_dash(pair, cli, monkeypatch, tmp_path):
    (tmp_path / "a").write_text("w1 w2")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"w5")))
    code, out, _ = cli(
        "generate",
        "--model",
        pair / "target",
        "--drafter",
        pair / "head",
        "--max-new-tokens",
        5,
        "--json",
        "--prompt-file",
        tmp_path / "a",
        "-",
    )
    assert (code, json.loads(out)["stats"]["prompt_tokens"]) == (0, 3)


@pytest.fixture(scope="module")
def chatty(pair, tmp_path_factory):
    """The toy target with a chat template."""
    folder = tmp_path_factory.mktemp("chatty") / "target"
    shutil.copytree(pair / "target", folder)
    (folder / "chat_template.jinja").write_text("w7 {% for m in messages %}{{ m.content }} {% endfor %}w8")
    return folder


@pytest.mark.slow
def test_a_chat_goes_through_the_models_template(pair, chatty, cli, tmp_path):
    (tmp_path / "messages.json").write_text(json.dumps([{"role": "user", "content": "w1 w2"}]))
    command = ["generate", "--model", chatty, "--drafter", pair / "head", "--json", "--max-new-tokens", 5]
    said = []
    for more in (
        ["--prompt", "w1 w2", "--chat"],
        ["--messages", tmp_path / "messages.json"],
        ["--prompt", "w7 w1 w2 w8"],
    ):
        code, out, err = cli(*command, *more)
        said.append((json.loads(out)["token_ids"], json.loads(out)["stats"]["prompt_tokens"], "add --chat" in err))
    assert said[0] == said[1] and said[0][:2] == said[2][:2] and [bare for *_, bare in said] == [False, False, True]
    code, _, err = cli(*ask(pair, "--chat"))
    assert code == 2 and "has no chat template" in err


def test_messages_that_the_template_refuses_are_reported(pair, chatty, cli, tmp_path):
    strict = tmp_path / "strict"
    shutil.copytree(chatty, strict)
    (strict / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}{{ m.content }} {% endfor %}"
    )
    code, out, err = cli(
        "generate", "--model", strict, "--drafter", pair / "head", "--prompt", "w1", "--chat", "--system", "w2"
    )
    assert (code, out) == (2, "") and "refuses these messages: System role not supported" in err


def test_a_dry_run_prints_a_configuration(pair, cli, monkeypatch, tmp_path):
    assert_before_loading(monkeypatch)
    code, out, _ = cli(*ask(pair, "--budget", 8, "--stop", "a, b", "--stop", "c", "--dry-run"))
    assert code == 0 and "budget = 8" in out
    (tmp_path / "run.toml").write_text(out)
    again = ["generate", "--prompt", "x", "--config", tmp_path / "run.toml", "--dry-run"]
    assert cli(*again)[1] == out
    assert "budget = 9" in cli(*again, "--budget", 9)[1]
    (tmp_path / "run.toml").write_text("budgt = 8")
    code, _, err = cli(*again)
    assert code == 2 and "run.toml sets 'budgt'" in err


def test_text_ids_streaming_and_methods_agree(pair, cli):
    texts = set()
    for more in (["--stream"], ["--method", "ar"], ["--budget", 8, "--chunk", 7]):
        code, out, err = cli(*ask(pair, *more))
        assert code == 0
        if more == ["--stream"]:  # statistics follow the answer
            assert "answer: 12 tokens (stopped at --max-new-tokens) in" in err and "MAT" in err
        texts.add(out.strip())
    code, out, _ = cli(
        "generate",
        "--model",
        pair / "target",
        "--drafter",
        pair / "head",
        "--prompt-ids",
        pair / "ids.json",
        "--max-new-tokens",
        12,
    )
    assert len(texts | {out.strip()}) == 1


def test_replay_drives_acceptance_from_text_and_from_ids(pair, cli, tmp_path):
    (tmp_path / "text").write_text("w5 w6 w7 w8")
    (tmp_path / "ids").write_text("[5, 6, 7, 8]")
    for name in ("text", "ids"):
        _, out, _ = cli(*ask(pair, "--json", "--replay", tmp_path / name))
        assert json.loads(out)["token_ids"] == [5, 6, 7, 8]


def test_a_stop_string_ends_the_text_before_it(pair, cli):
    _, out, _ = cli(*ask(pair, "--json", "--temperature", 1))
    words = json.loads(out)["text"].split()
    stop = next(w for w in words[3:] if words.index(w) >= 3)
    _, out, _ = cli(*ask(pair, "--json", "--temperature", 1, "--stop", f" {stop}"))
    answer = json.loads(out)
    assert answer["text"].split() == words[: words.index(stop)]
    assert len(answer["token_ids"]) == words.index(stop) + 1


@pytest.mark.parametrize(
    "change, said",
    [
        (["--method", "grafts"], "perhaps graft"),
        (["--budget", 0], "budget is 0"),
        (["--max-new-tokens", 600], "allows 512 positions"),
        (["--attention", "flash"], "cannot run here"),
        (["--model", "./absent/model"], "there is no such folder"),
        (["--drafter", "./absent"], "is not a folder"),
        (["--calibration", "absent"], "does not exist"),
        (["--drafter", "none", "--method", "eagle3"], "needs an EAGLE-3 drafter: no drafter was given"),
        (["--prompt-ids", "ids.json"], "Give one of"),
        (["--top-p", 2], "--top-p is 2.0; it must be a number from 0 to 1"),
        (["--top-k", "-2"], "--top-k is -2; it must be a whole number, -1 or more; 0 and -1 are all"),
        (["--draft-levels", 0], "--draft-levels is 0"),
    ],
)
def test_mistakes_get_one_sentence_and_status_two(pair, cli, change, said):
    code, out, err = cli(*ask(pair, *change))
    assert code == 2 and said in err and "Traceback" not in err and out == ""


def test_an_empty_prompt_and_broken_or_mismatched_heads_are_refused(pair, cli, tmp_path):
    (tmp_path / "empty").write_text("")
    assert "prompt is empty" in cli("generate", "--prompt-file", tmp_path / "empty")[2]
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_bytes((pair / "head/config.json").read_bytes())
    (broken / "model.safetensors").write_bytes((pair / "head/model.safetensors").read_bytes()[:900])
    code, _, err = cli(*ask(pair, "--drafter", broken))
    assert code == 2 and "cannot be read" in err
    other = tmp_path / "other"
    save_head(Eagle3Network(HeadConfig(48, 48, 48, 4, 2, 12, 64, 64, (1, 2, 3), 512)), other)
    code, _, err = cli(*ask(pair, "--drafter", other))
    assert code == 2 and "belongs to another target" in err


def test_running_out_of_memory_gives_one_sentence(pair, cli, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")

    monkeypatch.setattr("longgraft.engine.request.read_prompt", full)
    code, _, err = cli(*ask(pair))
    assert code == 2 and err.strip().splitlines()[-1].startswith("longgraft: Out of memory")


@pytest.mark.slow
def test_verify_doctor_and_calibrate_run_on_a_toy_pair(pair, cli, capsys, monkeypatch, tmp_path):
    common = ["--model", pair / "target", "--drafter", pair / "head"]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "\n".join(json.dumps({"prompt": " ".join(f"w{i}" for i in toy_prompt(40, s))}) for s in range(3))
    )
    code, out, _ = cli("verify", *common, "--prompts", prompts, "--max-new-tokens", 12)
    assert code == 0 and out.count("identical") == 3 and "level: exact" in out
    code, out, _ = cli("verify", *common, "--prompts", prompts, "--level", "bits", "--trees", 2)
    assert out.count(" 2 trees: ") == 3 and code == ("level: bits" not in out)
    code, out, _ = cli("doctor", *common, "--context", 300)
    assert code == 0 and ": fits" in out and "memory for 300 tokens" in out
    assert ", packed weights 0." in out
    _, smaller, _ = cli("doctor", *common, "--context", 300, "--weights", "int8", "--kv-dtype", "bfloat16")
    _, least, _ = cli("doctor", *common, "--context", 300, "--kv-dtype", "int8")
    cached, halved, bytes_ = (float(re.search(r"target cache ([\d.]+)", text)[1]) for text in (out, smaller, least))
    assert ", packed int8 weights 0." in smaller and cached == pytest.approx(2 * halved, abs=0.1)
    assert 0.2 * cached < bytes_ < 0.4 * cached
    with monkeypatch.context() as less:
        less.setattr("longgraft.eval.checks.doctor.packed_bytes", lambda *_: 2**60)
        code, out, _ = run(capsys, less, "doctor", *common, "--context", 300)
    assert code == 0 and "packed weights 0." not in out and "so torch multiplies" in out
    file = tmp_path / "calibration.safetensors"
    code, out, err = cli(
        "calibrate",
        *common,
        "--prompts",
        prompts,
        "--rounds",
        3,
        "--retrieved-depth",
        3,
        "--max-new-tokens",
        24,
        "--out",
        file,
    )
    assert code == 0 and file.stat().st_size < 10_000 and "calibrated" in err
    code, out, err = cli(*ask(pair, "--method", "graft", "--calibration", file, "--compare"))
    assert code == 0 and "identical answers" in err and "calibrated" in err


def test_costs_are_measured_printed_and_saved(pair, cli, monkeypatch, tmp_path):
    common = ["costs", "--model", pair / "target", "--prefixes", "32,64", "--seconds", 0.1, "--out", tmp_path / "costs"]
    code, out, _ = cli(*common, "--drafter", pair / "head")
    shown = [line.split(", ms")[0] for line in out.splitlines() if ", ms" in line]
    found = Costs.load(tmp_path / "costs")
    assert code == 0 and shown == ["passes", "levels", "feeds", "host"] and sorted(found.passes) == [32, 64]
    assert "tokens that a step must decode to gain, by its rows" in out and "rows that decode fastest" in out
    passes = next(line for line in out.splitlines() if line.startswith("64 tokens")).split()
    # The file has more digits than the table and is rounded separately.
    assert float(passes[-1]) == pytest.approx(1e3 * max(found.passes[64].items())[1], abs=0.006) and found.host > 0
    assert_before_loading(monkeypatch)
    assert "exists already" in cli(*common)[2]
    assert "--prefixes is [0]" in cli("costs", "--prefixes", 0)[2]


def test_calibrate_and_verify_report_failures_with_a_status(pair, cli, monkeypatch, tmp_path):
    common = ["--model", pair / "target", "--drafter", pair / "head", "--prompts", pair / "prompt.txt"]
    assert_before_loading(monkeypatch)
    code, _, err = cli("calibrate", *common, "--out", tmp_path)
    assert code == 2 and "exists already" in err
    code, _, err = cli("calibrate", *common, "--out", tmp_path / "no" / "file")
    assert code == 2 and "is no folder that you can write to" in err
    monkeypatch.undo()
    import longgraft.eval.checks.losslessness as module

    monkeypatch.setattr(
        module,
        "check",
        lambda *_: {"level": "none", "dtype": "float32", "weights": "float", "rows": [], "temperature": 0},
    )
    code, out, _ = cli("verify", *common, "--max-prompt-tokens", 40)
    assert code == 1 and "level: none" in out


def with_another_seed(verifier):
    """Draws with another seed, which keeps the target's distribution but not its tokens."""
    rule = verifier.rule
    return replace(verifier, rule=replace(rule, seed=9)) if isinstance(rule, Sampled) else verifier


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "promise, sampled, code, level, compared",
    [
        ("exact", True, 1, "level: none (1 of 1 diverge) (float32, temperature 1)", " 1 on"),
        ("exact", False, 0, "level: exact", "identical answers"),
        (
            "distribution",
            True,
            0,
            "level: distribution (its law, not its tokens; 1 of 1 diverge) (float32, temperature 1)",
            " 1 on (distribution: its law, not its tokens)",
        ),
        ("distribution", False, 0, "level: exact", "identical answers"),
        (
            "lossy",
            True,
            0,
            "level: lossy (it promises nothing; 1 of 1 diverge) (float32, temperature 1)",
            " 1 on (lossy: it promises nothing)",
        ),
        (
            "lossy",
            False,
            0,
            "level: lossy (it promises nothing; 0 of 1 diverge)",
            "identical answers (lossy: it promises nothing)",
        ),
    ],
)
def test_a_method_is_verified_and_compared_by_its_promise(
    pair, cli, monkeypatch, promise, sampled, code, level, compared
):
    monkeypatch.setitem(
        CORE, "odd", replace(METHODS["pld"], name="odd", promise=promise, verifies=lambda parts: with_another_seed)
    )
    monkeypatch.setitem(summaries()[0], "odd", Summary.of(CORE["odd"]))
    draw = ["--method", "odd", "--temperature", int(sampled)]
    verified = cli(
        "verify",
        "--model",
        pair / "target",
        "--prompts",
        pair / "prompt.txt",
        "--max-prompt-tokens",
        40,
        "--max-new-tokens",
        12,
        *draw,
    )
    assert (verified[0], level in verified[1]) == (code, True), verified[1]
    said = {
        "exact": "",
        "distribution": ", keeps the target's law where it samples",
        "lossy": ", LOSSY: need not say what the target would",
    }[promise]
    asked = cli(*ask(pair, *draw, "--compare"))
    assert asked[0] == 0 and f"method odd{said}, budget" in asked[2]
    compared_with = asked[2].rstrip().partition("without reading the prompt); ")[2]
    assert compared_with.removeprefix("answers differ from token") == compared
    assert json.loads(cli(*ask(pair, *draw, "--json"))[1])["promise"] == promise


def test_stop_token_ids_end_an_answer(pair, cli):
    whole = json.loads(cli(*ask(pair, "--json"))[1])["token_ids"]
    stop = whole[3]
    found = json.loads(cli(*ask(pair, "--json", "--stop-token-ids", f"{stop},95", "--compare"))[1])
    assert (found["token_ids"], found["finish_reason"]) == (whole[: whole.index(stop) + 1], "stop")
    assert found["compare"]["identical"] and found["settings"]["stop_token_ids"] == [stop, 95]


def test_an_end_token_that_is_text_is_one_message(pair, cli, tmp_path):
    shutil.copytree(pair / "target", tmp_path / "target")
    (tmp_path / "target/generation_config.json").write_text('{"eos_token_id": "0"}')
    code, _, err = cli("generate", "--model", tmp_path / "target", "--drafter", "none", "--prompt", "w1")
    assert code == 2 and "generation_config.json of " in err and "eos_token_id is '0'" in err


def test_doctor_reads_no_weights_and_gives_a_verdict(pair, cli, monkeypatch, tmp_path):
    shutil.copytree(pair / "target", tmp_path / "target")
    (tmp_path / "target/model.safetensors").write_bytes(b"")
    shutil.copytree(pair / "head", tmp_path / "head")
    whole = (pair / "head/model.safetensors").read_bytes()
    zeros = whole[: 8 + int.from_bytes(whole[:8], "little")]
    (tmp_path / "head/model.safetensors").write_bytes(zeros + b"\xff" * (len(whole) - len(zeros)))  # all NaN
    common = ["doctor", "--model", tmp_path / "target", "--drafter", tmp_path / "head"]
    code, out, _ = cli(*common, "--context", 300)
    assert code == 0 and out.count(": fits") == 2 and ", a chunk of 300 0." in out and "peak of the process: " in out
    code, out, _ = cli(*common, "--context", 600)
    assert code == 1 and "512 positions are allowed" in out
    monkeypatch.setattr("longgraft.eval.checks.doctor.free_bytes", lambda device: 1000)
    code, out, _ = cli(*common, "--context", 500)
    assert code == 1 and "does not fit; not even its weights do" in out
    assert cli(*common, "--device", "nonsense")[0] == 2


def test_a_context_that_yarn_lengthens_is_allowed_by_all_commands(pair, cli, tmp_path):
    """Model cards add the scaling and leave `max_position_embeddings` as it is."""
    shutil.copytree(pair / "target", tmp_path / "target")
    file = tmp_path / "target/config.json"
    config = json.loads(file.read_text()) | {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    }
    config.pop("rope_parameters", None)
    file.write_text(json.dumps(config))
    model = ["--model", tmp_path / "target", "--drafter", "none"]
    code, out, _ = cli("doctor", *model, "--context", 2048)
    assert code == 0 and "2,048 positions, " in out
    assert "2,048 positions are allowed" in cli("doctor", *model, "--context", 2049)[1]
    assert Reader.open(str(tmp_path / "target")).max_positions == 2048
    code, _, err = cli("generate", *model, "--prompt", "w1 " * 600, "--max-new-tokens", 2)
    assert code == 0, err


@pytest.mark.parametrize(("family", "attending"), [("llama", 6), ("granitemoehybrid", 3), ("mamba2", 0)])
def test_doctor_counts_the_cache_of_layers_that_attend(family, attending, cli, tmp_path):
    tiny(CONFIG_MAPPING[family]).save_pretrained(tmp_path)
    out = cli("doctor", "--model", tmp_path, "--drafter", "none", "--context", 256)[1]
    heads, size, floats = 2, 8, 4
    cache = 256 * max(1, 2 * attending * heads * size * floats)
    assert f"target cache {cache / 2**20:,.1f}," in out


def test_doctor_does_not_count_memory_left_over_from_building_a_model(pair, cli, monkeypatch):
    from longgraft.eval.checks import doctor

    held, files_of = [2**20], doctor.files_of
    monkeypatch.setattr(doctor, "resident", lambda: held[-1])
    monkeypatch.setattr(doctor, "files_of", lambda *given: held.append(2**40) or files_of(*given))
    assert ", 1.0 of them its programs" in cli("doctor", "--model", pair / "target")[1]


def test_memory_is_the_sum_of_weights_caches_and_matrix(pair):
    from longgraft.eval.checks.doctor import Footprint, PromptLength, memory

    shares = {"target": Footprint(1000, 10), "drafter": Footprint(100, 1)}
    prompt = PromptLength(20)
    lines, fits = memory(shares, {"matrix": 50}, prompt, 2**30)
    assert fits and "0.0 MiB" in lines[0] and len(lines) == 2
    assert "peak of the process: 3.0 MiB, 3.0 of them" in memory(shares, {}, prompt, 2**30, 3 * 2**20)[0][1]
    used = 1000 + 100 + 50 + 20 * 11
    assert [
        memory(shares, {"matrix": 50}, prompt, left)[0][1].split(": ")[2].split(";")[0]
        for left in (used - 1, used, int(used / 0.9) + 1)
    ] == ["does not fit", "tight", "fits"]
    for positions, advised in (10**6, 171), (90, 90):  # 0.9 of 3,320 bytes hold 1,100 of weights and 171 tokens of 11
        advice = memory(shares, {}, PromptLength(10**6, positions), 3_320)[0][1]
        assert advice.endswith(f"does not fit; up to {advised} tokens would")


def test_methods_and_heads_are_listed(cli):
    listed, rows = cli("methods")[1], [*METHODS.values()]
    groups = listed.split("\n\n")[1:]
    titles = [group.splitlines()[0] for group in groups]
    assert titles == ["Core methods", "The zoo: methods to compare with"]
    assert [len(group.splitlines()) - 1 for group in groups] == [len(CORE), len(zoo())]
    lines = [line for group in groups for line in group.splitlines()[1:]]
    for line, method in zip(lines, rows, strict=True):
        assert line.split()[:2] == [method.name, str(method.budget)] and method.clause in line
        assert all(
            said in line for said in (*(f"+{one.name}" for one in method.own), *(need.switch for need in method.needs))
        ), line
        assert method.promise == "exact" or method.promise in line
    described = cli("methods", "graft-x", "pld")[1]
    assert "needs an EAGLE-3 drafter (--drafter PATH); budget 60; exact" in described and "pld  " in described
    assert "retrieval" not in described
    assert [line.split()[0] for line in lines if "[the default" in line] == ["graft-x", "graft-x-text"]
    heads = cli("heads")[1]
    assert "YARN-64K" in heads and re.search(r"^smollm2 +ships; --drafter smollm2 +8,192$", heads, re.MULTILINE)
    assert re.search(r"^embedded +ships; --drafter auto +65,536$", heads, re.MULTILINE)
    assert "THUDM/LongBench" in cli("suites")[1]


def test_commands_limit_how_long_threads_spin_unless_the_user_does(cli, monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "kept")  # so that it is restored afterwards, whatever the command sets
        monkeypatch.delenv(name)
    assert cli("--version")[0] == 0 and int(os.environ["GOMP_SPINCOUNT"]) < 300_000
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    cli("--version")
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    cli("--version")
    assert "GOMP_SPINCOUNT" not in os.environ

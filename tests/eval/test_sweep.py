"""Sweeps on the embedded pair measure every row once, also after a kill, and give the same rows each time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from toys.commands import run
from toys.sources import own_rows

from longgraft.engine.fork import Fork
from longgraft.eval.reports.compare import lines
from longgraft.eval.reports.report import write
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.rows import ROWS, Failure, Row, read_rows
from longgraft.eval.runs.sweep import sweep
from longgraft.loading import load


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    return own_rows(tmp_path_factory.mktemp("rows") / "own.jsonl")


def config(rows: Path, **more) -> SweepConfig:
    return SweepConfig(
        **{
            "suites": (str(rows),),
            "lengths": (256, 512),
            "methods": ("pld", "graft"),
            "modes": ("replay", "sampled"),
            "prompts": 2,
            "repeats": 1,
            "max_new_tokens": 12,
            "check_tokens": 6,
            "budget": 16,
        }
        | more
    )


@pytest.mark.slow
def test_every_row_comes_once_and_a_second_run_gives_the_same(rows, tmp_path):
    first, second = sweep(config(rows), tmp_path / "a"), sweep(config(rows), tmp_path / "b")
    assert len(first) == 2 * 2 * 2 * 3 and len({row.key for row in first}) == len(first)
    assert not any(isinstance(row, Failure) for row in first)
    assert {row.lossless.first_divergence for row in first} == {None}
    assert "in 0 of them." in lines(first, second)[1]
    assert {row.key.bucket: row.prompt_tokens <= row.key.bucket for row in first} == {256: True, 512: True}
    write(tmp_path / "a")
    assert "identical" in (tmp_path / "a" / "summary.md").read_text()


def test_a_method_learns_from_the_prompts_of_one_suite_and_length(rows, tmp_path):
    """Another suite, or another length, may have the same rows, whose answers it would know."""
    again = tmp_path / "again.jsonl"
    again.write_bytes(rows.read_bytes())
    options = {"suites": (str(rows), str(again)), "methods": ("suffix",), "modes": ("replay",), "check_tokens": None}
    found = [row for row in sweep(config(rows, **options), tmp_path / "run") if row.key.method == "suffix"]
    learned: dict[tuple[str, int], list[int]] = {}
    for row in found:
        learned.setdefault((row.key.suite, row.key.bucket), []).append(row.learned_from)
    assert list(learned.values()) == [[0, 1]] * 4


def test_edits_are_decoded_with_the_file_as_prediction(tmp_path, monkeypatch):
    predictions, usual = [], Fork.__init__

    def recorded(self, engines, ids, limit, prediction=()):
        predictions.append(prediction)
        usual(self, engines, ids, limit, prediction)

    monkeypatch.setattr(Fork, "__init__", recorded)
    files = [f"def area_{n}(side):\n    return side * {n}\n" * 6 for n in (2, 3)]
    edits = tmp_path / "edits.jsonl"
    edits.write_text(
        "".join(
            json.dumps(
                {
                    "_id": file[9],
                    "before": file,
                    "instruction": "Rename side to edge.",
                    "after": file.replace("side", "edge"),
                }
            )
            + "\n"
            for file in files
        )
    )
    options = {"lengths": (), "methods": ("pld",), "modes": ("replay",), "max_new_tokens": 80, "check_tokens": None}
    found = sweep(config(edits, **options), tmp_path / "run")
    assert len(found) == 4 and not any(isinstance(row, Failure) for row in found)
    assert all(
        row.lossless.first_divergence is None and row.tokens_per_step > 2 for row in found if row.key.method == "pld"
    )
    tokenizer = load("embedded", tell=False, method="ar").tokenizer
    assert [tokenizer.decode(ids) for ids in predictions if ids] == files


@pytest.mark.slow
def test_a_killed_sweep_is_resumed_without_losing_or_repeating_a_row(rows, tmp_path, capsys, monkeypatch):
    command = [
        "sweep",
        "--suites",
        str(rows),
        "--buckets",
        "256,512",
        "--methods",
        "pld,graft",
        "--mode",
        "replay,sampled",
        "--prompts",
        "2",
        "--repeats",
        "1",
        "--max-new-tokens",
        "12",
        "--budget",
        "16",
        "--out",
        str(tmp_path),
    ]
    running = subprocess.Popen(
        [sys.executable, "-m", "longgraft", *command],
        stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    path = tmp_path / ROWS
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and (not path.exists() or path.read_bytes().count(b"\n") < 5):
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    before = path.read_bytes()
    assert 5 <= before.count(b"\n") < 24
    with open(path, "ab") as file:
        file.write(b'{"suite": "own", "buck')  # what a kill in the middle of a line leaves
    code, out, _ = run(capsys, monkeypatch, *command, "--resume", tmp_path)
    assert path.read_bytes().startswith(before) and len(read_rows(tmp_path)) == 24
    assert code == 0 and "summary.md" in out


def test_a_resumed_sweep_must_be_the_same_and_a_fresh_one_must_not_overwrite(rows, tmp_path):
    small = {"lengths": (256,), "modes": ("replay",), "methods": ("pld",), "prompts": 1}
    sweep(config(rows, **small), tmp_path)
    with pytest.raises(ValueError, match="--resume"):
        sweep(config(rows, **small), tmp_path)
    with pytest.raises(ValueError, match="seed was 0 and is 1"):
        sweep(config(rows, **small, seed=1), tmp_path, resume=True)
    assert len(sweep(config(rows, **small), tmp_path, resume=True)) == 2


def test_a_failing_method_leaves_rows_that_say_why(rows, tmp_path, monkeypatch):
    from longgraft.methods.registry.pld import PromptLookup

    def broken(self, ask):
        raise RuntimeError("out of memory, as it were")

    monkeypatch.setattr(PromptLookup, "propose", broken)
    small = config(rows, lengths=(256,), modes=("replay",), methods=("pld", "retrieval"), prompts=1, repeats=2)
    found = sweep(small, tmp_path)
    failed = [row for row in found if isinstance(row, Failure)]
    assert [row.key.method for row in failed] == ["pld", "pld"] and "as it were" in failed[0].error
    assert len(found) == 3 * 2  # the others are measured, also after it
    assert sweep(small, tmp_path, resume=True) == found  # failures are not tried again unasked
    monkeypatch.undo()
    mended = sweep(small, tmp_path, retry=True)
    assert len(mended) == 6 and not any(isinstance(row, Failure) for row in mended)


def test_a_method_that_decodes_wrong_tokens_is_noticed(rows, tmp_path, monkeypatch):
    from longgraft.acceptance.rules import Sampled

    real = Sampled.__call__

    def wrong(self, tree, logits, positions):
        path, token = real(self, tree, logits, positions)
        return path, token if len(tree) == 1 else (token + 1) % 4096  # wrong in trees only

    monkeypatch.setattr(Sampled, "__call__", wrong)
    for modes in (("replay",), ("sampled",)):
        found = sweep(config(rows, lengths=(256,), modes=modes, methods=("retrieval",), prompts=1), tmp_path / modes[0])
        parted = {row.key.method: row.lossless.first_divergence for row in found}
        assert parted["ar"] is None and parted["retrieval"] is not None


@pytest.mark.parametrize("check_tokens", [None, 30])
def test_checks_compare_as_many_tokens_as_were_decoded(rows, tmp_path, check_tokens):
    """Suites have limits of their own, and a replay's check may be longer than the replay."""
    named = tmp_path / "lcc.jsonl"
    named.write_text(
        "".join(
            json.dumps(
                {
                    "_id": str(n),
                    "context": Path(__file__).read_text()[n : n + 2500],
                    "input": "",
                    "answers": ["x"],
                    "continuation": "    return",
                }
            )
            + "\n"
            for n in (0, 40)
        )
    )
    limits = tmp_path / "longbench_prompts.json"
    limits.write_text(json.dumps({"lcc": {"prompt": "{context}Next line of code:\n", "max_gen": 5}}))
    made = config(
        rows,
        suites=("lcc",),
        data=str(tmp_path),
        lengths=(256,),
        methods=("pld",),
        max_new_tokens=9,
        check_tokens=check_tokens,
        budget=4,
        prompts=1,
    )
    found = sweep(made, tmp_path / "out")
    assert {(row.key.mode, row.lossless.tokens) for row in found} == {
        ("replay", check_tokens or len(found[0].token_ids)),
        ("sampled", 5),
    }
    assert {row.lossless.first_divergence for row in found} == {None} and len(found) == 4


def test_one_prefill_serves_all_methods(rows, tmp_path, monkeypatch):
    from longgraft.target_model.model import Target

    fed, real = [], Target.run

    def counted(self, segments, wants):
        fed.extend(len(segment.tree) for segment in segments)
        return real(self, segments, wants)

    monkeypatch.setattr(Target, "run", counted)
    made = config(rows, lengths=(512,), prompts=1, methods=("pld", "token-recycling", "retrieval", "eagle3", "graft"))
    length = sweep(made, tmp_path)[0].prompt_tokens
    # The warm-up reads 256; the last token of a prompt is fed again by every decoding.
    assert length > 256 and sum(n for n in fed if n > 100) == 255 + length - 1


def test_methods_without_what_they_need_are_failures_where_that_is_allowed(rows, tmp_path):
    """A head and a datastore are missing; the other methods are measured."""
    made = config(
        rows,
        drafter="none",
        methods=("pld", "graft", "rest"),
        modes=("greedy",),
        prompts=1,
        lengths=(256,),
        allow_missing=True,
    )
    found = {row.key.method: row for row in sweep(made, tmp_path)}
    assert found.keys() == {"ar", "pld", "graft", "rest"} and isinstance(found["pld"], Row)
    assert "needs an EAGLE-3 drafter for embedded, and none was given" in found["graft"].error
    assert "needs a datastore" in found["rest"].error


def test_a_wrong_data_folder_leaves_no_folder_behind(rows, tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        sweep(config(rows, suites=("lcc",), data=str(tmp_path / "nowhere")), tmp_path / "out")
    with pytest.raises(ValueError, match="long enough for 65,536 tokens"):
        sweep(config(rows, lengths=(65536,)), tmp_path / "out")
    with pytest.raises(ValueError, match="needs an EAGLE-3 drafter"):
        sweep(config(rows, drafter="none"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert len(sweep(config(rows, drafter="none", methods=("pld",), prompts=1, lengths=(256,)), tmp_path / "out")) == 4


def test_a_dry_run_prints_the_plan_and_runs_nothing(rows, tmp_path, capsys, monkeypatch):
    code, said, _ = run(
        capsys,
        monkeypatch,
        "sweep",
        "--suites",
        rows,
        "--buckets",
        "256,64k",
        "--methods",
        "pld",
        "--prompts",
        2,
        "--out",
        tmp_path / "never",
        "--dry-run",
    )
    assert code == 0 and "256: 2, 65,536: none" in said and "MiB" in said and "hours" in said
    assert not (tmp_path / "never").exists()

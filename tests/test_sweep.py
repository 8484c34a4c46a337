"""Sweeps on the embedded pair and small rows: every row once, also after a kill, and always the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from longgraft.eval.reports.compare import lines
from longgraft.eval.reports.report import write
from longgraft.eval.runs import progress
from longgraft.eval.runs.bench import Bench, run_prompt
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.jobs import jobs_of
from longgraft.eval.runs.plan import Reader, check_plan, planned
from longgraft.eval.runs.resume import resume_config, same_run
from longgraft.eval.runs.rows import ROWS, Failure, RowLog, read_rows, sole_sweep
from longgraft.eval.runs.sweep import sweep
from longgraft.eval.runs.workers import Processes, spread

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    """This repository's own sources as prompts, their next lines as recordings."""
    path = tmp_path_factory.mktemp("rows") / "own.jsonl"
    names = ("session", "tree", "compose", "methods")
    texts = [(ROOT / f"longgraft/{name}.py").read_text() for name in names]
    path.write_text("".join(json.dumps({"_id": name, "text": text[:2200], "continuation": text[2200:2300]}) + "\n"
                            for name, text in zip(names, texts, strict=True)))
    return path


def config(rows: Path, **more) -> SweepConfig:
    return SweepConfig(**{"suites": (str(rows),), "lengths": (256, 512), "methods": ("pld", "eagle3", "graft"),
                          "modes": ("replay", "sampled"), "prompts": 2, "repeats": 1, "max_new_tokens": 12,
                          "check_tokens": 6, "budget": 16} | more)


def test_every_row_is_there_once_and_a_second_run_says_the_same(rows, tmp_path):
    first, second = sweep(config(rows), tmp_path / "a"), sweep(config(rows), tmp_path / "b")
    assert len(first) == 2 * 2 * 2 * 4 and len({row.key for row in first}) == len(first)
    assert not any(isinstance(row, Failure) for row in first)
    assert {row.lossless.first_divergence for row in first} == {None}
    assert "in 0 of them." in lines(first, second)[1]
    assert {row.key.bucket: row.prompt_tokens <= row.key.bucket for row in first} == {256: True, 512: True}
    write(tmp_path / "a")
    assert "identical" in (tmp_path / "a" / "summary.md").read_text()


def test_a_killed_sweep_is_resumed_without_losing_or_repeating_a_row(rows, tmp_path):
    command = [sys.executable, "-m", "longgraft.cli.app", "sweep", "--suites", str(rows), "--buckets", "256,512",
               "--methods", "pld,eagle3,graft", "--mode", "replay,sampled", "--prompts", "2", "--repeats", "1",
               "--max-new-tokens", "12", "--budget", "16", "--out", str(tmp_path)]
    running = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    path = tmp_path / ROWS
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not path.exists() or path.read_bytes().count(b"\n") < 5):
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    before = path.read_bytes()
    assert 5 <= before.count(b"\n") < 32
    with open(path, "ab") as file:
        file.write(b'{"suite": "own", "buck')       # what a kill in the middle of a line leaves
    done = subprocess.run([*command, "--resume", str(tmp_path)], env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True,
                          capture_output=True, text=True)
    assert path.read_bytes().startswith(before) and len(read_rows(tmp_path)) == 32
    assert "summary.md" in done.stdout


def test_a_resumed_sweep_must_be_the_same_and_a_fresh_one_must_not_overwrite(rows, tmp_path):
    small = {"lengths": (256,), "modes": ("replay",), "methods": ("pld",), "prompts": 1}
    sweep(config(rows, **small), tmp_path)
    with pytest.raises(ValueError, match="--resume"):
        sweep(config(rows, **small), tmp_path)
    with pytest.raises(ValueError, match="seed was 0 and is 1"):
        sweep(config(rows, **small, seed=1), tmp_path, resume=True)
    assert len(sweep(config(rows, **small), tmp_path, resume=True)) == 2


def test_a_failing_method_leaves_rows_that_say_why(rows, tmp_path, monkeypatch):
    from longgraft.retrievers.prompt_lookup import PromptLookup

    def broken(self, ask):
        raise RuntimeError("out of memory, as it were")

    monkeypatch.setattr(PromptLookup, "propose", broken)
    small = config(rows, lengths=(256,), modes=("replay",), methods=("pld", "retrieval"), prompts=1, repeats=2)
    found = sweep(small, tmp_path)
    failed = [row for row in found if isinstance(row, Failure)]
    assert [row.key.method for row in failed] == ["pld", "pld"] and "as it were" in failed[0].error
    assert len(found) == 3 * 2      # the others are measured, also after it
    assert sweep(small, tmp_path, resume=True) == found         # failures are not tried again unasked
    monkeypatch.undo()
    mended = sweep(small, tmp_path, retry=True)
    assert len(mended) == 6 and not any(isinstance(row, Failure) for row in mended)


def test_a_method_that_loses_something_is_caught(rows, tmp_path, monkeypatch):
    from longgraft.acceptance import Sampled

    real = Sampled.draw

    def wrong(self, logits, positions):
        drawn = real(self, logits, positions)
        return drawn if len(positions) == 1 else [(token + 1) % 4096 for token in drawn]      # in trees alone

    monkeypatch.setattr(Sampled, "draw", wrong)
    for modes in (("replay",), ("sampled",)):
        found = sweep(config(rows, lengths=(256,), modes=modes, methods=("retrieval",), prompts=1), tmp_path / modes[0])
        parted = {row.key.method: row.lossless.first_divergence for row in found}
        assert parted["ar"] is None and parted["retrieval"] is not None


def test_checks_compare_as_many_tokens_as_were_decoded(rows, tmp_path):
    """Suites have limits of their own, and a replay's check may be longer than the replay."""
    named = tmp_path / "lcc.jsonl"
    named.write_text("".join(json.dumps({"_id": str(n), "context": Path(__file__).read_text()[n:n + 2500], "input": "",
                                         "answers": ["x"], "continuation": "    return"}) + "\n" for n in (0, 40)))
    limits = tmp_path / "longbench_prompts.json"
    limits.write_text(json.dumps({"lcc": {"prompt": "{context}Next line of code:\n", "max_gen": 5}}))
    made = config(rows, suites=("lcc",), data=str(tmp_path), lengths=(256,), methods=("pld",), max_new_tokens=9,
                  check_tokens=30, budget=4, prompts=1)
    found = sweep(made, tmp_path / "out")
    assert {(row.key.mode, row.lossless.tokens) for row in found} == {("replay", 30), ("sampled", 5)}
    assert {row.lossless.first_divergence for row in found} == {None} and len(found) == 4


def test_one_prefill_serves_all(rows, tmp_path, monkeypatch):
    from longgraft.target.model import Target

    fed, real = [], Target.run

    def counted(self, segments, wants):
        fed.extend(len(segment.tree) for segment in segments)
        return real(self, segments, wants)

    monkeypatch.setattr(Target, "run", counted)
    made = config(rows, lengths=(512,), prompts=1, methods=("pld", "token-recycling", "retrieval", "eagle3", "graft"))
    length = sweep(made, tmp_path)[0].prompt_tokens
    # The warm-up reads 256; the last token of a prompt is fed again by every decoding.
    assert length > 256 and sum(n for n in fed if n > 100) == 255 + length - 1


def test_a_wrong_data_folder_leaves_no_folder_behind(rows, tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        sweep(config(rows, suites=("lcc",), data=str(tmp_path / "nowhere")), tmp_path / "out")
    with pytest.raises(ValueError, match="long enough for 65,536 tokens"):
        sweep(config(rows, lengths=(65536,)), tmp_path / "out")
    with pytest.raises(ValueError, match="needs an EAGLE-3 drafter"):
        sweep(config(rows, drafter="none"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert len(sweep(config(rows, drafter="none", methods=("pld",), prompts=1, lengths=(256,)), tmp_path / "out")) == 4


def test_a_file_may_use_the_flags_names(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('buckets = "4k,8k"\nmode = "replay,sampled"\nmethods = ["pld"]\nprompts = 2\n')
    made = SweepConfig.load(path, prompts=3)
    assert made.lengths == (4096, 8192) and made.modes == ("replay", "sampled") and made.prompts == 3
    path.write_text('prompts = "five"\n')
    with pytest.raises(ValueError, match="prompts is 'five'"):
        SweepConfig.load(path)


def test_workers_share_the_prompts_and_a_dead_one_loses_nothing(rows, tmp_path):
    alone = sweep(config(rows, modes=("replay",)), tmp_path / "alone")
    jobs_seen: dict[tuple, dict] = {}
    together = config(rows, modes=("replay",))
    jobs = jobs_of(together, planned(together, check_plan(together), Reader.open(None)), {})
    stream, killed = spread(together, jobs, Processes(together, 2)), False
    for row in stream:
        assert row.key not in jobs_seen
        jobs_seen[row.key] = row
        if not killed:
            import multiprocessing

            multiprocessing.active_children()[0].kill()
            killed = True
    assert killed and set(jobs_seen) == {row.key for row in alone}
    assert "in 0 of them." in lines(alone, list(jobs_seen.values()))[1]


def test_the_plan_is_told_before_anything_runs(rows, tmp_path, capsys, monkeypatch):
    from longgraft.cli.app import main

    monkeypatch.setattr(sys, "argv", ["longgraft", "sweep", "--suites", str(rows), "--buckets", "256,64k",
                                      "--methods", "pld", "--prompts", "2", "--out", str(tmp_path / "never"),
                                      "--dry-run"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    said = capsys.readouterr().out
    assert "256: 2, 65,536: none" in said and "MiB" in said and "hours" in said
    assert not (tmp_path / "never").exists()


# What is refused, and when --------------------------------------------------------------------------------------------

def never(*_, **__):
    raise AssertionError("a model was loaded")


def test_bad_suites_folders_and_recordings_are_found_before_a_model_is_loaded(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(Bench, "open", never)
    (tmp_path / "file").write_text("")
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"text": "some words"}\n')
    for more, out, said in [({"suites": ("nope",)}, "out", "'nope' is unknown"), ({}, "file", "is a file, and a run"),
                            ({"suites": (str(bare),)}, "out", r"No row of .*bare.jsonl has a recorded continuation"),
                            ({"suites": (str(rows), str(bare)), "modes": ("replay", "sampled")}, "out", "No row of ")]:
        with pytest.raises(ValueError, match=said):
            sweep(config(rows, **more), tmp_path / out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare.jsonl", "file"]


def test_prompts_beyond_the_targets_positions_are_refused(rows, tmp_path):
    long = config(rows, lengths=(256, 8192))
    with pytest.raises(ValueError, match="Prompts of 8,192 tokens were asked for, and small has 4,096 positions"):
        planned(long, check_plan(long), Reader("small", None, 4096))


def test_a_prompt_that_leaves_no_position_for_its_answer_fails_and_says_so(rows, tmp_path, monkeypatch):
    found = config(rows, lengths=(256,), modes=("sampled",), methods=("pld",), prompts=1)
    bench = Bench.open(found)
    job, = jobs_of(found, planned(found, check_plan(found), Reader.of(bench.session)), {})
    monkeypatch.setattr(type(bench.session.target), "max_positions", len(job.fitted.ids) + 11)
    made = list(run_prompt(found, bench, job))
    assert len(made) == 2 and all("tokens and 12 may follow, but embedded has" in row.error for row in made)


def test_what_cuts_prompts_for_workers_loads_no_model(rows, tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", never)
    made = config(rows, lengths=(256,), modes=("replay",))
    found = planned(made, check_plan(made), Reader.open(None))
    assert [len(prompts) for by_length in found.values() for prompts in by_length.values()] == [2]


# Going on -------------------------------------------------------------------------------------------------------------

def test_a_run_whose_configuration_is_lost_is_not_gone_on_with(rows, tmp_path):
    small = config(rows, lengths=(256,), modes=("replay",), methods=("pld",), prompts=1)
    sweep(small, tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"has per_prompt\.jsonl and no config\.json: nothing says with which options"):
        sweep(small, tmp_path, resume=True)
    with pytest.raises(ValueError, match="holds no run"):
        resume_config(tmp_path / "nowhere")


def test_a_run_is_resumed_from_its_folder_alone_and_can_get_more_prompts_and_methods(rows, tmp_path):
    small = config(rows, lengths=(256,), modes=("replay",), methods=("pld",), prompts=1)
    before = sweep(small, tmp_path)
    assert resume_config(tmp_path) == small
    more = replace(resume_config(tmp_path), prompts=2, methods=("pld", "retrieval"))
    found = sweep(more, tmp_path, resume=True)
    assert found[:2] == before and len(found) == 2 * 3 and resume_config(tmp_path) == more


def test_what_differs_between_two_runs_is_named_and_what_was_added_is_not():
    saved = asdict(SweepConfig(heads={"a": "x"}, lengths=(1024,)))
    more = asdict(SweepConfig(heads={"a": "x", "b": "y"}, prompts=9, repeats=4, modes=("replay", "sampled"),
                              lengths=(512, 1024), methods=("graft", "ar", "eagle3", "pld")))
    assert same_run(saved, saved) == [] == same_run(json.loads(json.dumps(saved)), json.loads(json.dumps(more)))
    assert set(same_run(more, saved)) == {
        "methods had pld, and now ar, eagle3, graft", "lengths had 512, and now 1024",
        "modes had sampled, and now replay", "prompts was 9 and is 5", "repeats was 4 and is 3",
        "heads had b=y, and now a=x"}
    assert same_run(saved, saved | {"seed": 1}) == ["seed was 0 and is 1"]
    assert same_run(saved, saved | {"device": "cuda"}) == ["device was None and is cuda"]
    assert same_run(saved | {"lengths": []}, saved) == ["lengths was none and is 1024"]
    assert same_run(saved, saved | {"heads": {"a": "z"}}) == ["heads had a=x, and now a=z"]


def test_a_second_sweep_into_the_same_folder_is_refused_before_it_loads_anything(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(Bench, "open", never)
    with sole_sweep(tmp_path / "run"), pytest.raises(ValueError, match="Another sweep is writing into"):
        sweep(config(rows), tmp_path / "run")


def test_ctrl_c_keeps_the_rows_and_says_how_to_go_on(rows, tmp_path, monkeypatch, capsys):
    real = RowLog.append

    def interrupted(self, row):
        real(self, row)
        if len(self.rows) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(RowLog, "append", interrupted)
    with pytest.raises(SystemExit) as end:
        sweep(config(rows), tmp_path / "run")
    assert end.value.code == 130 and len(read_rows(tmp_path / "run")) == 3
    assert f"interrupted: go on with `longgraft sweep --resume {tmp_path / 'run'}`" in capsys.readouterr().err


def test_without_a_terminal_a_line_now_and_then_says_how_far_a_run_is(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    shown = progress.Progress(200)
    for _ in range(200):
        now[0] += 1.0
        shown.add()
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "longgraft: 10 of 200 rows, 5%, 0.2 minutes" and len(told) == 20      # a twentieth each
    shown = progress.Progress(10_000)
    for _ in range(90):
        now[0] += 1.0
        shown.add()
    assert [line.split(" rows")[0] for line in capsys.readouterr().err.splitlines()] == [
        f"longgraft: {count} of 10,000" for count in (30, 60, 90)]      # every half minute


@pytest.mark.parametrize("more, said", [({"modes": ("reply",)}, "'reply' is unknown"), ({"prompts": 0}, "prompts is 0"),
                                        ({"methods": ("eagle3@x",)}, "names the head 'x'"),
                                        ({"methods": ("eagle4",)}, "'eagle4' is unknown")])
def test_a_wrong_configuration_is_named(more, said):
    with pytest.raises(ValueError, match=said):
        SweepConfig(**more)

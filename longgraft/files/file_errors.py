"""Plain reasons why a file cannot be read."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

# (beginning or end of a library's message, its meaning in plain words)
MEANINGS = (
    ("Error while deserializing header", "it is no whole safetensors file"),
    ("(os error 19)", "it is a folder"),
    ("Couldn't instantiate the backend tokenizer", "its files are missing"),
    ("Unrecognized model in", "it has no config.json with a known model_type"),
    ("Repo id must", "there is no such folder, and a hub id is a name, or owner/name"),
)
SYSTEM = re.compile(r"\(os error (\d+)\)")  # how libraries in Rust name an error of the system
GZIP = b"\x1f\x8b"  # first bytes of a gzip file
LONGEST = 150  # characters of a library's own message that are shown


def reason(error: BaseException) -> str:
    """Returns a clause for "FILE cannot be read: ...".

    A library's own message may be about its code, or a page long.
    """
    text = " ".join(str(error).split()).split(". ")[0].rstrip(".:")[:LONGEST]
    for words, meaning in MEANINGS:
        if text.startswith(words) or text.endswith(words):
            return meaning
    system = SYSTEM.search(text)
    if system:
        return os.strerror(int(system[1]))
    if isinstance(error, IsADirectoryError):
        return "it is a folder"
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON from line {error.lineno}, column {error.colno} on"
    if isinstance(error, UnicodeDecodeError) and error.object[:2] == GZIP:
        return "it is compressed by gzip; let its name end in .gz"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 at byte {error.start:,}"
    if isinstance(error, KeyError):
        key = error.args[0] if error.args else ""
        return f"{key!r} is missing or unknown"
    if isinstance(error, (TypeError, AttributeError, IndexError)):
        return "it is damaged, or of another format"
    if isinstance(error, (OSError, ValueError)):
        return getattr(error, "strerror", None) or text
    if text:
        return f"{type(error).__name__}: {text}"
    return type(error).__name__


def reason_of(path: Path, error: BaseException) -> str:
    """Returns the `reason`; a file that only points to one in Git LFS is called so."""
    if isinstance(error, OSError):
        return reason(error)
    with open(path, "rb") as file:
        if file.read(40).startswith(b"version https://git-lfs"):
            return "it is a Git LFS pointer, without the weights"
    return reason(error)

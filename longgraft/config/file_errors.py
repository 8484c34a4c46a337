"""Why a file cannot be read, in plain words; and GGUF, which is not read.  Knows what libraries raise."""

from __future__ import annotations

import json
import os
from pathlib import Path

# (beginning or end of a library's message, its meaning)
MEANINGS = (("Error while deserializing header", "it is no whole safetensors file"),
            ("(os error 19)", "it is a folder"),
            ("Couldn't instantiate the backend tokenizer", "its files are missing"),
            ("Unrecognized model in", "it has no config.json with a known model_type"))
LONGEST = 150       # characters of a library's own message


def reason(error: BaseException) -> str:
    """A clause for "FILE cannot be read: ...": a library's own message may be about its code, or a page long."""
    text = " ".join(str(error).split()).split(". ")[0].rstrip(".:")[:LONGEST]
    for known, meaning in MEANINGS:
        if text.startswith(known) or text.endswith(known):
            return meaning
    if isinstance(error, IsADirectoryError):
        return "it is a folder"
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON from line {error.lineno}, column {error.colno} on"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 at byte {error.start:,}"
    if isinstance(error, KeyError):
        return f"{error.args[0] if error.args else ''!r} is missing or unknown"
    if isinstance(error, (TypeError, AttributeError, IndexError)):
        return "it is damaged, or of another format"
    if isinstance(error, (OSError, ValueError)):
        return getattr(error, "strerror", None) or text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def refuse_gguf(path: str | os.PathLike[str], what: str) -> None:
    """ValueError for a GGUF file, a folder with one and no config.json, and a hub id of GGUF files.

    what: the model or drafter, for the message
    """
    place = Path(path)
    if (place / "config.json").exists():
        return
    found = [place] if place.name.lower().endswith("gguf") else sorted(place.glob("*.gguf")) if place.is_dir() else []
    if found:
        raise ValueError(f"{what} is GGUF ({found[0].name}), which longgraft does not read yet. Give the original "
                         "model: a folder with config.json and safetensors, or its hub id.")

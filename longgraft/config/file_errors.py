"""Why a file cannot be read, in plain words; and GGUF, which is not read.  Knows what libraries raise."""

from __future__ import annotations

import json
import os
from pathlib import Path

# The beginning of a library's message, or its end, and what it means.
MEANINGS = (("Error while deserializing header", "it is no whole safetensors file"),
            ("(os error 19)", "it is a folder"),
            ("Couldn't instantiate the backend tokenizer", "its files are missing"),
            ("Unrecognized model in", "it has no config.json with a known model_type"))
LONGEST = 150       # characters of a library's own message


def reason(error: BaseException) -> str:
    """A clause for "FILE cannot be read: ...": a library's message alone can be its own code's, or go on for a page."""
    text = " ".join(str(error).split()).split(". ")[0].rstrip(".:")[:LONGEST]
    for said, meaning in MEANINGS:
        if text.startswith(said) or text.endswith(said):
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
    """ValueError for a GGUF file, a folder that holds one in the place of a config.json, and a hub id of such files.

    what: the model or drafter, for the message
    """
    place = Path(path)
    if (place / "config.json").exists():
        return
    found = [place] if place.name.lower().endswith("gguf") else sorted(place.glob("*.gguf")) if place.is_dir() else []
    if found:
        raise ValueError(f"{what} is GGUF ({found[0].name}), which longgraft does not read yet. Give the original "
                         "model: a folder with config.json and safetensors, or its hub id.")

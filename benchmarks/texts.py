"""Long prompts that are in every checkout: its own sources, one after the other.  Knows files; knows no model."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]     # the checkout, also where it is seen through links
FOLDERS = ("longgraft", "yarn_drafters", "prefill", "eval", "tests")
PIECE = re.compile(r" ?\w+|\n\s*|[^\w\s]+|\s")


@cache
def sources() -> str:
    """All Python files of the checkout, in the order of their names."""
    return "\n".join(path.read_text(encoding="utf-8") for folder in FOLDERS
                     for path in sorted((ROOT / folder).rglob("*.py")))


@cache
def numbered(tokens: int, vocab: int) -> list[int]:
    """So many words and marks of the sources, numbered as they first come: of a vocabulary which holds every word, as
    large ones nearly do, so that words repeat as they do there."""
    found: list[str] = PIECE.findall(sources())
    known: dict[str, int] = {}
    ids = [known.setdefault(piece, len(known)) % vocab for piece in found[:tokens]]
    if len(ids) < tokens:
        raise ValueError(f"The sources have {len(ids):,} words and marks; {tokens:,} were asked for. Ask for fewer.")
    return ids

"""Long prompts that are in every checkout: its own sources, one after the other."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # the checkout, also if it is reached through links
FOLDERS = ("longgraft", "yarn_drafters", "prefill", "eval", "tests")
PIECE = re.compile(r" ?\w+|\n\s*|[^\w\s]+|\s")


@cache
def sources() -> str:
    """Returns all Python files of the checkout, in the order of their names."""
    return "\n".join(
        path.read_text(encoding="utf-8") for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))
    )


@cache
def numbered(tokens: int, vocab: int) -> list[int]:
    """Returns the first words and marks of the sources as ids, numbered in the order of their first occurrence.

    Each word is one token, which is nearly true of large vocabularies, so that tokens repeat as often as with them.
    """
    found: list[str] = PIECE.findall(sources())
    known: dict[str, int] = {}
    ids = [known.setdefault(piece, len(known)) % vocab for piece in found[:tokens]]
    if len(ids) < tokens:
        raise ValueError(f"The sources have {len(ids):,} words and marks; {tokens:,} were asked for. Ask for fewer.")
    return ids

"""Encodes the texts of a prompt, each by itself.

The ids of a text do not depend on the text before it, so a changed prompt keeps its ids up to the change.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import Any

KEPT = 1024         # texts in the cache: the parts of a prompt of 64K tokens
LONGEST = 16_384    # characters of the longest cached text; a part has about 64 lines
BLOCK = 64          # lines of a part


class PartEncoder:
    """A tokenizer for parts of a prompt.  begin: ids that it puts before every prompt.

    Text that spells a special token is encoded as text, because a source file may contain such text.
    """

    def __init__(self, tokenizer: Any, markers: tuple[str, ...] = ()) -> None:
        """markers: spellings of further tokens that text must not be encoded as"""
        self._tokenizer = tokenizer
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        spellings = sorted(filter(None, special.union(markers)), key=len, reverse=True)
        self._marker = re.compile("|".join(map(re.escape, spellings)) or "(?!)")
        whole, bare = tokenizer("a")["input_ids"], self._plain("a")
        self.begin: tuple[int, ...] = tuple(whole[:next(
            (n for n in range(len(whole)) if whole[n:n + len(bare)] == bare), 0)])
        self._newline = self._plain("\n")
        self._kept = lru_cache(maxsize=KEPT)(self.encode)

    def ids(self, text: str) -> tuple[int, ...]:
        """Does `encode` with a cache, because a part of a prompt is likely to come again."""
        return self._kept(text) if len(text) <= LONGEST else self.encode(text)

    def encode(self, text: str) -> tuple[int, ...]:
        """Returns the ids of a text after a line end; markers are cut in two, so that neither half is a special
        token."""
        cuts = [0, *(match.start() + len(match[0]) // 2 for match in self._marker.finditer(text)), len(text)]
        return tuple(token for start, end in pairwise(cuts) for token in self._after_newline(text[start:end]))

    def _after_newline(self, text: str) -> list[int]:
        """Returns the ids after a line end: some tokenizers put a space before every text, except there."""
        if not text:
            return []
        ids, skipped = self._plain("\n" + text), len(self._newline)
        # A tokenizer that merges a line end with the text after it puts no space there.
        return ids[skipped:] if ids[:skipped] == self._newline else self._plain(text)

    def _plain(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def blocks(text: str, lines: int = BLOCK) -> list[str]:
    """Cuts a text into parts of about `lines` lines; where they begin does not depend on the text after them.

    A part begins at an unindented line, where no tokenizer merges lines, if there is one within lines / 2.
    """
    all_lines = text.splitlines(keepends=True)
    found, start = [], 0
    for at in range(lines, len(all_lines), lines):
        near = range(at, min(at + max(1, lines // 2), len(all_lines)))
        cut = next((n for n in near if not all_lines[n][0].isspace()), at)
        found.append("".join(all_lines[start:cut]))
        start = cut
    return [*found, "".join(all_lines[start:])] if all_lines else []

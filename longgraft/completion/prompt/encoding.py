"""Texts that stand side by side in a prompt, each encoded for itself.  Knows a tokenizer; knows no order.

What a text's ids are depends on nothing before it, so that a prompt changes only from where its text did.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import Any

KEPT = 1024         # encoded texts: the parts of a prompt of 64K tokens
LONGEST = 16_384    # characters of a text that is kept: a part has 64 lines or so
BLOCK = 64          # lines


class PartEncoder:
    """A tokenizer for parts of a prompt.  begin: ids that it puts before every prompt.

    Text that spells a special token is encoded as text: a source file may be about tokens.
    """

    def __init__(self, tokenizer: Any, markers: tuple[str, ...] = ()) -> None:
        """markers: spellings of further tokens that no text may become."""
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
        """Of a part of a prompt, which is likely to come again."""
        return self._kept(text) if len(text) <= LONGEST else self.encode(text)

    def encode(self, text: str) -> tuple[int, ...]:
        """As behind a line's end; a marker is cut in two, so that neither half is a token."""
        cuts = [0, *(match.start() + len(match[0]) // 2 for match in self._marker.finditer(text)), len(text)]
        return tuple(token for start, end in pairwise(cuts) for token in self._behind(text[start:end]))

    def _behind(self, text: str) -> list[int]:
        """Some tokenizers put a space before every text: what is encoded behind a line's end has none."""
        if not text:
            return []
        ids, skipped = self._plain("\n" + text), len(self._newline)
        # Where a line's end joins what follows, nothing was put before it.
        return ids[skipped:] if ids[:skipped] == self._newline else self._plain(text)

    def _plain(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def blocks(text: str, lines: int = BLOCK) -> list[str]:
    """A text in parts of about so many lines, which begin at the same lines whatever follows.

    They begin where a line begins without a space, as no tokenizer joins lines there, if one does within half as many.
    """
    all_lines = text.splitlines(keepends=True)
    found, start = [], 0
    for at in range(lines, len(all_lines), lines):
        near = range(at, min(at + max(1, lines // 2), len(all_lines)))
        cut = next((n for n in near if not all_lines[n][0].isspace()), at)
        found.append("".join(all_lines[start:cut]))
        start = cut
    return [*found, "".join(all_lines[start:])] if all_lines else []

"""Encodes the texts of a prompt, each by itself.

The ids of a text do not depend on the text before it, so a changed prompt keeps its ids up to the change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from io import StringIO
from itertools import pairwise
from typing import Any

from longgraft.engine.encoder import continuation

KEPT = 1024  # texts in the cache: the parts of a prompt of 64K tokens
LONGEST = 16_384  # characters of the longest cached text; a part has about 64 lines
BLOCK = 64  # lines of a part


class PartEncoder:
    """A tokenizer for parts of a prompt.

    Text that spells a special token is encoded as text, because a source file may contain such text.

    Attributes:
        begin: Ids that it puts before every prompt.
    """

    def __init__(self, tokenizer: Any, markers: tuple[str, ...] = ()) -> None:
        """markers: spellings of further tokens that text must not be encoded as"""
        self._tokenizer = tokenizer
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        # A character cannot be cut in two.
        spellings = sorted(
            (spelling for spelling in special.union(markers) if len(spelling) > 1), key=len, reverse=True
        )
        self._marker = re.compile("|".join(map(re.escape, spellings)) or "(?!)")
        whole = tokenizer("a")["input_ids"]
        bare = self._plain("a")
        self.begin: tuple[int, ...] = tuple(
            whole[: next((n for n in range(len(whole)) if whole[n : n + len(bare)] == bare), 0)]
        )
        self._kept = lru_cache(maxsize=KEPT)(self.encode)

    def ids(self, text: str) -> tuple[int, ...]:
        """Does `encode` with a cache, because a part of a prompt is likely to come again."""
        if len(text) <= LONGEST:
            return self._kept(text)
        return self.encode(text)

    def encode(self, text: str) -> tuple[int, ...]:
        """Returns the ids of a text after a line end, without special tokens."""
        return tuple(token for piece in self.pieces(text) for token in self._after_newline(piece))

    def joined(self, pieces: Sequence[str]) -> list[int]:
        """Returns the ids of a text that is given in pieces, across which no token is found.

        The pieces themselves are encoded with their special tokens.
        """
        first, *rest = pieces
        return [*self._plain(first), *(token for piece in rest for token in self._after_newline(piece))]

    def marked(self, text: str) -> str | None:
        """Returns the first special token that the text spells; None if it spells none."""
        match = self._marker.search(text)
        if match is None:
            return None
        return match[0]

    def pieces(self, text: str) -> list[str]:
        """Returns the text in pieces that spell no special token: each is cut in two, until none is left."""
        cuts = [0, *(match.start() + len(match[0]) // 2 for match in self._marker.finditer(text)), len(text)]
        parts = [text[start:end] for start, end in pairwise(cuts)]
        if len(parts) == 1:
            return parts
        return [piece for part in parts for piece in self.pieces(part)]

    def _after_newline(self, text: str) -> list[int]:
        """Returns the ids after a line end."""
        return continuation(self._tokenizer, text)

    def _plain(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def blocks(text: str, lines: int = BLOCK) -> list[str]:
    """Cuts a text into parts of about `lines` lines; where they begin does not depend on the text after them.

    A part begins at an unindented line, where no tokenizer merges lines, if there is one within lines / 2.
    """
    all_lines = list(StringIO(text))  # ends at \n only; `splitlines` also ends at form feeds and others
    parts = []
    start = 0
    for at in range(lines, len(all_lines), lines):
        near = range(at, min(at + max(1, lines // 2), len(all_lines)))
        cut = next((n for n in near if not all_lines[n][0].isspace()), at)
        parts.append("".join(all_lines[start:cut]))
        start = cut
    if all_lines:
        return [*parts, "".join(all_lines[start:])]
    return []

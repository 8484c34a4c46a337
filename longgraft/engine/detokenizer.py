"""Turns token ids into text piece by piece, up to a stop string."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

LOOKBACK = 128      # characters before a new piece in which a match of `stop_until` may begin


class Detokenizer:
    """The text of a growing answer.  It holds back bytes that are not yet a character, and the beginning of a stop
    string.

    A piece is decoded together with the few tokens before it, because some tokenizers drop a leading space.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = (), stop_until: str | None = None) -> None:
        """stop_until: as in `GenerationRequest`"""
        self.tokenizer, self.stop = tokenizer, [s for s in stop if s]
        self._until = re.compile(stop_until) if stop_until is not None and self.stop else None
        self.ids: list[int] = []
        self.text = ""          # all text so far, up to a stop string
        self.given = 0          # characters returned
        self.stopped = False
        self._from = self._read = 0

    def push(self, ids: Sequence[int]) -> str:
        """Takes new tokens and returns new text, possibly none yet.  One token at a time finds the stopping token."""
        self.ids.extend(ids)
        before = self._decode(self.ids[self._from:self._read])
        whole = self._decode(self.ids[self._from:])
        if whole.endswith("\ufffd"):        # in the middle of a character
            return ""
        self._from, self._read = self._read, len(self.ids)
        return self._add(whole[len(before):])

    def finish(self) -> str:
        """Returns the text that was held back."""
        if not self.stopped:
            before = self._decode(self.ids[self._from:self._read])
            self._append(self._decode(self.ids[self._from:])[len(before):])
        piece, self.given = self.text[self.given:], len(self.text)
        return piece

    def _add(self, piece: str) -> str:
        if self.stopped:
            return ""
        self._append(piece)
        end = len(self.text) if self.stopped else len(self.text) - self._held()
        out, self.given = self.text[self.given:max(end, self.given)], max(end, self.given)
        return out

    def _append(self, piece: str) -> None:
        """Adds text, and cuts it at the first stop string that counts."""
        looked_at = max(0, len(self.text) - LOOKBACK)
        self.text += piece
        found = [at for at in (self.text.find(s, max(0, self.given - len(s))) for s in self.stop) if at >= 0]
        until = None if self._until is None else self._until.search(self.text, looked_at)
        if until is not None and until.start() <= min(found, default=len(self.text)):
            self.stop, self._until = [], None
        elif found:
            self.text, self.stopped = self.text[:min(found)], True

    def _held(self) -> int:
        """Returns the length of the text's longest suffix that is a prefix of a stop string."""
        longest = max((len(s) for s in self.stop), default=1) - 1
        ends = range(min(longest, len(self.text)), 0, -1)
        return next((n for n in ends if any(s.startswith(self.text[-n:]) for s in self.stop)), 0)

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

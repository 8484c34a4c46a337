"""Turns token ids into text piece by piece, up to a stop string."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from longgraft.engine.stop_string import StopString

REPLACEMENT = "\ufffd"  # decoded for bytes that are not, or not yet, a character
LONGEST = 4  # most tokens of one character: it has at most four bytes
CONTEXT = 8  # tokens of a prompt that are decoded with the first token of its answer
LOOKBACK = 128  # characters before a new piece in which a match of `stop_until` may begin


class Detokenizer:
    """The text of a growing answer: what decoding the prompt and the answer together adds to the prompt's text.

    It holds back bytes that are not yet a character, and the beginning of a stop string.

    A token is decoded together with a window of tokens before it, because some tokenizers drop the space at
    the beginning of a text.  The window stays short, so that every token costs the same.
    """

    def __init__(
        self, tokenizer: Any, stop: Sequence[str] = (), prompt: Sequence[int] = (), stop_until: str | None = None
    ) -> None:
        """Begins an answer.

        Args:
            tokenizer: Decodes tokens.
            stop: Stop strings; empty ones do not count.
            prompt: Token ids that the answer follows.
            stop_until: As in `GenerationRequest`.
        """
        self.tokenizer = tokenizer
        self.stop = [StopString(text) for text in stop if text]
        self._until: re.Pattern[str] | None = None
        if stop_until is not None and self.stop:
            self._until = re.compile(stop_until)
        self.text = ""  # all text so far, up to a stop string
        self.given = 0  # characters returned
        self.stopped_by: str | None = None  # the stop string that ended the text
        self._window = self._context(prompt)
        self._texts = len(self._window)  # ids of the window that need not be kept once others have text
        self._shown = len(self._decode(self._window))  # characters of the window's text that need not be added
        self._unfinished = 0  # tokens since the text last ended with a whole character

    @property
    def stopped(self) -> bool:
        """True once a stop string has ended the text."""
        return self.stopped_by is not None

    def push(self, ids: Sequence[int]) -> str:
        """Takes new tokens and returns new text, possibly none yet.

        One token at a time finds the stopping token.
        """
        return "".join(self._add(self._next(token)) for token in ids)

    def finish(self) -> str:
        """Returns the text that was held back."""
        if not self.stopped:
            whole = self._decode(self._window)
            self._append(whole[self._shown :])
            self._shown = len(whole)
        piece = self.text[self.given :]
        self.given = len(self.text)
        return piece

    def _context(self, prompt: Sequence[int]) -> list[int]:
        """Returns the last tokens of a prompt: so many that they have text, and do not begin within a character."""
        size = CONTEXT
        while size < len(prompt) and not self._decode(prompt[-size:]):  # special tokens have no text
            size *= 2
        for longer in range(size, size + LONGEST):
            text = self._decode(prompt[-longer:])
            if text and not text.startswith(REPLACEMENT):
                return list(prompt[-longer:])
        return list(prompt[-CONTEXT:])

    def _next(self, token: int) -> str:
        """Adds a token to the window and returns the text that no later token changes."""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT):
            self._unfinished += 1
            if self._unfinished < LONGEST:
                return ""
            return self._within_bytes(text)
        self._unfinished = 0
        new = text[self._shown :]
        recent = self._window[self._texts :]
        shown = self._decode(recent)
        if shown:
            self._window = recent
            self._texts = len(recent)
        else:  # a space after special tokens needs the text before them
            self._window = [*self._window[: self._texts], *recent[-LONGEST:]]
            shown = self._decode(self._window)
        self._shown = len(shown)
        return new

    def _within_bytes(self, text: str) -> str:
        """Returns the window's new text but for its last characters, which may be the beginning of one character.

        More tokens are unfinished than a character has: the text has bytes that are no character, or U+FFFD
        itself.
        """
        recent = self._window[-LONGEST:]
        shown = self._decode(recent)
        new = max(0, len(text) - self._shown)
        held = min(new, LONGEST - 1, len(shown) - len(shown.rstrip(REPLACEMENT)))
        settled = text[self._shown : len(text) - held]
        self._window = recent
        self._texts = 0
        self._shown = len(shown) - held
        return settled

    def _add(self, piece: str) -> str:
        if self.stopped:
            return ""
        self._append(piece)
        end = len(self.text)
        if not self.stopped:
            end -= max((stop.matched for stop in self.stop), default=0)
        end = max(end, self.given)
        piece = self.text[self.given : end]
        self.given = end
        return piece

    def _append(self, piece: str) -> None:
        """Adds text, and cuts it at the first stop string that counts: of several at one place, the shortest."""
        begin = len(self.text)
        self.text += piece
        found = []
        for stop in self.stop:
            place = stop.place(piece)
            if place is not None:
                found.append((begin + place, len(stop.string), stop.string))
        end, _, first = min(found, default=(len(self.text), 0, None))
        until = None
        if self._until is not None:
            until = self._until.search(self.text, max(0, begin - LOOKBACK))
        if until is not None and until.start() <= end:
            self.stop = []
            self._until = None
        elif first is not None:
            self.text = self.text[:end]
            self.stopped_by = first

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

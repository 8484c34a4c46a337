"""Cuts new tokens where the answer ends, and says why it ends there."""

from __future__ import annotations

from collections.abc import Collection

from longgraft.engine.detokenizer import Detokenizer
from longgraft.engine.step import FinishReason


class AnswerEnd:
    """The end of an answer: after `limit` tokens, with an end token or a stop token, or before a stop string.

    Stop strings are searched in the text, if there is a detokenizer.

    Args:
        limit: Most tokens of the answer.
        end_tokens: Tokens that end it with the reason eos.
        stop_tokens: Tokens that end it with the reason stop.
        detokenizer: Turns the answer into text; None: it has no text.

    Attributes:
        limit: As above.
        reason: Why the answer has ended; None while it goes on.
        stopped_by: The stop string or the stop token that ended it; None if none did.
    """

    def __init__(
        self,
        limit: int,
        end_tokens: Collection[int] = (),
        stop_tokens: Collection[int] = (),
        detokenizer: Detokenizer | None = None,
    ) -> None:
        self.limit = limit
        self.reason: FinishReason | None = None
        self.stopped_by: str | int | None = None
        self._end_tokens = frozenset(end_tokens)
        self._last_tokens = self._end_tokens | frozenset(stop_tokens)
        self._detokenizer = detokenizer

    def goes_on(self, new: Collection[int], emitted: int) -> bool:
        """Tells from new tokens alone if the answer goes on after them; False if a stop string may end it.

        Args:
            new: The new tokens.
            emitted: Number of the answer's tokens before them.
        """
        if self._detokenizer is not None and self._detokenizer.stop:
            return False
        return emitted + len(new) < self.limit and self._last_tokens.isdisjoint(new)

    def cut(self, new: list[int], emitted: int) -> tuple[list[int], str]:
        """Cuts new tokens after the one that ends the answer, if any, and sets the reason.

        Args:
            new: The new tokens.
            emitted: Number of the answer's tokens before them.

        Returns:
            The tokens of the answer among them, and their text as far as it is final.
        """
        last = next((place for place, token in enumerate(new) if token in self._last_tokens), None)
        if last is not None:
            self.reason = "eos" if new[last] in self._end_tokens else "stop"
            if self.reason == "stop":
                self.stopped_by = new[last]
            new = new[: last + 1]
        elif emitted + len(new) >= self.limit:
            self.reason = "length"
        if self._detokenizer is None:
            return new, ""
        return self._with_text(new, self._detokenizer)

    def _with_text(self, new: list[int], detokenizer: Detokenizer) -> tuple[list[int], str]:
        """Returns the tokens up to the one that completes a stop string, and their text."""
        pieces = []
        for count, token in enumerate(new, 1):
            if token not in self._last_tokens:  # some tokenizers would decode it to text
                pieces.append(detokenizer.push([token]))
            if detokenizer.stopped:
                self.reason = "stop"
                new = new[:count]
                break
        if self.reason is not None:
            pieces.append(detokenizer.finish())
            if detokenizer.stopped:  # the held-back last bytes may complete a stop string
                self.reason = "stop"
        if detokenizer.stopped:
            self.stopped_by = detokenizer.stopped_by
        return new, "".join(pieces)

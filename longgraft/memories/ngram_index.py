"""Which token followed the longest earlier occurrence of a context's end, in committed text and predictions.

Knows ids only.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from longgraft.memories.token_history import BETWEEN
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation

ORDER = 6       # tokens of the longest n-gram that is looked up; longer ones moved acceptance by less than 1 %
FAR = 32        # tokens to which a match is counted


class NgramIndex(Memory):
    """The committed tokens, the root included, and for each n-gram of up to `order` tokens the index of its successor.

    Of several occurrences of the longest n-gram the newest counts; it is then followed backwards up to `far` tokens
    (docs/choices.md, one ranking).  N-grams are found by hash, and then compared with the text.

    A prediction has n-grams of its own: the longer match counts, of equal ones the committed text's, unless both
    reach `far`: then the answer follows the prediction.
    """

    name = "successors"

    def __init__(self, order: int = ORDER, far: int = FAR) -> None:
        self.order, self.far = order, far
        self.reset(0)

    def reset(self, capacity: int) -> None:
        self.text: list[int] = []
        self._ends: list[dict[int, int]] = [{} for _ in range(self.order)]      # hash -> index of the successor
        self._before: list[list[int]] = [[] for _ in range(self.order)]       # per token: its n-grams' earlier indices
        self._predicted: NgramIndex | None = None

    def observe_prediction(self, tokens: Tensor) -> None:
        if self._predicted is None:
            self._predicted = NgramIndex(self.order, self.far)
        self._predicted.extend([*tokens.tolist(), BETWEEN])

    def observe(self, seen: Observation) -> None:
        kept = seen.kept.tolist()
        # The first one was the last observation's next token.
        self.extend([*(kept[1:] if self.text else kept), seen.next_token])

    def extend(self, tokens: Sequence[int]) -> None:
        """Committed, in order."""
        text, order = self.text, self.order
        for token in tokens:
            end = len(text)
            last = tuple(text[max(0, end - order):])
            for n, (ends, before) in enumerate(zip(self._ends, self._before, strict=True), 1):
                if n > end:
                    before.append(-1)
                    continue
                key = hash(last[-n:])
                before.append(ends.get(key, -1))
                ends[key] = end
            text.append(token)

    def after(self, context: Sequence[int], most: int) -> tuple[int, int]:
        """(tokens of the longest match of the context's end, the token that followed it); (0, -1) without a match.

        context: its last `far` tokens are enough; most: tokens of the longest n-gram that can match (a child's match
        is at most one longer than its parent's).
        """
        return self._better(self._after(context, most), context, most)

    def _better(self, own: tuple[int, int], context: Sequence[int], most: int) -> tuple[int, int]:
        """The better of the committed text's match and the prediction's."""
        if self._predicted is None:
            return own
        predicted = self._predicted.after(context, most)
        return predicted if predicted[1] >= 0 and (predicted[0] > own[0] or predicted[0] >= self.far) else own

    def _after(self, context: Sequence[int], most: int) -> tuple[int, int]:
        last = tuple(context[max(0, len(context) - self.order):])
        for n in range(min(len(last), most), 0, -1):
            at = self._ends[n - 1].get(hash(last[-n:]), -1)
            if at >= 0 and (found := self._length(context, len(context), at, n)):
                return found, self.text[at]
        return 0, -1

    def hits(self, last: int) -> list[tuple[int, bool]]:
        """For each of the `last` committed tokens: (tokens of the match before it, whether the match predicted it)."""
        text, longest = self.text, [*enumerate(self._before, 1)][::-1]
        found = []
        for end in range(max(1, len(text) - last), len(text)):
            match, at = next(((n, before[end]) for n, before in longest if before[end] >= 0), (0, -1))
            match = self._length(text, end, at, match) if match else 0
            own = (match, text[at]) if match else (0, -1)
            match, token = self._better(own, text[max(0, end - self.far):end], self.order)
            found.append((match, bool(match) and token == text[end]))
        return found

    def _length(self, context: Sequence[int], end: int, at: int, least: int) -> int:
        """How many tokens before `at` in the text equal those before `end` in the context; 0 where fewer than `least`.
        """
        text, n, most = self.text, 0, min(self.far, end, at)
        while n < most and text[at - n - 1] == context[end - n - 1]:
            n += 1
        return n if n >= least else 0

    def mark(self) -> int:
        return len(self.text)

    def rewind(self, mark: int) -> None:
        for end in range(len(self.text) - 1, mark - 1, -1):
            last = tuple(self.text[max(0, end - self.order):end])
            for n, (ends, before) in enumerate(zip(self._ends, self._before, strict=True), 1):
                at = before.pop()
                if n > end:
                    continue
                if at >= 0:
                    ends[hash(last[-n:])] = at
                else:
                    ends.pop(hash(last[-n:]), None)
        del self.text[mark:]

    def state(self) -> tuple[list[int], list[int]]:
        return self.text.copy(), [] if self._predicted is None else self._predicted.text.copy()

    def restore(self, state: tuple[list[int], list[int]]) -> None:
        self.reset(0)
        if state[1]:
            self._predicted = NgramIndex(self.order, self.far)
            self._predicted.extend(state[1])
        self.extend(state[0])

    def release(self) -> None:
        self.reset(0)

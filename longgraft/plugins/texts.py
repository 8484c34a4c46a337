"""The texts of an engine's requests, in bounded memory.

All of it depends on tokens and counted steps alone, so each rank of a tensor-parallel engine holds the same texts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from longgraft.kernels.build import NotBuilt
from longgraft.memories.continuations import Continuations, compiled, continuations
from longgraft.plugins.options import BYTES, TextOptions

Tokens = Sequence[int] | np.ndarray


class Text:
    """One request's text, which a thread begins to read.

    Attributes:
        length: Tokens of the request so far, prompt and answer.
        kept: Those of them that take memory.
        used: The last step that asked for the text.
        proposed: Tokens of the last proposal; 0 once a step has shown how many of them were right.
    """

    def __init__(self, tokens: Tokens, most: int, step: int, reader: ThreadPoolExecutor) -> None:
        end = np.array(tokens[-most:], np.int32)  # a copy: the engine goes on writing
        self.length = len(tokens)
        self.kept = len(end)
        self.used = step
        self.proposed = 0
        self._reading = reader.submit(_read, end)

    @property
    def model(self) -> Continuations:
        return self._reading.result()

    def extend(self, new: Tokens) -> None:
        self.model.extend(np.asarray(new).tolist())
        self.length += len(new)
        self.kept += len(new)


def _read(tokens: Any) -> Continuations:
    model = continuations()
    model.extend(tokens)
    model.answer()
    return model


class Texts:
    """Texts by key.

    Attributes:
        bytes: Bytes of all texts, as the options count them.

    Raises:
        RuntimeError: the ranking's C++ is not built, and no compiler is there.
    """

    def __init__(self, options: TextOptions) -> None:
        reason = compiled()
        if isinstance(reason, NotBuilt):
            raise RuntimeError(f"longgraft cannot rank the text: {reason}. Install a wheel that has its kernels.")
        self.options = options
        self._texts: dict[Hashable, Text] = {}  # the least recently used one first
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="longgraft")
        self._step = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._texts

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def bytes(self) -> int:
        return BYTES * sum(text.kept for text in self._texts.values())

    def begin_step(self) -> None:
        """Counts a step, and forgets idle texts."""
        self._step += 1
        self._make_room(0, self._step)
        for key, text in list(self._texts.items()):
            if text.used + self.options.idle_steps < self._step:
                self.forget(key)

    def _make_room(self, bytes: int, before: int) -> bool:
        """Forgets texts that were last used before this step, until there is room; tells if there is."""
        excess = self.bytes + bytes - self.options.all_bytes
        for key, text in list(self._texts.items()):
            if excess <= 0 or text.used >= before:
                break
            excess -= BYTES * text.kept
            self.forget(key)
        return excess <= 0

    def read(self, key: Hashable, tokens: Tokens) -> None:
        """Begins to read a text, if there is room beside those of running requests."""
        most = self.options.text_bytes * 3 // 4 // BYTES  # the last quarter is for the answer
        self.forget(key)
        if self._make_room(BYTES * min(len(tokens), most), self._step - 1):
            self._texts[key] = Text(tokens, most, self._step, self._reader)

    def get(self, key: Hashable) -> Text | None:
        """Returns a text that is used in this step; None if it is unknown or has no room for more."""
        text = self._texts.pop(key, None)
        if text is None or BYTES * text.kept > self.options.text_bytes:
            return None
        self._texts[key] = text
        text.used = self._step
        return text

    def forget(self, key: Hashable) -> None:
        self._texts.pop(key, None)

    def clear(self) -> None:
        self._texts.clear()

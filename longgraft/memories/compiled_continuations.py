"""`Continuations` in C++: the same numbers, about 25 times as fast."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from weakref import finalize

import numpy as np

from longgraft.kernels.build import NotBuilt, loaded, with_memory
from longgraft.memories.continuations import KEPT, LEVELS, Continuation, Continuations, RankedPaths


class CompiledContinuations:
    """The compiled version of `Continuations`, with the same interface."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        self._of = functions
        self._model = functions.longgraft_text_new()
        # Without atexit it would run at the interpreter's end, when a thread may still decode.
        finalize(self, functions.longgraft_text_free, self._model).atexit = False
        room = (1 + LEVELS) * KEPT
        self._after = np.empty(room, np.int32), np.empty(room), np.empty(room, np.int32), np.empty(1, np.int32)

    @property
    def run(self) -> int:
        return self._of.longgraft_text_run(self._model)

    def answer(self) -> None:
        self._of.longgraft_text_answer(self._model)

    def extend(self, tokens: Sequence[int]) -> None:
        given = np.asarray(tokens, dtype=np.int32)
        self._of.longgraft_text_extend(self._model, _at(given), len(given))

    def read(self, passage: Sequence[int]) -> None:
        given = np.asarray(passage, dtype=np.int32)
        self._of.longgraft_text_read(self._model, _at(given), len(given))

    def after(self, path: Sequence[int], run: int) -> tuple[list[Continuation], int]:
        given, (tokens, probabilities, newest, longest) = np.asarray(path, dtype=np.int32), self._after
        n = self._of.longgraft_text_after(
            self._model, _at(given), len(given), run, _at(tokens), _at(probabilities), _at(newest), _at(longest))
        return [Continuation(*one) for one in zip(tokens[:n].tolist(), probabilities[:n].tolist(),
                                                  map(bool, newest[:n].tolist()), strict=True)], int(longest[0])

    def rank(self, floors: Sequence[float]) -> RankedPaths:
        budget = len(floors)
        tokens, parents, orders = (np.empty(budget, np.int32) for _ in range(3))
        probabilities = np.empty(budget)
        n = self._of.longgraft_text_rank(
            self._model, budget, _at(np.asarray(floors, dtype=np.float64)), _at(tokens), _at(parents),
            _at(probabilities), _at(orders))
        return tokens[:n].tolist(), parents[:n].tolist(), probabilities[:n].tolist(), orders[:n].tolist()


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)        # the pointer keeps the array alive


def continuations() -> Continuations | CompiledContinuations:
    """Returns the model of an empty text, compiled if possible."""
    functions = compiled()
    return Continuations() if isinstance(functions, NotBuilt) else CompiledContinuations(functions)


@cache
def compiled() -> ctypes.CDLL | NotBuilt:
    """Returns the compiled functions, or the reason why there are none; a build is tried once."""
    try:
        functions = loaded(Path(__file__).with_name("continuations.cpp"))
    except NotBuilt as error:
        return error
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name, result, given in (
            ("new", pointer, []), ("free", None, [pointer]), ("answer", number, [pointer]), ("run", number, [pointer]),
            ("extend", number, [pointer, pointer, number]), ("read", number, [pointer, pointer, number]),
            ("rank", number, [pointer, number, *[pointer] * 5]),
            ("after", number, [pointer, pointer, number, number, *[pointer] * 4])):
        function = getattr(functions, f"longgraft_text_{name}")
        function.restype, function.argtypes = result, given
        if name not in ("free", "run"):
            function.errcheck = with_memory
    return functions

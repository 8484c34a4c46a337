"""Replaces the forwards of a model's modules for the time of a pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

Forward = Callable[..., Any]


class ModuleOverride:
    """Equivalent forwards of a model's modules, active inside a `with` block of this object.

    Args:
        model: The model.
        replacement: Module -> a function that equals its forward; None keeps its own.
    """

    def __init__(self, model: nn.Module, replacement: Callable[[nn.Module], Forward | None]) -> None:
        self._thread = 0
        self._forwards = []  # (a module's attributes, its forward)
        for module in model.modules():
            equivalent = replacement(module)
            if equivalent is not None:
                self._forwards.append((module.__dict__, self._in_thread(equivalent, module)))

    def _in_thread(self, equivalent: Forward, module: nn.Module) -> Forward:
        """Returns `equivalent` for the thread of the pass, and the module's own forward for any other."""
        ordinary = type(module).forward

        def forward(*args: Any, **named: Any) -> Any:
            if threading.get_ident() == self._thread:
                return equivalent(*args, **named)
            return ordinary(module, *args, **named)

        return forward

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Puts the forwards in place until the block ends, in this thread only; one block at a time.

        A call of a module looks up `forward` on the instance before the class.  An instance that has one
        keeps it.
        """
        self._thread = threading.get_ident()
        placed = [attributes for attributes, _ in self._forwards if "forward" not in attributes]
        try:
            for attributes, forward in self._forwards:
                attributes.setdefault("forward", forward)
            yield
        finally:
            self._thread = 0
            for attributes in placed:
                del attributes["forward"]

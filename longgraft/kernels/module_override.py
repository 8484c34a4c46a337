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

    replacement: module -> a function that equals its forward; None keeps its own
    """

    def __init__(self, model: nn.Module, replacement: Callable[[nn.Module], Forward | None]) -> None:
        self._thread = 0
        self._ours = [(module.__dict__, self._in_thread(found, module)) for module in model.modules()
                      if (found := replacement(module)) is not None]

    def _in_thread(self, found: Forward, module: nn.Module) -> Forward:
        """`found` in the thread of the pass, and the module's own forward in any other."""
        ordinary = type(module).forward
        return lambda *args, **named: (found(*args, **named) if threading.get_ident() == self._thread
                                       else ordinary(module, *args, **named))

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Active until the block ends, in this thread only; one block at a time.

        A call of a module looks up `forward` on the instance before the class.  An instance that has one keeps it.
        """
        self._thread = threading.get_ident()
        placed = [own for own, _ in self._ours if "forward" not in own]
        try:
            for own, forward in self._ours:
                own.setdefault("forward", forward)
            yield
        finally:
            self._thread = 0
            for own in placed:
                del own["forward"]

"""Other ways to compute a model's modules, in their places for the time of a pass.  Knows modules; knows no kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

Forward = Callable[..., Any]


class ModuleOverride:
    """Forwards of a model's modules, which are computed as `way` says where a pass of ours asks for it, and only there.

    way: module -> what equals its own forward, or None: its own.
    """

    def __init__(self, model: nn.Module, way: Callable[[nn.Module], Forward | None]) -> None:
        self._thread = 0
        self._ours = [(module.__dict__, self._here(found, module)) for module in model.modules()
                      if (found := way(module)) is not None]

    def _here(self, found: Forward, module: nn.Module) -> Forward:
        """`found` in the thread of the pass, and the module's own in any other."""
        ordinary = type(module).forward
        return lambda *args, **named: (found(*args, **named) if threading.get_ident() == self._thread
                                       else ordinary(module, *args, **named))

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Until the block ends; one at a time, and only in this thread.

        An instance's `forward` is what calling a module looks up, before its class's.  Modules that have one of their
        own keep it.
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

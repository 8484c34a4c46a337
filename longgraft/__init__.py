"""longgraft: exact long-context decoding in fewer passes.

`generate(prompt)` answers a prompt, `complete(repo, file, line)` completes code in a file, and `load(...)` keeps a
model ready.  Importing this package loads nothing heavy.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longgraft.acceptance.sampling import Sampling
    from longgraft.completion.completer import Completion, complete
    from longgraft.config.settings import HeadOverrides
    from longgraft.engine.session import Generation, Session
    from longgraft.engine.side_by_side import generate_all
    from longgraft.loading import generate, load
    from longgraft.transformers_generate import custom_generate

__version__ = "0.2.0"
__all__ = ["Completion", "Generation", "HeadOverrides", "Sampling", "Session", "complete", "custom_generate",
           "generate", "generate_all", "load"]

_HOME = {"generate": "loading", "generate_all": "engine.side_by_side", "load": "loading",
         "custom_generate": "transformers_generate",
         "complete": "completion.completer", "Completion": "completion.completer",
         "HeadOverrides": "config.settings", "Sampling": "acceptance.sampling",
         "Session": "engine.session", "Generation": "engine.session"}

# Modules of 0.1.0 that external methods were told to import, and the modules that replace them.
_MOVED = {"method": "methods.method", "observation": "protocol.observation",
          "proposer": "protocol.proposer, protocol.memory and protocol.pruning", "tree": "trees.tree",
          "padded": "trees.padded", "options": "config.options", "needs": "methods.needs", "parts": "methods.parts",
          "compose": "methods.combinators", "drafters.policies": "drafters.pruning", "settings": "config.settings",
          "sampling": "acceptance.sampling", "session": "engine.session"}


def __getattr__(name: str) -> Any:
    """Imports public names at first use: torch and transformers take seconds."""
    if name not in _HOME:
        raise AttributeError(f"module 'longgraft' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"longgraft.{_HOME[name]}"), name)


class _Moved:
    """The last of the import system's finders; it tells where an old name of ours is now."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if (now := _MOVED.get(name.removeprefix("longgraft."))) and name.startswith("longgraft."):
            raise ModuleNotFoundError(f"{name} is now in longgraft's {now}. Import it from there.", name=name)


sys.meta_path.append(_Moved)        # type: ignore[arg-type]

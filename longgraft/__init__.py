"""longgraft: exact long-context decoding in fewer passes.

`generate(prompt)` answers, `complete(repo, file, line)` goes on in a file; `load(...)` keeps a model ready.  Importing
this package loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longgraft.acceptance.sampling import Sampling
    from longgraft.completion.completer import Completion, complete
    from longgraft.config.settings import HeadOverrides
    from longgraft.engine.session import Generation, Session
    from longgraft.loading import custom_generate, generate, load

__version__ = "0.1.0"
__all__ = ["Completion", "Generation", "HeadOverrides", "Sampling", "Session", "complete", "custom_generate",
           "generate", "load"]

_HOME = {"generate": "longgraft.loading", "load": "longgraft.loading", "custom_generate": "longgraft.loading",
         "complete": "longgraft.completion.completer", "Completion": "longgraft.completion.completer",
         "HeadOverrides": "longgraft.config.settings", "Sampling": "longgraft.acceptance.sampling",
         "Session": "longgraft.engine.session", "Generation": "longgraft.engine.session"}


def __getattr__(name: str) -> Any:
    """Public names are imported when first used: torch and transformers take seconds."""
    if name not in _HOME:
        raise AttributeError(f"module 'longgraft' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)

"""longgraft: exact long-context decoding in fewer passes.

`generate(prompt)` answers a prompt, `complete(repo, file, line)` completes code in a file, and `load(...)` keeps a
model ready.  Importing this package loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longgraft.config.version import VERSION

if TYPE_CHECKING:
    from longgraft.acceptance.sampling import Sampling
    from longgraft.completion.completer import Completion, complete
    from longgraft.config.settings import HeadOverrides
    from longgraft.engine.session import Generation, Session
    from longgraft.engine.side_by_side import generate_all
    from longgraft.loading import generate, load
    from longgraft.transformers_generate import custom_generate

__version__ = VERSION
__all__ = [
    "Completion",
    "Generation",
    "HeadOverrides",
    "Sampling",
    "Session",
    "complete",
    "custom_generate",
    "generate",
    "generate_all",
    "load",
]

_HOME = {
    "generate": "loading",
    "generate_all": "engine.side_by_side",
    "load": "loading",
    "custom_generate": "transformers_generate",
    "complete": "completion.completer",
    "Completion": "completion.completer",
    "HeadOverrides": "config.settings",
    "Sampling": "acceptance.sampling",
    "Session": "engine.session",
    "Generation": "engine.session",
}


def __dir__() -> list[str]:
    """Lists the public names, which are imported at first use."""
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
    """Imports public names at first use: torch and transformers take seconds."""
    if name not in _HOME:
        raise AttributeError(f"module 'longgraft' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"longgraft.{_HOME[name]}"), name)

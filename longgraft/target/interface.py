"""Our attention under transformers' attention interface.  Knows its signature and our backends; knows no model."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from longgraft.attention.backends import BACKENDS, dense
from longgraft.attention.layout import Layout

NAME = "longgraft"
UNKNOWN = ("s_aux", "sinks", "position_bias", "head_mask")


@dataclass
class Run:
    """What attention needs to know of the running forward."""

    layout: Layout
    backend: str
    calls: int = 0


_GUARD = RLock()
_LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
RUNNING: ContextVar[Run | None] = ContextVar("longgraft_run", default=None)


def lock_of(model: nn.Module) -> Any:
    """The lock under which a pass has this model to itself: attention and hooks belong to a model, not to a thread."""
    with _GUARD:
        return _LOCKS.setdefault(model, RLock())


def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
               scaling: float | None = None, sliding_window: int | None = None, softcap: float | None = None,
               **more: Any) -> tuple[Tensor, None]:
    """transformers' attention signature; key and value are the cache's whole buffers [1, Hkv, capacity, D].

    Whatever a model passes beyond what the kernels compute would be lost without a word, so it is an error.
    """
    run = RUNNING.get()
    if run is None:
        raise RuntimeError(f"{type(module).__name__} was called while longgraft decodes with the same model in another "
                           "thread. Wait for it, or load a second model.")
    run.calls += 1
    if lost := [name for name in UNKNOWN if more.get(name) is not None]:
        raise ValueError(f"{type(module).__name__} passes {', '.join(lost)} to its attention, which longgraft does "
                         "not compute (attention sinks, biases). This model cannot be used.")
    if attention_mask is None or attention_mask.numel() != 1:
        raise ValueError(f"{type(module).__name__} makes an attention mask of its own, which a tree would break. "
                         "This model cannot be used.")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if softcap is not None:
        # No fused kernel caps logits and returns what `split` needs; the reference does it, at any device.
        out = dense(query, key, value, run.layout, scale, sliding_window, softcap)
    else:
        out = BACKENDS[run.backend](query, key, value, run.layout, scale, sliding_window)
    return out.transpose(1, 2), None

"""Our attention and masks under transformers' interfaces.  Knows their signatures and our backends; knows no model.

A model's mask comes down to one number, its window, and is handed to the layers as that.  So the windows are the
model's own, also where its layers do not pass them to their attention.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from longgraft.attention.backends import Backend, dense, triton
from longgraft.attention.layout import DeviceLayout, Layout

NAME = "longgraft"
IDLE = {"dropout", "position_ids", "cache_position", "use_cache", "logits_to_keep"}   # change no attention
HOST = torch.device("cpu")
ROWS = torch.tensor([[(1 << 40) + 1_234_567], [(1 << 40) + 89]], device=HOST)   # where masks are asked, far from edges
BACK = torch.tensor([0, *(1 << k for k in range(40))], device=HOST)             # how far back, at first
OWN_RULE = "The model masks by more than a window, which a tree would break. This model cannot be used."


@dataclass
class Run:
    """What attention needs to know of the running forward.

    last: of how many of the last rows queries are taken; queries: layer -> [Hq, last, D] rotated, as they come
    """

    layout: Layout | DeviceLayout
    backend: Backend
    last: int = 0
    calls: int = 0
    queries: dict[int, Tensor] = field(default_factory=dict)


_GUARD = RLock()
_LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
RUNNING: ContextVar[Run | None] = ContextVar("longgraft_run", default=None)


def lock_of(model: nn.Module) -> Any:
    """The lock under which a pass has this model to itself: attention and hooks belong to a model, not to a thread."""
    with _GUARD:
        return _LOCKS.setdefault(model, RLock())


def running() -> Run:
    """The running forward of this thread."""
    if (run := RUNNING.get()) is None:
        raise RuntimeError("The model was called while longgraft decodes with it in another thread. "
                           "Wait for it, or load a second model.")
    return run


def mask(*_: Any, mask_function: Callable[..., Tensor], **__: Any) -> Tensor:
    """transformers' mask signature -> the mask's window, int64 [1, 1, 1, 1] on the host; 0 where it has none."""
    running()
    return torch.tensor(window_of(mask_function), device=HOST).view(1, 1, 1, 1)


@lru_cache(maxsize=8)     # what is no closure, the plain causal mask, is asked once
def window_of(mask_function: Callable[..., Tensor]) -> int:
    """How many columns each row sees, itself included; 0 where it sees all before it.

    mask_function: (batch, head, row, column) -> bool, as transformers' masking_utils has them.
    """
    near = _seen(mask_function, BACK)
    if near.all():
        return 0
    last, first_hidden = BACK[near][-1:], BACK[~near][:1]
    return int(last + _seen(mask_function, torch.arange(int(last), int(first_hidden), device=HOST)).sum())


def _seen(mask_function: Callable[..., Tensor], back: Tensor) -> Tensor:
    """[m] bool: whether a row sees the column so far back [m], the same for every row, and none behind a hidden one."""
    try:
        seen = torch.as_tensor(mask_function(0, 0, ROWS, ROWS - back)).expand(len(ROWS), len(back))
        ahead = torch.as_tensor(mask_function(0, 0, ROWS, ROWS + 1))
    except IndexError as error:
        raise ValueError(OWN_RULE) from error       # it looks tokens up, to open blocks for images or packed texts
    if ahead.any() or not (seen == seen[0]).all() or not bool(seen[0, 0]) or (seen[0, 1:] > seen[0, :-1]).any():
        raise ValueError(OWN_RULE)
    return seen[0]


def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
               scaling: float | None = None, sliding_window: int | None = None, softcap: float | None = None,
               **more: Any) -> tuple[Tensor, None]:
    """transformers' attention signature; key and value are the cache's whole buffers [1, Hkv, capacity, D].

    Whatever a model passes beyond what the kernels compute would be lost without a word, so it is an error.
    """
    run = running()
    if run.last:
        run.queries[run.calls] = query[0, :, -run.last:].contiguous()       # a view would hold those of a whole chunk
    run.calls += 1
    if lost := sorted(name for name in more.keys() - IDLE if more[name] is not None and more[name] is not False):
        raise ValueError(f"{type(module).__name__} passes {', '.join(lost)} to its attention, which longgraft does "
                         "not compute. This model cannot be used.")
    if attention_mask is None or attention_mask.shape != (1, 1, 1, 1) or attention_mask.dtype != torch.int64:
        raise ValueError(f"{type(module).__name__} makes an attention mask of its own, which a tree would break. "
                         "This model cannot be used.")
    window = int(attention_mask) or None
    if sliding_window and sliding_window != window:
        raise ValueError(f"{type(module).__name__} masks by a window of {window} and passes {sliding_window} to its "
                         "attention, so what it says depends on the kernel. This model cannot be used.")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if softcap is not None:
        # No kernel but ours caps logits; the reference does it, on any device.
        capped = triton if run.backend is triton else dense
        out = capped(query, key, value, run.layout, scale, window, softcap)
    else:
        out = run.backend(query, key, value, run.layout, scale, window)
    # Contiguous as transformers' own: some models view it, and all others would copy it next.
    return out.transpose(1, 2).contiguous(), None

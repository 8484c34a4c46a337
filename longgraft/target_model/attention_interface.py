"""Our attention and masks behind transformers' interfaces.

A model's mask is reduced to one number, its window, which the layers receive as their mask.  So each layer
has the model's own window, even if it does not pass the window to its attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from longgraft.attention.backends import Backend, dense, split, triton
from longgraft.attention.layout import DeviceLayout, Layout
from longgraft.runtime.byte_rows import BYTES, numbers_of, packed_size

NAME = "longgraft"
# Arguments without effect.
IDLE = {"dropout", "position_ids", "cache_position", "use_cache", "logits_to_keep"}
HOST = torch.device("cpu")
# Rows at which masks are probed.
ROWS = torch.tensor([[(1 << 40) + 1_234_567], [(1 << 40) + 89]], device=HOST)
# Distances to the columns that are probed first.
BACK = torch.tensor([0, *(1 << k for k in range(40))], device=HOST)
# The window of a mask that hides everything from every row: some families make one that no layer uses.
NOTHING = -1
OWN_RULE = "The model masks by more than a window, which a tree would break. This model cannot be used."


@dataclass
class PassContext:
    """The state of the running forward pass that attention reads.

    Attributes:
        layouts: Layouts of the sequences whose rows the pass has, one after another.
        backend: What computes attention.
        last: Number of last rows whose queries are recorded.
        calls: Number of layers that have run.
        queries: Layer -> [Hq, last, D], after rotary embedding.
    """

    layouts: Sequence[Layout | DeviceLayout]
    backend: Backend
    last: int = 0
    calls: int = 0
    queries: dict[int, Tensor] = field(default_factory=dict)


_GUARD = RLock()
_LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
RUNNING: ContextVar[PassContext | None] = ContextVar("longgraft_run", default=None)


def lock_of(model: nn.Module) -> Any:
    """Returns the lock that gives one pass the model to itself: attention and hooks belong to the model,
    not a thread."""
    with _GUARD:
        return _LOCKS.setdefault(model, RLock())


def running() -> PassContext:
    """Returns the running forward of this thread; raises RuntimeError if there is none."""
    run = RUNNING.get()
    if run is None:
        raise RuntimeError(
            "The model was called while longgraft decodes with it in another thread. Wait for "
            "it, or load a second model."
        )
    return run


def mask(*_: Any, mask_function: Callable[..., Tensor], **__: Any) -> Tensor:
    """Takes the place of transformers' mask function; returns the mask's window, int64 [1, 1, 1, 1], 0 for no
    window."""
    running()
    return torch.tensor(window_of(mask_function), device=HOST).view(1, 1, 1, 1)


@lru_cache(maxsize=8)  # hits only for masks that are not closures, such as the plain causal mask
def window_of(mask_function: Callable[..., Tensor]) -> int:
    """Returns how many columns each row sees, including its own; 0 if it sees all before it, NOTHING if it sees none.

    mask_function: (batch, head, row, column) -> bool, as in transformers' masking_utils
    """
    visible = _visible(mask_function, BACK)
    if visible.all():
        return 0
    if not visible.any():
        return NOTHING
    last_visible = BACK[visible][-1:]
    first_hidden = BACK[~visible][:1]
    between = torch.arange(int(last_visible), int(first_hidden), device=HOST)
    return int(last_visible + _visible(mask_function, between).sum())


def _visible(mask_function: Callable[..., Tensor], back: Tensor) -> Tensor:
    """Returns [m] bool: True if a row sees the column that is `back` [m] columns before it.

    Raises:
        ValueError: the rows do not all see the same contiguous range.
    """
    try:
        visible = torch.as_tensor(mask_function(0, 0, ROWS, ROWS - back)).expand(len(ROWS), len(back))
        ahead = torch.as_tensor(mask_function(0, 0, ROWS, ROWS + 1))
    except IndexError as error:
        # The mask looks up tokens: blocks for images or packed texts.
        raise ValueError(OWN_RULE) from error
    if ahead.any() or not (visible == visible[0]).all() or (visible[0, 1:] > visible[0, :-1]).any():
        raise ValueError(OWN_RULE)
    return visible[0]


def attention(
    module: nn.Module,
    query: Tensor,
    key: Any,
    value: Any,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Computes attention, with the signature of transformers' attention functions.

    key and value are the cache's whole buffers [1, Hkv, capacity, D], or a tuple of them for several
    sequences; rows of bytes are packed.  For latents, which the model expands, they are the written rows of
    all sequences in one tensor.

    Raises:
        ValueError: an argument is set that the kernels would ignore, or the model's mask is not a plain
            window.
    """
    run = running()
    if run.last:
        # A view would keep the whole chunk.
        run.queries[run.calls] = query[0, :, -run.last :].contiguous()
    run.calls += 1
    name = type(module).__name__
    _refuse_ignored(name, more)
    window = _window_of_layer(name, attention_mask, sliding_window)
    sinks = s_aux if sinks is None else sinks  # gpt-oss and MiMo pass s_aux
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling

    def attended(q: Tensor, k: Tensor, v: Tensor, layout: Any) -> Tensor:
        if k.dtype == BYTES and not k.shape[3] == v.shape[3] == packed_size(q.shape[3]):
            raise ValueError(
                f"{name} rearranges the rows of its cache, which are bytes that only attention "
                "reads. Leave --kv-dtype int8 out."
            )
        size = v.shape[3]
        # Kernels need one head size; padding with zeros changes no score and no value.
        if k.shape[3] != size:
            widest = max(k.shape[3], size)
            q, k, v = (nn.functional.pad(rows, (0, widest - rows.shape[3])) for rows in (q, k, v))
        if sinks is not None and run.backend is not triton:
            keys = numbers_of(k, q.dtype)
            values = numbers_of(v, q.dtype)
            return split(q, keys, values, layout, scale, window, sinks=sinks)
        if softcap is None and sinks is None:
            return run.backend(q, k, v, layout, scale, window)[..., :size]
        # Only our Triton kernel has a softcap; elsewhere the reference computes it.
        full = triton if run.backend is triton else dense
        keys = numbers_of(k, q.dtype)
        values = numbers_of(v, q.dtype)
        return full(q, keys, values, layout, scale, window, softcap, sinks)[..., :size]

    if len(run.layouts) == 1:
        out = attended(query, key, value, run.layouts[0])
    else:
        layouts: Any = run.layouts  # no layout has a fixed shape here
        if isinstance(key, Tensor):  # expanded latents
            ends = [layout.end for layout in layouts]
            key = key.split(ends, dim=2)
            value = value.split(ends, dim=2)
        queries = query.split([layout.rows for layout in layouts], dim=2)
        out = torch.cat(list(map(attended, queries, key, value, layouts)), dim=2)
    # Contiguous as in transformers: some models view the result, and all others would copy it next.
    return out.transpose(1, 2).contiguous(), None


def _refuse_ignored(name: str, more: dict[str, Any]) -> None:
    """Raises ValueError if a module passes arguments that our attention would ignore."""
    ignored = sorted(key for key in more.keys() - IDLE if more[key] is not None and more[key] is not False)
    if ignored:
        raise ValueError(
            f"{name} passes {', '.join(ignored)} to its attention, which longgraft does not "
            "compute. This model cannot be used."
        )


def _window_of_layer(name: str, attention_mask: Tensor | None, sliding_window: int | None) -> int | None:
    """Returns the window of a layer's mask, None for no window; raises ValueError if it has another mask."""
    if attention_mask is None or attention_mask.shape != (1, 1, 1, 1) or attention_mask.dtype != torch.int64:
        raise ValueError(
            f"{name} makes an attention mask of its own, which a tree would break. This model cannot be used."
        )
    window = int(attention_mask) or None
    if window == NOTHING:
        raise ValueError(OWN_RULE)
    if sliding_window and sliding_window != window:
        raise ValueError(
            f"{name} masks by a window of {window} and passes {sliding_window} to its "
            "attention, so its outputs depend on the kernel. This model cannot be used."
        )
    return window


def configs_of(model: nn.Module) -> list[Any]:
    """Returns the configurations that name the attention of a model's parts."""
    owners = [m for m in model.modules() if isinstance(m, PreTrainedModel)]
    return list({id(m.config): m.config for m in owners}.values())


@contextmanager
def engaged(model: nn.Module, configs: list[Any], run: PassContext) -> Iterator[None]:
    """Replaces a model's attention by ours until the block ends; one pass at a time per model.

    transformers' public `set_attn_implementation` walks over all modules, which took 0.6 to 10 ms for
    the embedded model.
    """
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
    with lock_of(model):
        before = [config._attn_implementation_internal for config in configs]
        token = RUNNING.set(run)
        try:
            for config in configs:
                config._attn_implementation_internal = NAME
            yield
        finally:
            RUNNING.reset(token)
            for config, name in zip(configs, before, strict=True):
                config._attn_implementation_internal = name

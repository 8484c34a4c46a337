"""Decoder layers of the common form in nine launches, in passes of fixed shape on a GPU.

A layer is recognised by its parts, and `fused_model` tries it before it is used.  Other layers, and other passes, run
the layer's own code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from longgraft.attention.layout import DeviceLayout
from longgraft.kernels.head_norms import HeadNorms
from longgraft.runtime.kv_cache import KVCache
from longgraft.runtime.kv_pool import SCRATCH
from longgraft.target_model.attention_interface import RUNNING, running
from longgraft.target_model.common_form import OF_HEADS, PLAIN, CommonForm, Parts, usual_call
from longgraft.target_model.fused_modules import Kernels
from longgraft.target_model.module_forms import DTYPES

MOST_ROWS = SCRATCH  # rows of the largest pass of fixed shape; longer chunks are prompts, which torch multiplies


def covered(form: CommonForm) -> bool:
    """True if nine launches compute all of this form: two norms, with or without norms of heads."""
    linear = form.linear
    biased = {linear[name].bias is None for name in ("q", "k", "v")}
    of_heads = [form.norms[name][1:] for name in OF_HEADS if name in form.norms]
    return (
        not form.blocks
        and form.dtype in DTYPES
        and form.norms.keys() - OF_HEADS.keys() == PLAIN.keys()
        and len(of_heads) in (0, 2)
        and len(set(of_heads)) < 2
        and len(biased) == 1
        and linear["gate"].bias is None
        and linear["up"].bias is None
        and form.size % 2 == 0
    )


@dataclass
class FusedLayer:
    """A decoder layer's forward: nine launches in a pass of fixed shape, and otherwise its own code.

    Attributes:
        module: The layer.
        form: Its parts.
        kernels: What computes them.
        cache_name: Name of the argument that is the cache.
        used: False: its own code always runs.
    """

    module: nn.Module
    form: CommonForm
    kernels: Kernels
    cache_name: str
    used: bool = True
    _parts: Parts = field(init=False)

    def __post_init__(self) -> None:
        self._parts = Parts(self.module)

    @property
    def window(self) -> int:
        """The window that its own code passes to attention, 0 for none; that of the mask must be the same."""
        attention: Any = self.module._modules["self_attn"]
        everywhere = getattr(attention.config, "sliding_window", None)
        return getattr(attention, "sliding_window", everywhere) or 0

    def forward(
        self,
        hidden_states: Tensor,
        *args: Any,
        attention_mask: Tensor | None = None,
        position_embeddings: Any = None,
        **named: Any,
    ) -> Any:
        """Computes the layer, with the signature of transformers' decoder layers."""
        cache: Any = named.get(self.cache_name)
        others = {name: value for name, value in named.items() if name != self.cache_name}
        if (
            self.used
            and not args
            and usual_call(self.form, hidden_states, attention_mask, position_embeddings, others)
            and self._window_fits(attention_mask)
            and self._inputs_fit(hidden_states, *position_embeddings)
            and self._fixed(cache)
            and self._parts.unchanged()
            and self.form.fits()
            and covered(self.form)
        ):
            return self.compute(hidden_states, position_embeddings, cache, attention_mask)
        own: Any = type(self.module).forward
        return own(
            self.module,
            hidden_states,
            *args,
            attention_mask=attention_mask,
            position_embeddings=position_embeddings,
            **named,
        )

    def _window_fits(self, mask: Any) -> bool:
        return self.window in (0, int(mask))

    def _inputs_fit(self, x: Tensor, cos: Tensor, sin: Tensor) -> bool:
        form = self.form
        return (
            not torch.is_grad_enabled()
            and x.shape[1] <= MOST_ROWS
            and x.dtype == form.dtype
            and x.is_contiguous()
            and cos.dtype == sin.dtype
            and cos.dtype in (form.dtype, torch.float32)
            and cos.stride(2) == sin.stride(2) == 1
            and x.device == cos.device == sin.device == form.device
        )

    def _fixed(self, cache: Any) -> bool:
        """True in a pass of fixed shape over a cache whose buffers hold plain numbers."""
        run = RUNNING.get()
        if run is None or run.last or len(run.layouts) > 1 or not isinstance(run.layouts[0], DeviceLayout):
            return False
        if not isinstance(cache, KVCache) or cache.rows is None:
            return False
        buffers = cache.layers[self.form.index]
        return buffers.is_initialized and buffers.keys.dtype == self.form.dtype

    def compute(self, x: Tensor, tables: tuple[Tensor, Tensor], cache: KVCache, mask: Any) -> Tensor:
        """Computes x [1, n, hidden] in nine launches, of which attention takes two."""
        run = running()
        form = self.form
        kernels = self.kernels
        rows: Any = cache.rows
        buffers = cache.layers[form.index].keys, cache.layers[form.index].values
        qkv = kernels.product(self._normed("before_attention", x[0]), *self._weights("q", "k", "v"))
        q = kernels.rope_write(qkv, tables, buffers, rows, self._head_norms())
        attended = run.backend(q, *buffers, run.layouts[0], form.scale, int(mask) or None)
        run.calls += 1
        joined = attended.transpose(1, 2).reshape(x.shape[1], -1)
        middle = kernels.product(joined, *self._weights("o"), x[0])
        (gate, up), _ = self._weights("gate", "up")
        gated = kernels.gated_product(self._normed("before_gate", middle), gate, up, form.activation)
        return kernels.product(gated, *self._weights("down"), middle)[None]

    def _normed(self, name: str, x: Tensor) -> Tensor:
        norm, form, epsilon = self.form.norms[name]
        weight: Any = norm.weight
        return self.kernels.norm(x, weight, epsilon, form)

    def _weights(self, *names: str) -> tuple[list[Tensor], list[Tensor | None]]:
        modules = [self.form.linear[name] for name in names]
        return [module.weight for module in modules], [module.bias for module in modules]

    def _head_norms(self) -> HeadNorms | None:
        if "of_q" not in self.form.norms:
            return None
        q: Any
        k: Any
        q, form, epsilon = self.form.norms["of_q"]
        k, _, _ = self.form.norms["of_k"]
        return HeadNorms(q.weight, k.weight, epsilon, form)

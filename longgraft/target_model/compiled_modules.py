"""An unmodified model's linear modules, norms and whole decoder layers, computed by a CPU's compiled kernels in a pass.

Knows modules, their forms and the pass; knows no arithmetic.  A decoder layer of the common form is one call; it is
recognised by its parts, and must once give what the model's own code gives.  Other layers keep their own code.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from longgraft.attention.layout import Layout
from longgraft.kernels.cpu import DTYPES, CpuKernels, DecoderLayer, DescribedLayer, Integers, Linear, fits
from longgraft.kernels.module_override import Forward, ModuleOverride
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.attention_interface import IDLE, running
from longgraft.target_model.module_forms import gate_of, norm_of

SANDWICH = {"before_attention": "input_layernorm", "after_attention": "post_attention_layernorm",
            "before_gate": "pre_feedforward_layernorm", "after_gate": "post_feedforward_layernorm"}     # Gemma 2 and 3
PLAIN = {"before_attention": "input_layernorm", "before_gate": "post_attention_layernorm"}
ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
GATED = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
OF_HEADS = {"of_q": "q_norm", "of_k": "k_norm"}
# Attributes that do not change what a layer computes, or are heeded: windows come with the mask.
KNOWN = {"training", "config", "layer_idx", "hidden_size", "intermediate_size", "head_dim", "num_key_value_groups",
         "scaling", "attention_dropout", "is_causal", "is_sliding", "sliding_window", "layer_type", "attention_type",
         "num_heads", "num_key_value_heads", "max_position_embeddings", "in_features", "out_features"}
TOLERANCE = 1e-3        # of what a layer adds to a row
HALF_TOLERANCE = 3e-2   # in bfloat16, or with integers, where a rounding may fall on the other side


class CompiledModules:
    """Active inside a `with` block of this object, and only there.

    Only plain modules: quantised or wrapped ones keep their own forwards.
    """

    def __init__(self, model: nn.Module, kernels: CpuKernels, integers: Integers | None = None) -> None:
        self.kernels, self._model = kernels, model
        own = dict(model.named_parameters())
        self._integers = {id(own[name]): packed for name, packed in (integers.packed if integers else {}).items()}
        self._layers: list[_Layer] = []
        self._override = ModuleOverride(model, self._replacement)

    def _replacement(self, module: nn.Module) -> Callable[..., Any] | None:
        """A replacement for the module's forward, which reads its parameters at each call; None: no replacement."""
        own: Any = module._parameters
        ordinary = type(module).forward
        if type(module) is nn.Linear and (packed := self._integers.get(id(module.weight))):
            return lambda x: self.kernels.integer_product(x, packed, own["bias"])
        if type(module) is nn.Linear and type(module.weight) is nn.Parameter:
            return lambda x: self.kernels.product(x, own["weight"], own["bias"])
        if "self_attn" in module._modules and (layer := self._layer(module)) is not None:
            self._layers.append(layer)
            return layer.forward
        if (found := norm_of(module)) is not None and own["weight"].dtype in DTYPES:
            form, epsilon = found
            return lambda x: (self.kernels.norm(x, own["weight"], epsilon, form)
                              if fits(x, own["weight"], dtype=own["weight"].dtype) else ordinary(module, x))
        return None

    def _layer(self, module: nn.Module) -> _Layer | None:
        parts: dict[str, Any] = module._modules
        attention, gated = parts["self_attn"], parts.get("mlp")
        names = next((names for names in (PLAIN, SANDWICH)
                      if parts.keys() == {"self_attn", "mlp", *names.values()}), None)
        if names is None or gated is None or not all(map(_unaltered, (module, attention, gated))):
            return None
        norms = {name: parts[of] for name, of in names.items()}
        norms |= {name: attention._modules[of] for name, of in OF_HEADS.items() if of in attention._modules}
        linear = ({name: attention._modules.get(of) for name, of in ATTENTION.items()}
                  | {name: gated._modules.get(of) for name, of in GATED.items()})
        forms = {name: form for name, norm in norms.items() if (form := norm_of(norm)) is not None}
        activation, size = gate_of(gated), getattr(attention, "head_dim", 0)
        scale = getattr(attention, "scaling", None)
        if (forms.keys() != norms.keys() or activation is None or not size or size % self.kernels.lanes or scale is None
                or attention._modules.keys() - {*ATTENTION.values(), *OF_HEADS.values()}
                or any(type(one) is not nn.Linear or not _unaltered(one) for one in linear.values())):
            return None

        def described() -> DescribedLayer:
            every: dict[str, Linear] = {name: (one.weight, one.bias, self._integers.get(id(one.weight)))
                                        for name, one in linear.items()}
            return self.kernels.layer(DecoderLayer(every, {name: (norms[name].weight, epsilon, form)
                                                           for name, (form, epsilon) in forms.items()},
                                                   size, activation, scale))

        return _Layer(module, self.kernels, described, bool(self._integers))

    def forget_changed(self) -> None:
        """Before an answer: see `CpuKernels.forget_changed`."""
        for parameter in self._model.parameters():
            self.kernels.forget_changed(parameter)
        for layer in self._layers:
            layer.forget()

    def __call__(self) -> AbstractContextManager[None]:
        """Active until the block ends, in this thread only; one block at a time."""
        return self._override()


def _unaltered(module: nn.Module) -> bool:
    """Whether a module has no hooks, no tensors of its own besides weight and bias, and no unknown settings."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__ or module._buffers
                or module._parameters.keys() - {"weight", "bias"}
                or any(value not in (None, False) for name, value in module.__dict__.items()
                       if not name.startswith("_") and name not in KNOWN))


class _Layer:
    """One decoder layer's forward: the compiled one, where it gave what the layer's own code gives."""

    def __init__(self, module: nn.Module, kernels: CpuKernels, described: Callable[[], DescribedLayer],
                 integers: bool) -> None:
        self.module, self.kernels, self._describe, self._integers = module, kernels, described, integers
        self._ordinary: Forward = type(module).forward
        attention: Any = module._modules["self_attn"]
        self._index, self._size = attention.layer_idx, attention.head_dim
        self._dtype = next(module.parameters()).dtype
        self._described: DescribedLayer | None = None
        self._same: bool | None = None      # as the layer's own code; None: not tried yet

    def forget(self) -> None:
        """Weights may be others from now on."""
        self._described = None

    def forward(self, hidden_states: Tensor, *args: Any, attention_mask: Tensor | None = None,
                past_key_values: Any = None, position_embeddings: Any = None, **named: Any) -> Any:
        """The signature of transformers' decoder layers."""
        given = {"attention_mask": attention_mask, "past_key_values": past_key_values,
                 "position_embeddings": position_embeddings} | named
        run = running()
        if (self._same is False or args or run.backend != self.kernels.attention or not isinstance(run.layout, Layout)
                or not self._takes(hidden_states, attention_mask, past_key_values, position_embeddings)
                or any(named[name] is not None and named[name] is not False for name in named.keys() - IDLE)):
            return self._ordinary(self.module, hidden_states, *args, **given)
        before = run.calls
        expected = None if self._same else self._ordinary(self.module, hidden_states, **given)
        run.calls = before
        if self._described is None:
            self._described = self._describe()
        of = self._described.described
        keys, values = past_key_values.rows_of(self._index, hidden_states, of.kv_heads, of.size)
        queries = hidden_states.new_empty(run.layout.rows, of.heads, of.size) if run.last else None
        found = self.kernels.pass_layer(self._described, hidden_states, position_embeddings, keys, values, run.layout,
                                        int(attention_mask) or None, queries)       # type: ignore[arg-type]
        if expected is not None:
            self._same = self._close(found, expected, hidden_states)
            if not self._same:
                return self._ordinary(self.module, hidden_states, **given)
        if queries is not None:
            run.queries[run.calls] = queries[-run.last:].transpose(0, 1).contiguous()
        run.calls += 1
        return found

    def _takes(self, x: Tensor, mask: Any, cache: Any, tables: Any) -> bool:
        return (isinstance(cache, KVCache) and cache.rows is None and x.ndim == 3 and len(x) == 1
                and isinstance(tables, tuple) and len(tables) == 2 and isinstance(mask, Tensor)
                and mask.shape == (1, 1, 1, 1) and mask.dtype == torch.int64
                and fits(x, *tables, dtype=self._dtype)
                and tables[0].shape == tables[1].shape == (1, x.shape[1], self._size))

    def _close(self, found: Tensor, expected: Any, x: Tensor) -> bool:
        if not isinstance(expected, Tensor) or expected.shape != found.shape:
            return False
        exact = self._dtype == torch.float32 and not self._integers
        share, least = TOLERANCE if exact else HALF_TOLERANCE, 8 * torch.finfo(self._dtype).eps
        wrong = (found - expected).float().norm(dim=-1)
        allowed = share * (expected - x).float().norm(dim=-1) + least * expected.float().norm(dim=-1)
        return bool((wrong <= allowed).all())

"""An unmodified model's linear modules, norms and whole decoder layers, computed by a CPU's compiled kernels in a pass.

Knows modules, their forms and the pass; knows no arithmetic.  A decoder layer of the common form is one call; it is
recognised by its parts, and must once give what the model's own code gives.  Other layers keep their own code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longgraft.attention.layout import Layout
from longgraft.kernels.cpu import (
    DTYPES,
    CpuKernels,
    DecoderLayer,
    DescribedLayer,
    Integers,
    Linear,
    PackedIntegers,
    fits,
)
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


@dataclass(frozen=True)
class CommonForm:
    """The parts of a decoder layer of the common form.

    linear, norms: by the names that the kernels give them, norms with form and epsilon; index: of the layer, in a cache
    """

    linear: dict[str, nn.Linear]
    norms: dict[str, tuple[nn.Module, str, float]]
    activation: str
    size: int
    scale: float
    index: int


def common_form(layer: nn.Module) -> CommonForm | None:
    """What a decoder layer looks like by its parts; None where a part is missing, more, altered or unknown."""
    parts: dict[str, Any] = layer._modules
    attention, gated = parts.get("self_attn"), parts.get("mlp")
    named = next((named for named in (PLAIN, SANDWICH) if parts.keys() == {"self_attn", "mlp", *named.values()}), None)
    if named is None or attention is None or gated is None or not all(map(_unaltered, (layer, attention, gated))):
        return None
    within: dict[str, Any] = attention._modules
    norms = {name: parts[of] for name, of in named.items()}
    norms |= {name: within[of] for name, of in OF_HEADS.items() if of in within}
    linear: dict[str, Any] = {name: within.get(of) for name, of in ATTENTION.items()}
    linear |= {name: gated._modules.get(of) for name, of in GATED.items()}
    forms = {name: (norm, *form) for name, norm in norms.items() if (form := norm_of(norm)) is not None}
    numbers: Any = [getattr(attention, name, None) for name in ("head_dim", "scaling", "layer_idx")]
    if (forms.keys() != norms.keys() or None in numbers or (activation := gate_of(gated)) is None
            or within.keys() - {*ATTENTION.values(), *OF_HEADS.values()}
            or any(type(one) is not nn.Linear or not _unaltered(one) for one in linear.values())):
        return None
    return CommonForm(linear, forms, activation, *numbers)


def _unaltered(module: nn.Module) -> bool:
    """Whether a module has no hooks, no tensors of its own besides weight and bias, and no unknown settings."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__ or module._buffers
                or module._parameters.keys() - {"weight", "bias"}
                or any(value not in (None, False) for name, value in module.__dict__.items()
                       if not name.startswith("_") and name not in KNOWN))


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
        if (form := common_form(module)) is not None and form.size % self.kernels.lanes == 0:
            self._layers.append(_Layer(module, form, self.kernels, self._integers))
            return self._layers[-1].forward
        if (found := norm_of(module)) is not None and own["weight"].dtype in DTYPES:
            kind, epsilon = found
            return lambda x: (self.kernels.norm(x, own["weight"], epsilon, kind)
                              if fits(x, own["weight"], dtype=own["weight"].dtype) else ordinary(module, x))
        return None

    def forget_changed(self) -> None:
        """Before an answer: see `CpuKernels.forget_changed`."""
        for parameter in self._model.parameters():
            self.kernels.forget_changed(parameter)
        for layer in self._layers:
            layer.forget()

    def __call__(self) -> AbstractContextManager[None]:
        """Active until the block ends, in this thread only; one block at a time."""
        return self._override()


class _Layer:
    """One decoder layer's forward: the compiled one, where it gave what the layer's own code gives."""

    def __init__(self, module: nn.Module, form: CommonForm, kernels: CpuKernels,
                 integers: Mapping[int, PackedIntegers]) -> None:
        self.module, self.form, self.kernels, self._integers = module, form, kernels, integers
        self._ordinary: Forward = type(module).forward
        self._dtype = form.linear["q"].weight.dtype
        self._described: DescribedLayer | None = None
        self._same: bool | None = None      # as the layer's own code; None: not tried yet

    def forget(self) -> None:
        """Weights may be others from now on."""
        self._described = None

    def _describe(self) -> DescribedLayer:
        form = self.form
        linear: dict[str, Linear] = {name: (one.weight, one.bias, self._integers.get(id(one.weight)))
                                     for name, one in form.linear.items()}
        norms: dict[str, Any] = {name: (norm.weight, epsilon, kind)
                                 for name, (norm, kind, epsilon) in form.norms.items()}
        return self.kernels.layer(DecoderLayer(linear, norms, form.size, form.activation, form.scale))

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
        keys, values = past_key_values.rows_of(self.form.index, hidden_states, of.kv_heads, of.size)
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
                and tables[0].shape == tables[1].shape == (1, x.shape[1], self.form.size))

    def _close(self, found: Tensor, expected: Any, x: Tensor) -> bool:
        if not isinstance(expected, Tensor) or expected.shape != found.shape:
            return False
        exact = self._dtype == torch.float32 and not self._integers
        share, least = TOLERANCE if exact else HALF_TOLERANCE, 8 * torch.finfo(self._dtype).eps
        wrong = (found - expected).float().norm(dim=-1)
        allowed = share * (expected - x).float().norm(dim=-1) + least * expected.float().norm(dim=-1)
        return bool((wrong <= allowed).all())

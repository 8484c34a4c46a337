"""A CPU's compiled kernels for an unmodified model's linear modules, norms and whole decoder layers, during a pass.

A decoder layer of the common form is one call.  It is recognised by its parts.  Before it is used, its
output for fixed random rows at near and far positions must equal the output of the layer's own code.  Other
layers keep their own code, and so does a layer whose parts have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from longgraft.attention.layout import Layout
from longgraft.kernels.cpu import DTYPES, CpuKernels, DecoderLayer, DescribedLayer, Linear, fits
from longgraft.kernels.module_override import Forward, ModuleOverride
from longgraft.kernels.packed_weight import PackedWeight
from longgraft.runtime.kv_cache import KVCache
from longgraft.runtime.packed_cache import PackedCache
from longgraft.runtime.weight_state import address_and_version
from longgraft.target_model.attention_interface import IDLE, NOTHING, RUNNING, PassContext, running
from longgraft.target_model.experts import is_router, router_forward
from longgraft.target_model.module_forms import cache_name, gate_of, norm_of, numbers

SANDWICH = {
    "before_attention": "input_layernorm",
    "after_attention": "post_attention_layernorm",
    "before_gate": "pre_feedforward_layernorm",
    "after_gate": "post_feedforward_layernorm",
}  # Gemma 2 and 3
PLAIN = {"before_attention": "input_layernorm", "before_gate": "post_attention_layernorm"}
ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
GATED = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
OF_HEADS = {"of_q": "q_norm", "of_k": "k_norm"}
# Attributes that do not change what a layer computes, or that are taken into account: windows come with the mask.
KNOWN = {
    "training",
    "config",
    "layer_idx",
    "hidden_size",
    "intermediate_size",
    "head_dim",
    "num_key_value_groups",
    "scaling",
    "attention_dropout",
    "is_causal",
    "is_sliding",
    "sliding_window",
    "layer_type",
    "attention_type",
    "num_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "in_features",
    "out_features",
}
PROBED, APART = 24, 9973  # rows of the trial, and the distance between their positions
TOLERANCE = 1e-3  # allowed error of a row, as a share of what the layer adds to it
# The same in bfloat16, with integer blocks or a rounded cache: values may round differently.
HALF_TOLERANCE = 3e-2


@dataclass(frozen=True)
class CommonForm:
    """The parts of a decoder layer of the common form.

    Attributes:
        linear: Linear modules by the names that the kernels give them.
        norms: Norms by these names: (module, form, epsilon).
        activation: Activation of the gate.
        size: Head size.
        scale: Scale of the scores.
        index: The layer's number in a cache.
    """

    linear: dict[str, nn.Linear]
    norms: dict[str, tuple[nn.Module, str, float]]
    activation: str
    size: int
    scale: float
    index: int

    @property
    def blocks(self) -> bool:
        """True if a linear module's weight is in blocks of integers."""
        return any(isinstance(module.weight, PackedWeight) for module in self.linear.values())

    def tensors(self) -> list[Tensor]:
        """Returns the present float weights, biases and norms."""
        tensors: list[Any] = []
        for module in self.linear.values():
            tensors += [t for t in (module.weight, module.bias) if isinstance(t, Tensor)]
        return tensors + [norm.weight for norm, _, _ in self.norms.values()]

    def fits(self, dtype: torch.dtype) -> bool:
        """True if the tensors' shapes belong together, and they have this dtype, which the kernels support."""
        shapes = {name: tuple(module.weight.shape) for name, module in self.linear.items()}
        wide, hidden = shapes["q"]
        narrow = shapes["k"][0]
        inner = shapes["gate"][0]
        needed = {
            "q": (wide, hidden),
            "k": (narrow, hidden),
            "v": (narrow, hidden),
            "o": (hidden, wide),
            "gate": (inner, hidden),
            "up": (inner, hidden),
            "down": (hidden, inner),
        }
        if shapes != needed or wide % self.size or narrow % self.size or wide % narrow:
            return False
        for name, (norm, _, _) in self.norms.items():
            size = self.size if name in OF_HEADS else hidden
            if len(norm.weight) != size:  # type: ignore[arg-type]
                return False
        return dtype in DTYPES and all(t.dtype == dtype and t.is_cpu and t.is_contiguous() for t in self.tensors())


def common_form(layer: nn.Module) -> CommonForm | None:
    """Returns a decoder layer's parts; None if a part is missing, additional, altered or unknown."""
    parts: dict[str, Any] = layer._modules
    attention = parts.get("self_attn")
    gated = parts.get("mlp")
    layouts = (layout for layout in (PLAIN, SANDWICH) if parts.keys() == {"self_attn", "mlp", *layout.values()})
    layout = next(layouts, None)
    if layout is None or attention is None or gated is None or not all(map(_unaltered, layer.modules())):
        return None
    inner: dict[str, Any] = attention._modules
    if inner.keys() - {*ATTENTION.values(), *OF_HEADS.values()}:
        return None
    norms = {name: parts[attribute] for name, attribute in layout.items()}
    norms |= {name: inner[attribute] for name, attribute in OF_HEADS.items() if attribute in inner}
    linear: dict[str, Any] = {name: inner.get(attribute) for name, attribute in ATTENTION.items()}
    linear |= {name: gated._modules.get(attribute) for name, attribute in GATED.items()}
    if not all(map(_plain_linear, linear.values())):
        return None
    forms = {}
    for name, norm in norms.items():
        form = norm_of(norm)
        if form is None:
            return None
        forms[name] = norm, *form
    scalars: Any = [getattr(attention, name, None) for name in ("head_dim", "scaling", "layer_idx")]
    activation = gate_of(gated)
    if None in scalars or activation is None:
        return None
    common = CommonForm(linear, forms, activation, *scalars)
    if common.fits(linear["q"].weight.dtype):
        return common
    return None


def _plain_linear(module: Any) -> bool:
    """True for torch's own linear module with a plain or packed weight."""
    return type(module) is nn.Linear and type(module.weight) in (nn.Parameter, PackedWeight)


def _unaltered(module: nn.Module) -> bool:
    """True if a module has no hooks, no tensors of its own besides weight and bias, and no unknown settings."""
    settings = {name: value for name, value in module.__dict__.items() if not name.startswith("_")}
    if _hooked(module) or "forward" in settings or module._buffers or module._parameters.keys() - {"weight", "bias"}:
        return False
    unknown = [value for name, value in settings.items() if name not in KNOWN]
    return not module._modules or all(value is None or value is False for value in unknown)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


class CompiledModules:
    """Replaces a model's modules inside a `with` block of this object, and only there.

    Only plain modules are replaced: those that other libraries quantized or wrapped keep their own forwards.
    """

    def __init__(self, model: nn.Module, kernels: CpuKernels) -> None:
        self.kernels = kernels
        self._model = model
        self._layers: list[_Layer] = []
        self._override = ModuleOverride(model, self._replacement)

    def _replacement(self, module: nn.Module) -> Callable[..., Any] | None:
        """Returns a replacement for the module's forward, which reads its parameters at each call, or None."""
        parameters: Any = module._parameters
        if type(module) is nn.Linear and type(module.weight) is nn.Parameter:
            return lambda x: self.kernels.product(x, parameters["weight"], parameters["bias"])
        if is_router(module):
            return router_forward(module, self.kernels)
        form = common_form(module)
        if form is not None and form.size % self.kernels.lanes == 0:
            layer = _Layer(module, form, self.kernels, cache_name(self._model.forward))
            self._layers.append(layer)
            return layer.forward
        norm = norm_of(module)
        return None if norm is None else self._norm(module, *norm)

    def _norm(self, module: nn.Module, kind: str, epsilon: float) -> Callable[..., Any]:
        """Returns the compiled forward of a norm.

        A call with more arguments, such as a gate (Mamba 2, gated delta nets), is not the norm that was
        recognised.
        """
        parameters: Any = module._parameters
        ordinary = type(module).forward

        def forward(x: Tensor, *more: Any, **named: Any) -> Any:
            if not more and not named and x.dtype in DTYPES:
                rows = x.contiguous()
                if fits(rows, parameters["weight"], dtype=x.dtype):
                    return self.kernels.norm(rows, parameters["weight"], epsilon, kind)
            return ordinary(module, x, *more, **named)

        return forward

    def forget_changed(self) -> None:
        """Drops packed copies of changed weights before an answer: see `CpuKernels.forget_changed`."""
        for parameter in self._model.parameters():
            self.kernels.forget_changed(parameter)
        for layer in self._layers:
            layer.forget()

    def __call__(self) -> AbstractContextManager[None]:
        """Replaces the modules until the block ends, in this thread only; one block at a time."""
        return self._override()


class _Layer:
    """One decoder layer's forward: the compiled one, if it gives the same as the layer's own code."""

    def __init__(self, module: nn.Module, form: CommonForm, kernels: CpuKernels, cache: str) -> None:
        """Takes the name of the argument that is the cache."""
        self.module = module
        self.form = form
        self.kernels = kernels
        self._cache_name = cache
        self._ordinary: Forward = type(module).forward
        self._dtype = form.linear["q"].weight.dtype
        self._parts = [
            (parent._modules, name, part)
            for parent in module.modules()
            for name, part in parent._modules.items()
            if part is not None
        ]
        self._described: DescribedLayer | None = None
        self._state: list[tuple[int, int]] = []  # state of the tensors when they were described
        # True if the compiled code equals the layer's own; None: not tried yet.
        self._same: bool | None = None

    def forget(self) -> None:
        """Drops the description, because the weights may change."""
        self._described = None

    def forward(
        self,
        hidden_states: Tensor,
        *args: Any,
        attention_mask: Tensor | None = None,
        position_embeddings: Any = None,
        **named: Any,
    ) -> Any:
        """Computes the layer, with the signature of transformers' decoder layers."""
        run = running()
        cache = named.pop(self._cache_name, None)
        usual = (
            self._same is not False
            and not args
            and run.backend == self.kernels.attention
            and isinstance(run.layouts[0], Layout)
            and self._takes(hidden_states, attention_mask, cache, position_embeddings)
            and all(named[name] is None or named[name] is False for name in named.keys() - IDLE)
            and all(modules.get(name) is part and not _hooked(part) for modules, name, part in self._parts)
            and self._is_described()
        )
        if usual and self._same is None:
            self._same = self._tried(attention_mask, cache.dtype, named)
        if not (usual and self._same):
            return self._ordinary(
                self.module,
                hidden_states,
                *args,
                attention_mask=attention_mask,
                position_embeddings=position_embeddings,
                **named | {self._cache_name: cache},
            )
        return self._compiled(hidden_states, position_embeddings, cache, attention_mask)

    def _is_described(self) -> bool:
        """Describes the layer again if its tensors have changed; returns False if they no longer fit."""
        state = list(map(address_and_version, self.form.tensors()))
        if self._described is None or self._state != state:
            self._described = self._describe() if self.form.fits(self._dtype) else None
            self._state = state
        return self._described is not None

    def _compiled(self, x: Tensor, tables: tuple[Tensor, Tensor], cache: KVCache | PackedCache, mask: Any) -> Tensor:
        run: Any = running()
        assert self._described is not None
        shape = self._described.described
        parts = []
        for sequence, layout in zip(cache.parts, run.layouts, strict=True):
            buffers = sequence.rows_of(self.form.index, x[:, : layout.rows], shape.kv_heads, shape.size)
            parts.append((layout, *buffers))
        queries = x.new_empty(x.shape[1], shape.heads, shape.size) if run.last else None
        out = self.kernels.pass_layer(self._described, x, tables, parts, int(mask) or None, queries)
        if queries is not None:
            run.queries[run.calls] = queries[-run.last :].transpose(0, 1).contiguous()
        run.calls += 1
        return out

    def _describe(self) -> DescribedLayer:
        form = self.form
        linear: dict[str, Linear] = {name: (module.weight, module.bias) for name, module in form.linear.items()}
        norms: dict[str, Any] = {}
        for name, (norm, kind, epsilon) in form.norms.items():
            norms[name] = norm.weight, epsilon, kind
        return self.kernels.layer(DecoderLayer(linear, norms, form.size, form.activation, form.scale))

    def _takes(self, x: Tensor, mask: Any, cache: Any, tables: Any) -> bool:
        return (
            isinstance(cache, KVCache | PackedCache)
            and cache.rows is None
            and x.ndim == 3
            and len(x) == 1
            and isinstance(tables, tuple)
            and len(tables) == 2
            and isinstance(mask, Tensor)
            and mask.shape == (1, 1, 1, 1)
            and mask.dtype == torch.int64
            and int(mask) != NOTHING
            and fits(x, *tables, dtype=self._dtype)
            and tables[0].shape == tables[1].shape == (1, x.shape[1], self.form.size)
        )

    def _tried(self, mask: Any, cache_dtype: torch.dtype | None, named: dict[str, Any]) -> bool:
        """Compares compiled and own code for random rows at positions from 0 to 229,379.

        The positions reach far because some families scale queries beyond a length.
        """
        hidden = self.form.linear["q"].in_features
        positions = torch.arange(PROBED)[None] * APART
        x = numbers(1, PROBED, hidden, dtype=self._dtype, seed=0)
        angles = positions[..., None] * torch.logspace(0, -4, self.form.size // 2)
        tables: Any = tuple(torch.cat([turn, turn], -1).to(self._dtype) for turn in (angles.cos(), angles.sin()))
        arguments = dict(named, attention_mask=mask, position_embeddings=tables)
        if "position_ids" in named:
            arguments["position_ids"] = positions

        def ordinary(cache: KVCache) -> Any:
            return self._ordinary(self.module, x, **arguments | {self._cache_name: cache})

        outputs = []
        for forward in (partial(self._compiled, x, tables, mask=mask), ordinary):
            # Each layer gets its own kind, so that buffers are made for this layer only.
            index = self.form.index
            cache = KVCache(index + 1, PROBED, [str(kind) for kind in range(index + 1)], cache_dtype)
            layout = Layout(0, torch.arange(PROBED), None, x.device)
            token = RUNNING.set(PassContext([layout], self.kernels.attention))
            try:
                outputs.append(forward(cache))
            finally:
                RUNNING.reset(token)
        computed, expected = outputs
        rounds = self.form.blocks or cache_dtype is not None
        return self._close(computed, expected, x, rounds)

    def _close(self, computed: Tensor, expected: Any, x: Tensor, rounds: bool) -> bool:
        """Tells if two outputs for x agree; with `rounds`, each may round a number near a tie otherwise."""
        if not isinstance(expected, Tensor) or expected.shape != computed.shape:
            return False
        exact = self._dtype == torch.float32 and not rounds
        share = TOLERANCE if exact else HALF_TOLERANCE
        least = torch.finfo(self._dtype).eps
        wrong = (computed - expected).float().norm(dim=-1)
        allowed = share * (expected - x).float().norm(dim=-1) + least * expected.float().norm(dim=-1)
        return bool((wrong <= allowed).all())

"""Norms, gated products and rotary embeddings of an unmodified transformers model, in one launch each during a pass.

Whole layers are computed by `fused_layers` where they can be.
Modules of other forms, and inputs that do not fit, are computed by the model's own code.  Nothing stays on
the model after a pass, and the library is never patched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import FunctionType
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longgraft.kernels.head_norms import HeadNorms
from longgraft.kernels.module_override import Forward, ModuleOverride
from longgraft.target_model.module_forms import (
    ACTIVATIONS,
    DTYPES,
    dtype_of,
    gate_of,
    norm_of,
    tables_of,
)

ROTARY = "apply_rotary_pos_emb"  # the function's name in each modelling file

Pair = tuple[Tensor, Tensor]
Weights = Sequence[Tensor]
Biases = Sequence[Tensor | None]


class Kernels(Protocol):
    """The interface of `longgraft.kernels.fused_triton`, where the functions are documented."""

    def norm(self, x: Tensor, weight: Tensor, epsilon: float, form: str) -> Tensor: ...
    def gated(self, gate: Tensor, up: Tensor, activation: str) -> Tensor: ...
    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]: ...
    def write(self, keys: Tensor, values: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> None: ...
    def product(self, x: Tensor, weights: Weights, biases: Biases, residual: Tensor | None = None) -> Tensor: ...
    def gated_product(self, x: Tensor, gate: Tensor, up: Tensor, activation: str) -> Tensor: ...
    def rope_write(
        self, qkv: Tensor, tables: Pair, buffers: Pair, rows: Tensor, norms: HeadNorms | None = None
    ) -> Tensor: ...
    def geometry(self, inputs: Tensor, slots: int) -> tuple[Tensor, ...]: ...
    def accepted(self, inputs: Tensor, words: Tensor, draws: Tensor, slots: int) -> tuple[Tensor, Tensor]: ...
    def topk(self, logits: Tensor, k: int, probabilities: bool) -> tuple[Tensor, Tensor | None]: ...
    def children(self, logits: Tensor, k: int, offsets: Tensor) -> tuple[Tensor, Tensor]: ...
    def beam(self, scores: Tensor, best: Tensor, gains: Tensor, visible: Tensor, offset: int) -> tuple[Tensor, ...]: ...


class FusedModules:
    """Replaces a model's norms, gated products and rotary embeddings by `kernels` in a `with` block of this object.

    Attributes:
        kernels: What computes them.
        counts: Number of replaced modules of each kind.
        notes: What people are told about layers that are left alone.
    """

    def __init__(
        self,
        model: nn.Module,
        kernels: Kernels,
        layers: Mapping[nn.Module, Forward] | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        """Takes the forwards of whole layers (`fused_layers`), which decide at each call what runs."""
        self.kernels = kernels
        self.notes = notes
        self._layers = layers or {}
        self.counts = Counter[str]()
        self._device = next(model.parameters()).device
        self._rotations: dict[Any, FunctionType | None] = {}
        self._override = ModuleOverride(model, self._replacement)

    def __call__(self) -> AbstractContextManager[None]:
        """Replaces the modules until the block ends, in this thread only; one block at a time."""
        return self._override()

    def _replacement(self, module: nn.Module) -> Forward | None:
        """Returns a replacement for the module's forward, which reads its parameters at each call, or None."""
        if module in self._layers:
            self.counts["layers"] += 1
            return self._layers[module]
        for kind, find in (("norms", self._norm), ("gated", self._gated), ("rotations", self._rotation)):
            forward = find(module)
            if forward is not None:
                self.counts[kind] += 1
                if kind == "rotations":
                    return forward
                return _one_argument(forward, module)
        return None

    def _norm(self, module: nn.Module) -> Forward | None:
        norm = norm_of(module)
        if norm is None:
            return None
        form, epsilon = norm
        parameters = module._parameters
        ordinary = type(module).forward

        def forward(x: Tensor) -> Tensor:
            weight: Any = parameters["weight"]
            # Gemma 3 norms transposed heads, whose rows are still contiguous.
            dense = x.is_contiguous() or (x.ndim == 4 and x.transpose(1, 2).is_contiguous())
            if not (dense and self._fits(x, weight) and x.dtype == weight.dtype):
                return ordinary(module, x)
            return self.kernels.norm(x, weight, epsilon, form)

        return forward

    def _gated(self, module: nn.Module) -> Forward | None:
        activation = gate_of(module)
        if activation is None:
            return None
        parts: Any = module._modules

        def forward(x: Tensor) -> Tensor:
            if "gate_up_proj" in parts:
                gate, up = parts["gate_up_proj"](x).chunk(2, dim=-1)
            else:
                gate, up = parts["gate_proj"](x), parts["up_proj"](x)
            if self._fits(gate, up) and gate.dtype == up.dtype:
                return parts["down_proj"](self.kernels.gated(gate, up, activation))
            return parts["down_proj"](ACTIVATIONS[activation](gate) * up)

        return forward

    def _rotation(self, module: nn.Module) -> Forward | None:
        """Returns a copy of the module's forward that calls our rotation; the library's own function is unchanged.

        The rotation is a global of the modelling file, and transformers replaces it only by kernels from
        its hub.
        """
        ordinary = type(module).forward
        if ordinary not in self._rotations:
            self._rotations[ordinary] = self._with_our_rotation(ordinary, dtype_of(module))
        ours = self._rotations[ordinary]
        return None if ours is None else partial(ours, module)

    def _with_our_rotation(self, ordinary: Any, dtype: torch.dtype) -> FunctionType | None:
        # Since transformers 5.24 a wrapper translates old names of arguments, which its models do not use.
        while getattr(ordinary, "__globals__", {}).get("__name__") == "transformers.utils.deprecation":
            ordinary = ordinary.__wrapped__
        if not (isinstance(ordinary, FunctionType) and ROTARY in ordinary.__code__.co_names):
            return None
        library: Any = ordinary.__globals__.get(ROTARY)
        tables = tables_of(library, dtype)
        if not tables:
            return None

        def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **named: Any) -> tuple[Tensor, Tensor]:
            shape = (1, q.shape[2], q.shape[3])
            if (
                args
                or named
                or not self._fits(q, k, cos, sin)
                or cos.dtype not in tables
                or sin.dtype != cos.dtype
                or q.dtype != dtype
                or k.dtype != dtype
                or len(q) != 1
                or k.shape[2:] != q.shape[2:]
                or cos.shape != shape
                or sin.shape != shape
            ):
                return library(q, k, cos, sin, *args, **named)
            return self.kernels.rotary(q, k, cos, sin)

        ours = FunctionType(
            ordinary.__code__,
            ordinary.__globals__ | {ROTARY: rotary},
            ordinary.__name__,
            ordinary.__defaults__,
            ordinary.__closure__,
        )
        ours.__kwdefaults__ = ordinary.__kwdefaults__
        return ours

    def _fits(self, *tensors: Tensor) -> bool:
        if torch.is_grad_enabled():
            return False
        return all(t.device == self._device and t.dtype in DTYPES and t.stride(-1) == 1 for t in tensors)


def _one_argument(forward: Callable[[Tensor], Tensor], module: nn.Module) -> Forward:
    """Uses `forward` for calls with one argument, as it was probed, and the module's own forward for all others.

    A second argument may be the product of a draft network's layers, which is this one unless it is given.
    """
    ordinary = type(module).forward

    def either(*args: Any, **named: Any) -> Any:
        if args and args[1:] in ((), (F.linear,)) and not named:
            return forward(args[0])
        return ordinary(module, *args, **named)

    return either

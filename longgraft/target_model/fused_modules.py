"""Norms, gated products and rotary embeddings of an unmodified transformers model, in one launch each during a pass.

Modules of other forms, and inputs that do not fit, are computed by the model's own code.  Nothing stays on
the model after a pass, and the library is never patched.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from types import FunctionType
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longgraft.kernels.build import NotBuilt
from longgraft.kernels.module_override import Forward, ModuleOverride
from longgraft.protocol.observation import Wants
from longgraft.target_model.module_forms import (
    ACTIVATIONS,
    DTYPES,
    NORMS,
    dtype_of,
    gate_of,
    norm_of,
    numbers,
    tables_of,
    turned,
)
from longgraft.target_model.pass_geometry import Geometry, accepted, geometry
from longgraft.target_model.topk import MOST_FUSED, best, children
from longgraft.trees.beams import beam
from longgraft.trees.padded import PaddedTree
from longgraft.trees.tree import ProposalTree

ROTARY = "apply_rotary_pos_emb"  # the function's name in each modelling file


class Kernels(Protocol):
    """The interface of `longgraft.kernels.fused_triton`, where the functions are documented."""

    def norm(self, x: Tensor, weight: Tensor, epsilon: float, form: str) -> Tensor: ...
    def gated(self, gate: Tensor, up: Tensor, activation: str) -> Tensor: ...
    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]: ...
    def write(self, keys: Tensor, values: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> None: ...
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
    """

    def __init__(self, model: nn.Module, kernels: Kernels) -> None:
        self.kernels = kernels
        self.counts = Counter[str]()
        self._device = next(model.parameters()).device
        self._rotations: dict[Any, FunctionType | None] = {}
        self._override = ModuleOverride(model, self._replacement)

    def __call__(self) -> AbstractContextManager[None]:
        """Replaces the modules until the block ends, in this thread only; one block at a time."""
        return self._override()

    def _replacement(self, module: nn.Module) -> Forward | None:
        """Returns a replacement for the module's forward, which reads its parameters at each call, or None."""
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


@cache
def kernels_for(device: torch.device, dtype: torch.dtype) -> Kernels | NotBuilt:
    """Returns the Triton kernels, compiled and compared with torch once per device and dtype, or why there are none."""
    if device.type != "cuda":
        return NotBuilt(f"they are for CUDA, and the model is on {device.type}")
    try:
        from triton.errors import TritonError

        from longgraft.kernels import fused_triton
    except ImportError as error:
        return NotBuilt(f"triton cannot be imported ({error})")
    try:
        wrong = differences(fused_triton, device, dtype)
    except (TritonError, RuntimeError, OSError, ImportError, subprocess.SubprocessError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return NotBuilt(f"triton could not compile them ({reason})")
    if wrong:
        differing = ", ".join(f"{name} by up to {farthest:.2g}" for name, farthest in wrong.items())
        return NotBuilt(f"these differ from torch: {differing}")
    return fused_triton


@torch.no_grad()
def differences(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Returns the kernels whose results differ from torch's on this device by more than rounding: name -> how far."""
    x, gate, up = numbers(3, 3, 2100, dtype=dtype, seed=0).to(device)
    weight = 1 + up[0]
    cos, sin = numbers(2, 1, 3, 24, dtype=dtype, seed=1).to(device)
    q, k = numbers(1, 3, 6, 24, dtype=dtype, seed=2).to(device).transpose(1, 2).split([4, 2], dim=1)
    rows = torch.tensor([5, 0, 2], device=device)
    pairs = {}  # name -> (the kernels' result, torch's)
    for form, norm in NORMS.items():
        pairs[f"{form} norm"] = kernels.norm(x, weight, 1e-6, form), norm(x, weight, 1e-6)
    for name, activation in ACTIVATIONS.items():
        pairs[name] = kernels.gated(gate, up, name), activation(gate) * up
    rotated_q, rotated_k = kernels.rotary(q, k, cos, sin)
    pairs["rotated q"] = rotated_q, turned(q, cos, sin)
    pairs["rotated k"] = rotated_k, turned(k, cos, sin)
    empty = torch.zeros(1, 2, 7, 24, dtype=dtype, device=device)
    keys = empty.clone()
    values = empty.clone()
    kernels.write(keys, values, k, -k, rows)
    written = [empty.index_copy(2, rows, new) for new in (k, -k)]
    pairs["written rows"] = torch.cat([keys, values]), torch.cat(written)
    tolerance = max(4 * torch.finfo(dtype).eps, 4e-6)
    wrong = {}
    for bound, some in (
        (tolerance, pairs),
        (0.0, _trees(kernels, device) | _beams(kernels, device)),
        (1e-6, _ranked(kernels, device, dtype)),
    ):
        for name, (computed, expected) in some.items():
            computed, expected = computed.double(), expected.double()
            if not torch.allclose(computed, expected, bound, bound):
                wrong[name] = float((computed - expected).abs().max())
    return wrong


def _trees(kernels: Kernels, device: torch.device) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns a forest of two trees, an empty slot and rows of no slot, and its walks, by the kernels and torch."""
    tree = ProposalTree.build(
        [5, 6, 7, 8, 9, 8], [-1, 0, 0, 2, 2, 3], [0.0, -0.5, -1.0, -1.5, -2.0, -2.5], [1] + [2] * 5
    )
    records = [PaddedTree.pack(tree.select(list(range(nodes))), rows) for nodes, rows in ((6, 8), (4, 5), (1, 3))]
    numbers = torch.tensor([[0, 8, 13], [8, 5, 0], [40, 900, 0], [300, 20, 0], [310, 20, 0]])
    inputs = torch.cat([torch.cat(records, 1).flatten(), numbers.flatten()]).to(device)
    draws = torch.tensor([7, 0, 9, 0, 4, 0, 0, 0, 7, 0, 8, 3, 0, 0, 0, 0], device=device)
    expected = geometry(inputs, 3)
    names = [f"the tree's {name}" for name in (*Geometry._fields, "path", "kept rows")]
    computed = *kernels.geometry(inputs, 3), *kernels.accepted(inputs, expected.words, draws, 3)
    known = *expected, *accepted(inputs, expected.words, draws, 3)
    return dict(zip(names, zip(computed, known, strict=True), strict=True))


def _ranked(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns the top-k of three rows whose largest logits differ, by the kernels and by torch."""
    logits = numbers(3, 9000, dtype=dtype, seed=3).clamp(max=3)
    logits[:, 7::1024] = 4 + (torch.arange(27) * 5 % 27).view(3, 9).to(dtype) / 8
    logits = logits.to(device)
    known = best(logits, Wants(topk=MOST_FUSED, probabilities=True))
    ids, probabilities = kernels.topk(logits, MOST_FUSED, True)
    alone, _ = kernels.topk(logits, MOST_FUSED, False)
    assert probabilities is not None and known.probabilities is not None
    offsets = torch.arange(9000, device=device) % 97
    children_ids, gains = kernels.children(logits, MOST_FUSED, offsets)
    known_ids, known_gains = children(logits.float().log_softmax(-1), MOST_FUSED, offsets)
    return {
        "children": (children_ids, known_ids),
        "their log-probabilities": (gains, known_gains),
        "top-k": (alone, known.ids),
        "top-k with probabilities": (ids, known.ids),
        "probabilities": (probabilities, known.probabilities),
    }


def _beams(kernels: Kernels, device: torch.device) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns the beam of three nodes, of which no two children score alike, by the kernels and by torch."""
    scores, gains = numbers(2, 9, dtype=torch.float32, seed=4).to(device)
    nodes = torch.tensor([4, 1, 7], device=device)
    visible = torch.arange(18, device=device).view(3, 6) % 5 == 0
    given = scores, nodes, gains.view(3, 3), visible, 20
    names = "scores", "parents", "nodes", "nodes above", "visible rows"
    results = zip(kernels.beam(*given), beam(*given), strict=True)
    return {f"the beam's {name}": pair for name, pair in zip(names, results, strict=True)}


def fused(model: nn.Module) -> FusedModules | NotBuilt:
    """Returns the fused modules of this model on its device, or why there are none."""
    parameter = next(model.parameters())
    kernels = kernels_for(parameter.device, parameter.dtype)
    if isinstance(kernels, NotBuilt):
        return kernels
    return FusedModules(model, kernels)

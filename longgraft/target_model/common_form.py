"""The common form of a decoder layer: recognised by its parts, and tried against the layer's own code.

Compiled layers of a CPU and fused layers of a GPU compute it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from longgraft.kernels.packed_weight import PackedWeight
from longgraft.target_model.attention_interface import IDLE, NOTHING
from longgraft.target_model.module_forms import gate_of, norm_of, numbers

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
        dtype: Dtype of the weights.
        device: Device of the weights.
    """

    linear: dict[str, nn.Linear]
    norms: dict[str, tuple[nn.Module, str, float]]
    activation: str
    size: int
    scale: float
    index: int
    dtype: torch.dtype
    device: torch.device

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

    def fits(self) -> bool:
        """True if the tensors' shapes belong together, and all are of the form's dtype and on its device."""
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
        return all(t.dtype == self.dtype and t.device == self.device and t.is_contiguous() for t in self.tensors())


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
    size, scale, index = (getattr(attention, name, None) for name in ("head_dim", "scaling", "layer_idx"))
    activation = gate_of(gated)
    if size is None or scale is None or index is None or activation is None:
        return None
    device = norms["before_attention"].weight.device
    common = CommonForm(linear, forms, activation, size, scale, index, linear["q"].weight.dtype, device)
    if common.fits():
        return common
    return None


def _plain_linear(module: Any) -> bool:
    """True for torch's own linear module with a plain or packed weight."""
    return type(module) is nn.Linear and type(module.weight) in (nn.Parameter, PackedWeight)


def _unaltered(module: nn.Module) -> bool:
    """True if a module has no hooks, no tensors of its own besides weight and bias, and no unknown settings."""
    settings = {name: value for name, value in module.__dict__.items() if not name.startswith("_")}
    if hooked(module) or "forward" in settings or module._buffers or module._parameters.keys() - {"weight", "bias"}:
        return False
    unknown = [value for name, value in settings.items() if name not in KNOWN]
    return not module._modules or all(value is None or value is False for value in unknown)


def hooked(module: nn.Module) -> bool:
    """True if a module has hooks, which a kernel that replaces it would not run."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


class Parts:
    """The modules inside a layer, as they were when its form was recognised."""

    def __init__(self, layer: nn.Module) -> None:
        self._parts = [
            (parent._modules, name, part)
            for parent in layer.modules()
            for name, part in parent._modules.items()
            if part is not None
        ]

    def unchanged(self) -> bool:
        """True if they are the same modules, without hooks."""
        return all(modules.get(name) is part and not hooked(part) for modules, name, part in self._parts)


def usual_call(form: CommonForm, x: Tensor, mask: Any, tables: Any, named: dict[str, Any]) -> bool:
    """True if a layer is called with one sequence, a plain window and tables of whole heads, and nothing else."""
    return (
        all(named[name] is None or named[name] is False for name in named.keys() - IDLE)
        and x.ndim == 3
        and len(x) == 1
        and isinstance(tables, tuple)
        and len(tables) == 2
        and isinstance(mask, Tensor)
        and mask.shape == (1, 1, 1, 1)
        and mask.dtype == torch.int64
        and int(mask) != NOTHING
        and tables[0].shape == tables[1].shape == (1, x.shape[1], form.size)
    )


class Trial(NamedTuple):
    """Random rows of a layer at positions from 0 on, far apart, because some families scale queries beyond a length.

    Attributes:
        x: [1, n, hidden].
        positions: [1, n].
        tables: cos and sin [1, n, D].
    """

    x: Tensor
    positions: Tensor
    tables: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, form: CommonForm, rows: int = PROBED) -> Trial:
        """Returns the same rows at each call."""
        positions = torch.arange(rows)[None] * APART
        x = numbers(1, rows, form.linear["q"].in_features, dtype=form.dtype, seed=0)
        angles = positions[..., None] * torch.logspace(0, -4, form.size // 2)
        cos, sin = (torch.cat([turn, turn], -1).to(form.device, form.dtype) for turn in (angles.cos(), angles.sin()))
        return cls(x.to(form.device), positions.to(form.device), (cos, sin))

    def agrees(self, computed: Tensor, expected: Any, rounds: bool) -> bool:
        """Tells if two outputs for x agree; with `rounds`, each may round a number near a tie otherwise."""
        if not isinstance(expected, Tensor) or expected.shape != computed.shape:
            return False
        exact = self.x.dtype == torch.float32 and not rounds
        share = TOLERANCE if exact else HALF_TOLERANCE
        least = torch.finfo(self.x.dtype).eps
        wrong = (computed - expected).float().norm(dim=-1)
        allowed = share * (expected - self.x).float().norm(dim=-1) + least * expected.float().norm(dim=-1)
        return bool((wrong <= allowed).all())

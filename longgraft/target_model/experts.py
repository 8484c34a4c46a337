"""A mixture's experts in blocks, in the place of a model's own module of experts, and its routers in a pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from longgraft.kernels.cpu import CpuKernels
from longgraft.kernels.expert_weights import GATES, DescribedExperts, Gate, StackedWeight
from longgraft.target_model.module_forms import ACTIVATIONS, numbers

PROBED = 64  # numbers of a gate that are compared
PARTS = ("gate", "up", "down")


class BlockExperts(nn.Module):
    """The experts of a layer, with weights in blocks.  A row's output has the same bits in any pass.

    Args:
        kernels: What multiplies with them.
        weights: The experts' weights, by the names of PARTS.
        biases: Their biases [experts, rows], of the activations' dtype, by the same names; empty for none.
        gate: How gate and up become one.
    """

    def __init__(
        self, kernels: CpuKernels, weights: Mapping[str, StackedWeight], biases: Mapping[str, Tensor], gate: Gate
    ) -> None:
        super().__init__()
        self._kernels = kernels
        self.gate, self.up, self.down = (weights[part] for part in PARTS)
        self._biases = dict(biases)
        self._described = [weights[part].described(biases.get(part)) for part in PARTS]
        self._experts = DescribedExperts(
            *self._described, self.gate.shape[0], GATES.index(gate.form), gate.slope, gate.limit
        )

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        return self._kernels.mixture(self._experts, hidden_states, top_k_index, top_k_weights)


def gate_of_experts(experts: Any) -> Gate | None:
    """Returns how a module of experts joins gate and up, found with random numbers; None if the form is unknown."""
    if not getattr(experts, "has_gate", False) or getattr(experts, "has_post_expert_norm", False):
        return None
    both = 5 * numbers(PROBED, 2, dtype=torch.float32, seed=0)
    gate, up = both.unbind(1)
    joined = torch.cat((gate, up)) if experts.is_concatenated else both.flatten()
    gated = experts._apply_gate(joined[None])[0]
    for form, activation in ACTIVATIONS.items():
        if torch.allclose(gated, activation(gate) * up):
            return Gate(form)
    slope = getattr(experts, "alpha", None)
    limit = getattr(experts, "limit", None)
    if slope is None or limit is None:
        return None
    clamped = gate.clamp(max=limit)
    expected = (up.clamp(-limit, limit) + 1) * clamped * torch.sigmoid(clamped * slope)
    if torch.allclose(gated, expected):
        return Gate("clamped", slope, limit)
    return None


def joined_parts(experts: Any, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the parameters of a module of experts, in the module's own layout.

    Args:
        parts: Weights [experts, rows, inputs] and biases [experts, rows], by names such as gate.weight, up.bias, or
            gate_up.weight for gates and ups that follow each other.
    """
    parameters = {}
    for last, end in (("weight", ""), ("bias", "_bias")):
        both = parts.get(f"gate_up.{last}")
        if f"gate.{last}" in parts and f"up.{last}" in parts:
            both = torch.cat([parts[f"gate.{last}"], parts[f"up.{last}"]], dim=1)
        if both is not None and not experts.is_concatenated:
            both = torch.stack(both.chunk(2, dim=1), dim=2).flatten(1, 2)
        for parameter, values in (("gate_up_proj", both), ("down_proj", parts.get(f"down.{last}"))):
            if values is not None:
                is_transposed = last == "weight" and experts.is_transposed
                parameters[f"{parameter}{end}"] = values.transpose(1, 2) if is_transposed else values
    return parameters


def is_router(module: nn.Module) -> bool:
    """True for a module without parts that multiplies with a matrix of its own, as transformers' routers do."""
    weight = module._parameters.get("weight")
    return (
        weight is not None
        and weight.ndim == 2
        and not module._modules
        and type(module) is not nn.Linear
        and type(module) is not nn.Embedding
        and "linear" in inspect.unwrap(type(module).forward).__code__.co_names
    )


def router_forward(module: nn.Module, kernels: CpuKernels) -> Callable[..., Any]:
    """Returns a router's forward whose products are the kernels', so that a row has the same bits in any pass."""
    ordinary = type(module).forward

    def forward(*args: Any, **named: Any) -> Any:
        with _Products(kernels):
            return ordinary(module, *args, **named)

    return forward


class _Products(TorchFunctionMode):
    """Inside a `with` block, the kernels compute torch's linear products."""

    def __init__(self, kernels: CpuKernels) -> None:
        super().__init__()
        self._kernels = kernels

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.linear and not kwargs:
            return self._kernels.product(*args)
        return function(*args, **(kwargs or {}))

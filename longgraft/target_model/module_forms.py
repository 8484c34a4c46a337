"""Recognises the forms of norms, gated products and rotary embeddings by their outputs for random inputs.

It also names the argument by which a forward takes its cache.

Probing changes neither the module nor torch's state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# transformers 5.24 renamed the second, and Mamba's, the third, to the first.
CACHES = ("cache", "past_key_values", "cache_params")


def cache_name(forward: Callable) -> str:
    """Returns the name of the argument by which a model's or a layer's forward takes its cache."""
    return next((name for name in CACHES if name in signature(forward).parameters), CACHES[0])


def normed(x: Tensor, epsilon: float) -> Tensor:
    """Returns x [.., size] divided by its root mean square, in float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates x [1, H, n, D] by halves with cos, sin [1, n, D] in the wider of their dtypes; x's shape and
    dtype stay."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None]).to(x.dtype)


# Forms differ in where they round and in the weight.
NORMS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "rounded": lambda x, weight, epsilon: weight * normed(x, epsilon).to(x.dtype),  # Llama, Qwen, Mistral
    "wide": lambda x, weight, epsilon: (weight * normed(x, epsilon)).to(x.dtype),  # OLMo 2
    "from one": lambda x, weight, epsilon: (normed(x, epsilon) * (1.0 + weight.float())).to(x.dtype),  # Gemma
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "tanh": partial(F.gelu, approximate="tanh")}


@torch.no_grad()
def norm_of(module: nn.Module) -> tuple[str, float] | None:
    """Returns form and epsilon of a root-mean-square norm, found with random weights; None for any other module."""
    epsilon = module.__dict__.get("variance_epsilon", module.__dict__.get("eps"))
    weight = module._parameters.get("weight")
    if not isinstance(epsilon, float) or type(weight) is not nn.Parameter or weight.dtype not in DTYPES:
        return None
    if weight.ndim != 1 or len(module._parameters) > 1 or module._buffers or module._modules:
        return None
    sizes = torch.tensor([[0.0], [1e-3], [1.0], [50.0]], dtype=weight.dtype, device="cpu")
    x = numbers(4, len(weight), dtype=weight.dtype, seed=0) * sizes
    probe = 1 + numbers(len(weight), dtype=weight.dtype, seed=1) / 4
    output = _output_with(module, {"_parameters": {"weight": nn.Parameter(probe)}}, x)
    for form, norm in NORMS.items():
        if _same(output, norm(x, probe, epsilon)):
            return form, epsilon
    return None


@torch.no_grad()
def gate_of(module: nn.Module) -> str | None:
    """Returns the activation of a module that computes down(activation(gate) * up); None for any other module.

    It is found with small random projections.  They must be named gate_proj, up_proj and down_proj, or
    gate_up_proj and down_proj, as in most families.
    """
    sizes = {"gate_up_proj": (8, 32), "gate_proj": (8, 16), "up_proj": (8, 16), "down_proj": (16, 8)}
    parts = {name: part for name, part in module._modules.items() if name in sizes}
    more = [part for name, part in module._modules.items() if name not in sizes and part is not None]
    if parts.keys() not in ({"gate_up_proj", "down_proj"}, {"gate_proj", "up_proj", "down_proj"}):
        return None
    if None in parts.values() or module._parameters or module._buffers or any(part.state_dict() for part in more):
        return None
    dtype = dtype_of(module)
    if dtype not in DTYPES:  # packed integers of a quantized layer
        return None
    probes: Any = {name: nn.Linear(*sizes[name], bias=False, device="meta") for name in parts}
    for seed, (name, linear) in enumerate(probes.items()):
        linear.weight = nn.Parameter(numbers(*reversed(sizes[name]), dtype=dtype, seed=seed))
    x = numbers(3, 8, dtype=dtype, seed=len(probes))
    output = _output_with(module, {"_modules": module._modules | probes}, x)
    if "gate_up_proj" in probes:
        gate, up = probes["gate_up_proj"](x).chunk(2, dim=-1)
    else:
        gate = probes["gate_proj"](x)
        up = probes["up_proj"](x)
    for name, activation in ACTIVATIONS.items():
        if _same(output, probes["down_proj"](activation(gate) * up)):
            return name
    return None


@torch.no_grad()
def tables_of(library: Any, dtype: torch.dtype) -> set[torch.dtype]:
    """Returns the dtypes of cos and sin for which a modelling file's rotation of q and k in `dtype` equals `turned`."""
    q = numbers(1, 3, 5, 8, dtype=dtype, seed=0)
    k = numbers(1, 2, 5, 8, dtype=dtype, seed=1)
    tables = set()
    for table in {dtype, torch.float32} & set(DTYPES):
        cos, sin = numbers(2, 1, 5, 8, dtype=table, seed=2)
        rotated = _result_or_none(library, q, k, cos, sin)
        if not isinstance(rotated, tuple) or len(rotated) != 2:
            continue
        if _same(rotated[0], turned(q, cos, sin)) and _same(rotated[1], turned(k, cos, sin)):
            tables.add(table)
    return tables


def _output_with(module: nn.Module, entries: dict[str, Any], x: Tensor) -> Any:
    """Returns the output for x of a copy of the module with these attributes; None if it fails."""
    stand_in = copy.copy(module)
    stand_in.__dict__.update(entries)
    return _result_or_none(type(module).forward, stand_in, x)


def _result_or_none(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception:  # a function that fails in any way with these arguments has another form
        return None


def _same(output: Any, expected: Tensor) -> bool:
    return isinstance(output, Tensor) and output.dtype == expected.dtype and torch.equal(output, expected)


def dtype_of(module: nn.Module) -> torch.dtype:
    """Returns the dtype of the module's first parameter; float32 without parameters."""
    return next((p.dtype for p in module.parameters()), torch.float32)


def numbers(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Returns normally distributed random numbers on the host, fixed by the seed."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cpu").to(dtype)

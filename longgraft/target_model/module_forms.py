"""How transformers writes norms, gated products and rotations: what a module or function shows on random numbers.

Knows arithmetic and where it rounds; knows no family by name.  What is asked stays as it is, and so does torch's state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def normed(x: Tensor, epsilon: float) -> Tensor:
    """x [.., size] over its root mean square, in float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [1, H, n, D] by halves, in the wider dtype of x and of cos, sin [1, n, D]; of x's dtype."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None]).to(x.dtype)


NORMS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {     # by where they round, and what the weight is
    "rounded": lambda x, weight, epsilon: weight * normed(x, epsilon).to(x.dtype),              # Llama, Qwen, Mistral
    "wide": lambda x, weight, epsilon: (weight * normed(x, epsilon)).to(x.dtype),               # OLMo 2
    "from one": lambda x, weight, epsilon: (normed(x, epsilon) * (1.0 + weight.float())).to(x.dtype),   # Gemma
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "tanh": partial(F.gelu, approximate="tanh")}


@torch.no_grad()
def norm_of(module: nn.Module) -> tuple[str, float] | None:
    """Form and epsilon of a root-mean-square norm, which it shows with random weights; None: it is something else."""
    epsilon = module.__dict__.get("variance_epsilon", module.__dict__.get("eps"))
    weight = module._parameters.get("weight")
    if not isinstance(epsilon, float) or type(weight) is not nn.Parameter or weight.dtype not in DTYPES or (
            weight.ndim != 1 or len(module._parameters) > 1 or module._buffers or module._modules):
        return None
    sizes = torch.tensor([[0.0], [1e-3], [1.0], [50.0]], dtype=weight.dtype, device="cpu")
    x = numbers(4, len(weight), dtype=weight.dtype, seed=0) * sizes
    shown = 1 + numbers(len(weight), dtype=weight.dtype, seed=1) / 4
    said = _said(module, {"_parameters": {"weight": nn.Parameter(shown)}}, x)
    return next(((form, epsilon) for form, norm in NORMS.items() if _same(said, norm(x, shown, epsilon))), None)


@torch.no_grad()
def gate_of(module: nn.Module) -> str | None:
    """The activation of down(activation(gate) * up), which the module shows with small products; None: something else.

    Its projections are named gate_proj, up_proj and down_proj, or gate_up_proj and down_proj, as most families do.
    """
    sizes = {"gate_up_proj": (8, 32), "gate_proj": (8, 16), "up_proj": (8, 16), "down_proj": (16, 8)}
    parts = {name: part for name, part in module._modules.items() if name in sizes}
    others = [part for name, part in module._modules.items() if name not in sizes and part is not None]
    if parts.keys() not in ({"gate_up_proj", "down_proj"}, {"gate_proj", "up_proj", "down_proj"}) or (
            None in parts.values() or module._parameters or module._buffers
            or any(part.state_dict() for part in others)):
        return None
    dtype = dtype_of(module)
    shown: Any = {name: nn.Linear(*sizes[name], bias=False, device="meta") for name in parts}
    for seed, (name, linear) in enumerate(shown.items()):
        linear.weight = nn.Parameter(numbers(*reversed(sizes[name]), dtype=dtype, seed=seed))
    x = numbers(3, 8, dtype=dtype, seed=len(shown))
    said = _said(module, {"_modules": module._modules | shown}, x)
    gate, up = (shown["gate_up_proj"](x).chunk(2, dim=-1) if "gate_up_proj" in shown
                else (shown["gate_proj"](x), shown["up_proj"](x)))
    return next((name for name, act in ACTIVATIONS.items() if _same(said, shown["down_proj"](act(gate) * up))), None)


@torch.no_grad()
def tables_of(library: Any, dtype: torch.dtype) -> set[torch.dtype]:
    """The dtypes of cosines with which a modelling file's rotation of q and k in `dtype` is `turned`."""
    q, k = numbers(1, 3, 5, 8, dtype=dtype, seed=0), numbers(1, 2, 5, 8, dtype=dtype, seed=1)
    found = set()
    for table in {dtype, torch.float32} & set(DTYPES):
        cos, sin = numbers(2, 1, 5, 8, dtype=table, seed=2)
        said = _tried(library, q, k, cos, sin)
        if isinstance(said, tuple) and len(said) == 2 and all(
                _same(mine, turned(given, cos, sin)) for mine, given in zip(said, (q, k), strict=True)):
            found.add(table)
    return found


def _said(module: nn.Module, instead: dict[str, Any], x: Tensor) -> Any:
    """What the module would say of x with these entries; it stays as it is."""
    stand_in = copy.copy(module)
    stand_in.__dict__.update(instead)
    return _tried(type(module).forward, stand_in, x)


def _tried(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception:       # whatever another kind of function makes of such arguments, it is another kind
        return None


def _same(said: Any, expected: Tensor) -> bool:
    return isinstance(said, Tensor) and said.dtype == expected.dtype and torch.equal(said, expected)


def dtype_of(module: nn.Module) -> torch.dtype:
    """Its first parameter's."""
    return next((p.dtype for p in module.parameters()), torch.float32)


def numbers(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Random, on the host, the same each time."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cpu").to(dtype)

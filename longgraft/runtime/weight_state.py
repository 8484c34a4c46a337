"""Shows that weights have changed: by their addresses, by torch's version counters, and by a few of their numbers.

The counters miss changes through `.data`, as PEFT makes them when it merges an adapter.  A few numbers show
those, unless only other numbers were changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

SAMPLES = 32  # numbers of a weight that are compared
ADAPTER = ("_active_adapter", "_disable_adapters", "scaling")  # PEFT's attributes that switch adapters


def address_and_version(weight: Tensor) -> tuple[int, int]:
    """Returns a tensor's address, and how often torch knows it was changed; inference tensors have no counter."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def sample(weight: Tensor) -> Tensor:
    """Returns a copy of a few numbers of a weight."""
    return _spread(weight).clone()


def parts(tensor: Tensor, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yields (name, tensor) for the parts of a tensor: integers and scales of torchao's quantized ones, else itself."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield name, tensor
        return
    for inner in tensor.__tensor_flatten__()[0]:
        yield from parts(getattr(tensor, inner), f"{name}.{inner}")


@torch.inference_mode()
def weight_state(models: Iterable[nn.Module]) -> bytes:
    """Returns a digest that changes when a weight of these models is changed or replaced, or an adapter is switched."""
    modules = [module for model in models for module in model.modules()]
    weights = [part for module in modules for weight in _weights(module) for _, part in parts(weight)]
    state = hashlib.sha256(repr([*map(address_and_version, weights), *_adapters(modules)]).encode())
    samples: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for weight in weights:
        samples.setdefault((weight.dtype, weight.device), []).append(_spread(weight))
    for some in samples.values():  # one copy to the host for each kind
        state.update(torch.cat(some).view(torch.uint8).cpu().numpy().tobytes())
    return state.digest()


def addresses(models: Iterable[nn.Module]) -> list[int]:
    """Returns the addresses of all weights, on which recorded passes depend."""
    modules = (module for model in models for module in model.modules())
    weights = (weight for module in modules for weight in _weights(module))
    return [part.data_ptr() for weight in weights for _, part in parts(weight)]


def _weights(module: nn.Module) -> Iterator[Tensor]:
    """Yields a module's own parameters and saved buffers; other buffers follow from the configuration."""
    saved = (buffer for name, buffer in module._buffers.items() if name not in module._non_persistent_buffers_set)
    yield from (weight for weight in (*module._parameters.values(), *saved) if weight is not None)


def _adapters(modules: Iterable[nn.Module]) -> list[str]:
    return [f"{name} {module.__dict__[name]}" for module in modules for name in ADAPTER if name in module.__dict__]


def _spread(weight: Tensor) -> Tensor:
    """Returns a view of numbers that are spread over a weight."""
    flat = weight.detach().flatten()
    return flat[:: max(1, len(flat) // SAMPLES)]

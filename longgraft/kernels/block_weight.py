"""Weights that exist only as blocks of integers, in the place of a linear or embedding module's own weight.

torch's functions find such a weight by `__torch_function__`, as they find torchao's tensor subclasses. The
module stays what it is, and keeps no floats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NeedsFloats(AttributeError, ValueError):
    """Something asked a weight in blocks for what only a weight in floats has."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"The weights are blocks of integers, and {what} needs them as floats. Load the model with --weights float."
        )


class BlockWeight(ABC):
    """A matrix [rows, inputs] in blocks.  Indexing gives rows as floats, of `dtype`, as it does for a tensor.

    Args:
        shape: Rows and inputs.
        dtype: Dtype of the model's activations.
    """

    device = torch.device("cpu")
    ndim = 2

    def __init__(self, shape: tuple[int, int], dtype: torch.dtype) -> None:
        self.shape = torch.Size(shape)
        self.dtype = dtype

    @abstractmethod
    def rows(self, ids: Tensor) -> Tensor:
        """Returns the rows of these ids [n] as float32 [n, inputs]."""

    @abstractmethod
    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Computes F.linear with this weight."""

    @property
    @abstractmethod
    def sample(self) -> Tensor:
        """A few of the weight's bytes, which tell apart models that were trained separately."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Tensor:
        ids = torch.arange(len(self))[index]
        return self.rows(ids.flatten()).to(self.dtype).view(*ids.shape, self.shape[1])

    def __getattr__(self, name: str) -> Any:
        raise NeedsFloats(f"`weight.{name}`")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = dict(zip(("input", "weight", "bias"), args, strict=False)) | (kwargs or {})
        if function is F.linear:
            return arguments["weight"].product(arguments["input"], arguments.get("bias"))
        if function is F.embedding:
            return arguments["weight"][arguments["input"]]
        raise NeedsFloats(f"torch's {getattr(function, '__name__', function)}")


def put_weight(module: nn.Module, weight: BlockWeight) -> None:
    """Replaces a linear or embedding module's weight."""
    module._parameters.pop("weight", None)
    module.__dict__["weight"] = weight


def block_weights(model: nn.Module) -> Iterator[tuple[str, BlockWeight]]:
    """Yields (name, weight) of each weight in blocks, named as its parameter was."""
    for name, module in model.named_modules():
        for attribute, value in module.__dict__.items():
            if isinstance(value, BlockWeight):
                yield f"{name}.{attribute}", value

"""Records inputs and outputs of a model's modules, by hooks that are removed when a block ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


@contextmanager
def inputs_of(layers: nn.ModuleList, indices: tuple[int, ...], name: str) -> Iterator[dict[int, Tensor]]:
    """Yields the inputs [B, n, H] of some layers of model `name`; raises ValueError if they have another shape."""
    taken: dict[int, Tensor] = {}
    handles = []

    def take(index: int) -> Any:
        def hook(_: nn.Module, args: tuple, kwargs: dict) -> None:
            taken[index] = args[0] if args else kwargs["hidden_states"]
            if taken[index].ndim != 3:  # Gemma 3n has several streams
                raise ValueError(
                    f"{name}: the input of layer {index} is {list(taken[index].shape)}, and [1, "
                    "n, H] is needed. Use a method that reads no layers, such as graft-x-text."
                )

        return hook

    try:
        for index in indices:
            handles.append(layers[index].register_forward_pre_hook(take(index), with_kwargs=True))
        yield taken
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def decoder_output(model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    """Yields {"hidden": the decoder's output [n, H], after its final norm}."""
    taken: dict[str, Tensor] = {}

    def take(_: nn.Module, __: tuple, out: Any) -> None:
        taken["hidden"] = out[0][0]

    handle = model.get_decoder().register_forward_hook(take)
    try:
        yield taken
    finally:
        handle.remove()

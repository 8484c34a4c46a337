"""Maps each tensor of a GGUF file to the parameter of the model that it holds."""

from __future__ import annotations

import re
from typing import Any

from transformers import PreTrainedModel

from longgraft.models.gguf_architectures import ARCHITECTURES
from longgraft.models.gguf_header import ORIGINAL
from longgraft.models.gguf_tensors import TensorTable

UNUSED = ("rope_freqs.weight",)     # tensors whose content goes into the configuration
# A layer's number, and the parameter that holds two of the matrices or one.
_STACK = re.compile(r"(?P<module>.*\.(?P<layer>\d+)\..*)\.(?P<parameter>gate_up_proj|down_proj)")
_HELD = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}


def parameters_of(model: PreTrainedModel, table: TensorTable, processor: Any) -> dict[str, str]:
    """Returns the model's parameter for each tensor of the file, by their full names.

    A matrix of a layer's experts is MODULE.gate.weight, MODULE.up.weight or MODULE.down.weight, although the model's
    own module holds them together.

    Args:
        processor: transformers' own, which changes tensors of this architecture.
    """
    from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map

    if (ours := ARCHITECTURES.get(table.architecture)) is not None:
        layers = model.config.num_hidden_layers
        named = {tensor.name: ours.parameter(tensor.name, layers) for tensor in table.tensors}
        if unknown := [name for name, parameter in named.items() if parameter is None]:
            raise ValueError(f"The file holds {unknown[0]}, which longgraft does not know of {table.architecture} "
                             f"models. {ORIGINAL}")
        return {name: parameter for name, parameter in named.items() if parameter}
    experts = _experts(model)
    found = _by_full_name(model, table) | experts
    # transformers' own function also tries parts of names, and for that makes the package's table 300 times.
    if all(tensor.name in found or tensor.name in UNUSED for tensor in table.tensors):
        return found
    return get_gguf_hf_weights_map(model, processor) | experts


def _by_full_name(model: PreTrainedModel, table: TensorTable) -> dict[str, str]:
    """Returns the parameters whose full names the package knows."""
    import gguf

    kinds = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    if table.architecture not in kinds:
        return {}
    stems = gguf.get_tensor_name_map(kinds[table.architecture], model.config.num_hidden_layers)
    found = {}
    for parameter in model.state_dict():
        stem, _, suffix = parameter.rpartition(".")
        found[f"{stems.get_name(stem)}.{suffix}"] = parameter
    return found


def _experts(model: PreTrainedModel) -> dict[str, str]:
    """Returns the matrices of fused experts."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.ndim == 3 and (of := _STACK.fullmatch(name)):
            for part in _HELD[of["parameter"]]:
                found[f"blk.{of['layer']}.ffn_{part}_exps.weight"] = f"{of['module']}.{part}.weight"
    return found

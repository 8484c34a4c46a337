"""Maps each tensor of a GGUF file to the parameter of the model that it holds."""

from __future__ import annotations

import re
from typing import Any

from transformers import PreTrainedModel

from longgraft.models.gguf_architecture import JOINED, LATENTS, Architecture, Processor
from longgraft.models.gguf_architectures import ARCHITECTURES
from longgraft.models.gguf_guard import is_harmless
from longgraft.models.gguf_tensors import TensorTable

# A layer's number, and the parameter that holds two of the matrices of its experts or one.
_STACK = re.compile(r"(?P<module>.*\.(?P<layer>\d+)\..*)\.(?P<held>gate_up_proj|down_proj)(?P<bias>_bias)?")
_LAYER = re.compile(r"blk\.(?P<number>\d+)\.(?P<name>.*)")
BOTH = "gate_up"  # gates and ups of all experts in one tensor
_HELD = {"gate_up_proj": ("gate", "up", BOTH), "down_proj": ("down",)}


def processor_of(architecture: str, config: Any) -> Any:
    """Returns the object that undoes what the converter changed, with the interface of transformers' processors."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    ours = ARCHITECTURES[architecture]
    if ours.by_transformers:
        return TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config.to_dict())
    return Processor(ours, config.to_dict())


def parameters_of(model: PreTrainedModel, table: TensorTable, processor: Any) -> dict[str, str]:
    """Returns the model's parameter for each tensor that one takes, by their full names.

    A matrix of a layer's experts is MODULE.gate.weight, MODULE.up.weight or MODULE.down.weight, although the
    model's own module holds them together.

    Args:
        processor: transformers' own, which changes tensors of this architecture.
    """
    from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map

    architecture = ARCHITECTURES[table.architecture]
    own = _experts(model) | _renamed(model, architecture, table)
    parameters = _by_full_name(model, table.architecture, architecture) | own
    # transformers' own function also tries parts of names, and for that makes the package's table 300 times.
    is_whole = all(tensor.name in parameters or is_harmless(tensor.name) for tensor in table.tensors)
    if is_whole or not architecture.by_transformers:
        return parameters
    return get_gguf_hf_weights_map(model, processor) | own


def _by_full_name(model: PreTrainedModel, name: str, architecture: Architecture) -> dict[str, str]:
    """Returns the parameters whose full names the package knows."""
    import gguf

    kinds = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    kind = kinds.get(architecture.named_as or name)
    if kind is None:
        return {}
    names = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
    parameters = {}
    for parameter in model.state_dict():
        tensor = names.get_name(parameter, (".weight", ".bias"))
        if tensor is not None:
            parameters[tensor] = parameter
    return parameters


def _experts(model: PreTrainedModel) -> dict[str, str]:
    """Returns the matrices of fused experts, and their biases."""
    parameters = {}
    for name, _ in model.named_parameters():
        stack = _STACK.fullmatch(name)
        if stack:
            suffix = "bias" if stack["bias"] else "weight"
            for part in _HELD[stack["held"]]:
                parameters[f"blk.{stack['layer']}.ffn_{part}_exps.{suffix}"] = f"{stack['module']}.{part}.{suffix}"
    return parameters


def _renamed(model: PreTrainedModel, architecture: Architecture, table: TensorTable) -> dict[str, str]:
    """Returns the parameters that the package has no name for, or another one."""
    parameters = {}
    for tensor in table.tensors:
        layer = _LAYER.fullmatch(tensor.name)
        name = layer["name"] if layer else tensor.name
        if name not in architecture.renamed:
            continue
        parameter = architecture.renamed[name]
        if layer:
            parameter = f"{model.base_model_prefix}.layers.{layer['number']}.{parameter}"
        if _has(model, parameter):
            parameters[tensor.name] = parameter
    return parameters


def _has(model: Any, parameter: str) -> bool:
    """Returns True if the model has a parameter; joined matrices are named by their parts."""
    path, _, last = parameter.rpartition(".")
    try:
        module = model.get_submodule(path)
    except AttributeError:
        return False
    return last in (*LATENTS, *JOINED) or getattr(module, last, None) is not None

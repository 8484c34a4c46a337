"""Maps each tensor of a GGUF file to the parameter of the model that it holds."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from longgraft.models.gguf_architecture import JOINED, LATENTS, PARTS, Architecture, Processor
from longgraft.models.gguf_architectures import ARCHITECTURES
from longgraft.models.gguf_guard import is_harmless
from longgraft.models.gguf_tensors import TensorTable

# A layer's number, and the parameter that holds two of the matrices or one.
_STACK = re.compile(r"(?P<module>.*\.(?P<layer>\d+)\..*)\.(?P<parameter>gate_up_proj|down_proj)")
BOTH = "gate_up"  # gates and ups of all experts in one tensor
_HELD = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}


def processor_of(architecture: str, config: Any) -> Any:
    """Returns the object that undoes what the converter changed, with the interface of transformers' processors."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    ours = ARCHITECTURES[architecture]
    if ours.by_transformers:
        return TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config.to_dict())
    return Processor(ours, config.to_dict())


def parameters_of(model: PreTrainedModel, table: TensorTable, processor: Any) -> dict[str, str]:
    """Returns the model's parameter for each tensor of the file that one takes, by their full names.

    A matrix of a layer's experts is MODULE.gate.weight, MODULE.up.weight or MODULE.down.weight, although the
    model's own module holds them together.

    Args:
        processor: transformers' own, which changes tensors of this architecture.
    """
    from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map

    architecture = ARCHITECTURES[table.architecture]
    if not architecture.by_transformers:
        return _by_architecture(architecture, model, table)
    experts = _experts(model)
    parameters = _by_full_name(model, table) | experts
    # transformers' own function also tries parts of names, and for that makes the package's table 300 times.
    if all(tensor.name in parameters or is_harmless(tensor.name) for tensor in table.tensors):
        return parameters
    return get_gguf_hf_weights_map(model, processor) | experts


def _by_architecture(architecture: Architecture, model: PreTrainedModel, table: TensorTable) -> dict[str, str]:
    """Returns the parameters by the rules of an architecture that longgraft reads by itself."""
    parameters = {}
    for tensor in table.tensors:
        parameter = architecture.parameter(tensor.name, model.config.num_hidden_layers)
        if parameter and _has(model, parameter):
            parameters[tensor.name] = parameter
    return parameters


def _has(model: Any, parameter: str) -> bool:
    """Returns True if the model has a parameter; experts and joined matrices are named by their parts."""
    path, _, last = parameter.rpartition(".")
    module_path, _, part = path.rpartition(".")
    try:
        if part in (*PARTS, BOTH):
            experts = model.get_submodule(module_path)
            if isinstance(getattr(experts, "down_proj", None), Tensor):
                return last == "weight" or hasattr(experts, f"down_proj_{last}")
        module = model.get_submodule(path)
    except AttributeError:
        return False
    return last in (*LATENTS, *JOINED) or getattr(module, last, None) is not None


def _by_full_name(model: PreTrainedModel, table: TensorTable) -> dict[str, str]:
    """Returns the parameters whose full names the package knows."""
    import gguf

    kinds = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    if table.architecture not in kinds:
        return {}
    stems = gguf.get_tensor_name_map(kinds[table.architecture], model.config.num_hidden_layers)
    parameters = {}
    for parameter in model.state_dict():
        stem, _, suffix = parameter.rpartition(".")
        parameters[f"{stems.get_name(stem)}.{suffix}"] = parameter
    return parameters


def _experts(model: PreTrainedModel) -> dict[str, str]:
    """Returns the matrices of fused experts."""
    parameters = {}
    for name, parameter in model.named_parameters():
        stack = _STACK.fullmatch(name)
        if parameter.ndim == 3 and stack:
            for part in _HELD[stack["parameter"]]:
                tensor = f"blk.{stack['layer']}.ffn_{part}_exps.weight"
                parameters[tensor] = f"{stack['module']}.{part}.weight"
    return parameters

"""The second step of loading: turns a model's files and the settings into a target, its kernels and tokenizer."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from longgraft.config.settings import Settings
from longgraft.kernels.block_weight import block_weights, put_weight
from longgraft.kernels.build import NotBuilt
from longgraft.kernels.cpu import DTYPES, CpuKernels, cpu_kernels, packed_bytes
from longgraft.kernels.expert_weights import StackedWeight
from longgraft.kernels.integers import rounded
from longgraft.kernels.packed_weight import BLOCK_TYPES, PackedWeight
from longgraft.models.files import Files
from longgraft.models.gguf_filler import NoBlocks, filled_model
from longgraft.models.weights import check_finite
from longgraft.runtime.byte_rows import BYTES
from longgraft.runtime.device_memory import free_bytes
from longgraft.runtime.devices import device_of, dtype_of
from longgraft.target_model.cache_size import attention_layers, head_size
from longgraft.target_model.fused_model import fused
from longgraft.target_model.fused_modules import FusedModules
from longgraft.target_model.model import Target

ROUNDED = {"bfloat16": torch.bfloat16, "int8": BYTES}  # by values of `--kv-dtype` that round keys and values
CACHE_DTYPES = {"float32": torch.float32} | ROUNDED  # by all values of `--kv-dtype`
WITH_SINKS = {"gpt_oss", "mimo_v2_flash"}  # families whose attention has sinks
MOST_LANES = 16  # numbers of a head that compiled attention takes at once, with the widest vectors


@dataclass(frozen=True)
class LoadedTarget:
    """A target, its tokenizer or None, and notes for people about the choices that were made."""

    target: Target
    tokenizer: Any
    notes: tuple[str, ...] = ()


def load_target(files: Files, settings: Settings) -> LoadedTarget:
    """Loads a target with its kernels and with the weights that the settings ask for.

    Raises:
        ValueError: model, tokenizer and settings do not fit each other, or something is damaged.
        ImportError: the model is GGUF and the packages of the extra `gguf` are missing.
    """
    if files.loaded is not None:
        model, tokenizer = files.loaded
        target, notes = _target_of_loaded(model, files.name, settings)
        return LoadedTarget(target, tokenizer, notes)
    model, tokenizer, notes = _read(files, settings)
    target, why_slow = _target(model, files.name, settings)
    # Added tokens are not counted: some models ship a few that they never predict.
    if tokenizer is not None and tokenizer.vocab_size > target.vocab_size:
        raise ValueError(
            f"The tokenizer has {tokenizer.vocab_size:,} tokens and {target.name} predicts "
            f"{target.vocab_size:,}: it is another model's. Load the tokenizer of this model."
        )
    return LoadedTarget(target, tokenizer, (*notes, *why_slow))


def _read(files: Files, settings: Settings) -> tuple[PreTrainedModel, Any, tuple[str, ...]]:
    """Returns (the model on its device, its tokenizer, notes on its weights)."""
    device = device_of(settings.device)
    dtype = _wanted(settings.dtype, device)
    config = files.config
    floats = dtype or config.dtype or torch.bfloat16
    tokenizer = files.tokenizer
    model, notes = _in_blocks(files, dtype, device, settings)
    if files.table is not None:
        notes = (*files.table.notes, *notes)
    if model is None:
        model = files.in_floats(floats)
    return model.to(device), tokenizer, notes


def _target_of_loaded(model: PreTrainedModel, name: str, settings: Settings) -> tuple[Target, tuple[str, ...]]:
    """Returns (the target of a model that was given loaded, notes)."""
    if settings.weights == "gguf":
        raise ValueError(
            "A loaded model was given, which has no blocks of a GGUF file. Give --weights int8 or float, or the file."
        )
    target, notes = _target(model, name, settings)
    has_dtype = settings.dtype is None or dtype_of(settings.dtype) == target.dtype
    has_device = settings.device in (None, str(target.device), target.device.type)
    if not has_dtype or not has_device:
        raise ValueError(
            f"The model given is {target.dtype} on {target.device}; "
            f"{settings.dtype or 'any dtype'} on {settings.device or 'any device'} was asked for. "
            "Move it with model.to(...) first."
        )
    check_finite(model, name)
    return target, notes


def _in_blocks(
    files: Files, dtype: torch.dtype | None, device: torch.device, settings: Settings
) -> tuple[Any, tuple[str, ...]]:
    """Returns (the model with the file's blocks as weights, or None for floats; notes)."""
    if settings.weights not in ("auto", "gguf") or (settings.weights == "auto" and files.table is None):
        return None, ()
    try:
        if files.table is None:
            raise NoBlocks(f"{files.name!r} is no GGUF file")
        if device.type != "cpu" or dtype not in DTYPES or settings.kernels != "auto":
            raise NoBlocks(
                "blocks are for a CPU's compiled kernels in float32 or bfloat16, and "
                f"{str(dtype)[6:] if dtype else 'another dtype'} on {device} with --kernels "
                f"{settings.kernels} was asked for"
            )
        kernels = cpu_kernels()  # built only if they would be used
        if isinstance(kernels, NotBuilt):
            raise NoBlocks(str(kernels))
        if not files.table.in_blocks:
            types = ", ".join(BLOCK_TYPES)
            raise NoBlocks(f"no matrix of the file is in blocks that the kernels know ({types})")
        model = filled_model(files, dtype, kernels)
    except NoBlocks as why:
        if settings.weights == "gguf":
            raise ValueError(f"The file's blocks cannot be multiplied with: {why}. Leave --weights out.") from why
        return None, (f"weights are dequantised to floats: {why}",)
    notes = ["weights are the file's own blocks (--weights float dequantises them)"]
    if any(isinstance(weight, StackedWeight) and weight.on_disk for _, weight in block_weights(model)):
        notes.append("the model is larger than the free memory: its experts are read from the disk as they are needed")
    return model, tuple(notes)


def _target(model: PreTrainedModel, name: str, settings: Settings) -> tuple[Target, tuple[str, ...]]:
    """Returns (the target with its kernels, notes on kernels that were asked for and are missing)."""
    kernels = _kernels(settings, model)
    modules: FusedModules | NotBuilt | None = None
    if settings.graphs == "auto" and model.device.type == "cuda":
        modules = fused(model)
    _check_kernels(settings, model, kernels)
    notes = []
    if isinstance(kernels, NotBuilt):
        notes.append(f"no compiled kernels: {kernels}; torch decodes, more slowly")
        kernels = None
    if isinstance(modules, NotBuilt):
        notes.append(f"no fused kernels: {modules}; norms, gated products and rotations take several launches each")
        modules = None
    if modules is not None:
        notes += modules.notes
    if settings.weights == "int8" and kernels is not None:
        model = in_int8(model, kernels)
    target = Target(model, name, settings.attention, kernels, modules)
    if settings.kv_dtype in ROUNDED:
        target = replace(target, cache_dtype=ROUNDED[settings.kv_dtype])
    elif settings.kv_dtype is None and kernels is not None and target.attention == "split":
        cache_dtype = usual_cache_dtype(model.config, model.dtype, target.weights != "float")
        target = replace(target, cache_dtype=cache_dtype)
    return target, tuple(notes)


def _check_kernels(settings: Settings, model: PreTrainedModel, kernels: CpuKernels | NotBuilt | None) -> None:
    """Raises ValueError if the settings ask for something that needs other kernels."""
    needing = []
    if settings.weights in ("int8", "gguf"):
        needing.append("--weights")
    if settings.kv_dtype in ROUNDED:
        needing.append("--kv-dtype")
    if needing and not isinstance(kernels, CpuKernels):
        options = " and ".join(needing)
        dtype = str(model.dtype)[6:]
        why = kernels or f"this model is {dtype} on {model.device}, with kernels={settings.kernels}"
        raise ValueError(
            f"{options} needs a CPU's compiled kernels, which compute in float32 or bfloat16; here "
            f"{why}. Leave {options} out, or give --device cpu --dtype float32 --kernels auto."
        )
    if settings.kv_dtype == "float32" and model.dtype != torch.float32:
        raise ValueError(
            f"--kv-dtype float32 was given, and the model computes in {str(model.dtype)[6:]}. "
            "Give --dtype float32, too, or leave it out."
        )
    if settings.kv_dtype in ROUNDED and settings.attention not in ("auto", "split"):
        raise ValueError(
            "--kv-dtype is for the compiled kernels' attention, and --attention "
            f"{settings.attention} was given. Leave one of them out."
        )


def usual_cache_dtype(config: Any, dtype: torch.dtype, integers: bool) -> torch.dtype | None:
    """Returns the type of keys and values if none is asked for; None: the model's.

    Beside weights in integers they are rounded to bfloat16, which attention reads faster. Capped scores, sinks
    and odd heads are attended by torch, which would convert the whole cache in every pass.

    dtype: the activations'; integers: True if the linear weights are blocks of integers
    """
    text = config.get_text_config(decoder=True)
    if not attention_layers(text):
        return None
    torch_attends = (
        getattr(text, "attn_logit_softcapping", None) or head_size(text) % MOST_LANES or text.model_type in WITH_SINKS
    )
    if integers and dtype == torch.float32 and not torch_attends:
        return torch.bfloat16
    return None


def in_int8(model: PreTrainedModel, kernels: CpuKernels) -> PreTrainedModel:
    """Returns a model whose linear weights are rounded to bytes; it shares all other tensors with this one."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    in_bytes: Any = copy.deepcopy(model, shared)
    round_weights(in_bytes, kernels)
    return in_bytes


def round_weights(model: nn.Module, kernels: CpuKernels) -> None:
    """Rounds the linear weights of a model to bytes, in files."""
    packed: dict[int, PackedWeight] = {}  # tied weights are packed once
    for module in model.modules():
        if type(module) is not nn.Linear or type(module.weight) is not nn.Parameter:
            continue
        weight = module.weight
        if id(weight) not in packed:
            packed[id(weight)] = kernels.packed_integers(rounded(weight), weight.dtype)
        put_weight(module, packed[id(weight)])


def _wanted(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype | None:
    """Returns the dtype to load: float32 on a CPU, where decoding is exact; None: the saved weights'."""
    if dtype is not None:
        return dtype_of(dtype)
    return torch.float32 if device.type == "cpu" else None


def _kernels(settings: Settings, model: PreTrainedModel) -> CpuKernels | NotBuilt | None:
    """Returns the kernels or why there are none; None: they are off, or not for this device and dtype."""
    if (settings.kernels, model.device.type) != ("auto", "cpu") or model.dtype not in DTYPES:
        return None
    needed = packed_bytes(model, settings.weights == "int8") / 2**30
    free = free_bytes(model.device) / 2**30
    if needed > free:
        return NotBuilt(f"their copy of the weights takes {needed:.1f} GiB, and {free:.1f} are free")
    return cpu_kernels()

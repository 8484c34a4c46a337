"""From a model's name and settings to a target: its folder, weights, kernels and tokenizer.

Knows hub ids, folders and GGUF files; knows no method.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from longgraft.config.settings import Settings
from longgraft.kernels.build import NotBuilt
from longgraft.kernels.cpu import DTYPES, CpuKernels, Integers, cpu_kernels, packed_bytes
from longgraft.kernels.integers import linear_weights, rounded
from longgraft.models.gguf_blocks import READ, read_blocks
from longgraft.models.places import EMBEDDED, place_of
from longgraft.runtime.device_memory import free_bytes
from longgraft.runtime.devices import device_of, dtype_of
from longgraft.runtime.hub import hub_answers, offline
from longgraft.target_model.fused_modules import FusedModules, fused
from longgraft.target_model.model import Target
from longgraft.target_model.weights import check_finite, read_config, read_model, read_tokenizer


@dataclass(frozen=True)
class Source:
    """Where a target comes from.  name: as it was given; given: a loaded model and its tokenizer."""

    name: str
    given: tuple[PreTrainedModel, Any] | None = None


def resolve(model: Any) -> Source:
    """Reads nothing.  ValueError for what is no model."""
    if model in (None, EMBEDDED):
        return Source(EMBEDDED)
    if isinstance(model, (str, Path)):
        return Source(str(model))
    if not isinstance(model, tuple):
        raise ValueError(f"A {type(model).__name__} was given as the model. "
                         "Pass (model, tokenizer), a name of `longgraft models`, a folder, a GGUF file or a hub id.")
    if len(model) != 2 or not isinstance(model[0], PreTrainedModel):
        raise ValueError(f"({', '.join(type(part).__name__ for part in model)}) was given as the model. Pass "
                         "(model, tokenizer): a transformers model, and its tokenizer or None.")
    return Source(getattr(model[0].config, "_name_or_path", "") or type(model[0]).__name__, given=model)


def load_target(source: Source, settings: Settings) -> tuple[Target, Any]:
    """(target, its tokenizer or None); ValueError where they do not fit each other or the settings."""
    if source.given is not None:
        model, tokenizer = source.given
        if settings.weights == "gguf":
            raise ValueError("A loaded model was given, which has no blocks of a GGUF file. Give --weights int8 or "
                             "float, or the file.")
        target = _target(model, source.name, settings)
        asked = None if settings.dtype is None else dtype_of(settings.dtype)
        if asked not in (None, target.dtype) or settings.device not in (None, str(target.device), target.device.type):
            raise ValueError(f"The model given is {target.dtype} on {target.device}; {settings.dtype or 'any dtype'} "
                             f"on {settings.device or 'any device'} was asked for. Move it with model.to(...) first.")
        check_finite(model, source.name)
    else:
        name, device = source.name, device_of(settings.device)
        wanted = _wanted(settings.dtype, device)
        path = place_of(name, wanted, blocks=settings.weights == "gguf").path
        with nullcontext() if Path(path).exists() or hub_answers() else offline():
            config: Any = read_config(path, name)
            tokenizer = read_tokenizer(path, name)
            read: Any = read_model(path, name, config, wanted or config.dtype or torch.bfloat16)
        target = _target(read.to(device), name, settings, Path(path))
    # Without added tokens: some models ship a few that they never predict.
    if tokenizer is not None and tokenizer.vocab_size > target.vocab_size:
        raise ValueError(f"The tokenizer has {tokenizer.vocab_size:,} tokens and {target.name} predicts "
                         f"{target.vocab_size:,}: it is another model's. Load the tokenizer of this model.")
    return target, tokenizer


def _target(model: PreTrainedModel, name: str, settings: Settings, folder: Path | None = None) -> Target:
    """folder: where its weights are, and a GGUF file's blocks."""
    kernels = kernels_for(settings, model)
    small = fused(model) if settings.graphs == "auto" and model.device.type == "cuda" else None
    if not isinstance(kernels, CpuKernels) and (asked := [
            name for name, is_asked in (("--weights", settings.weights != "float"), ("--kv-dtype", settings.kv_dtype))
            if is_asked]):
        why = kernels or f"this model is {str(model.dtype)[6:]} on {model.device}, with kernels={settings.kernels}"
        raise ValueError(f"{' and '.join(asked)}: for a CPU's compiled kernels, in float32 or bfloat16, and {why}. "
                         f"Leave {' and '.join(asked)} out, or give --device cpu --dtype float32 --kernels auto.")
    if settings.kv_dtype and settings.attention not in ("auto", "split"):
        raise ValueError(f"--kv-dtype is for the compiled kernels' attention, and --attention {settings.attention} was "
                         "given. Leave one of them out.")
    return Target(model, name, settings.attention, kernels if isinstance(kernels, CpuKernels) else None,
                  small if isinstance(small, FusedModules) else None, _integers(settings, model, kernels, folder),
                  dtype_of(settings.kv_dtype) if settings.kv_dtype else None)


def _integers(settings: Settings, model: PreTrainedModel, kernels: Any, folder: Path | None) -> Integers | None:
    """The linear weights in integers, where the settings ask for them."""
    if settings.weights == "float":
        return None
    linear = dict(linear_weights(model))
    if settings.weights == "gguf" and folder:
        blocks = {name: of for name, of in read_blocks(folder).items() if name in linear}
        if not blocks:
            raise ValueError("The GGUF file has no matrix in blocks that the kernels multiply with "
                             f"({', '.join(READ)}). Give --weights int8, or leave --weights out.")
        return Integers("gguf", {name: kernels.packed_integers(of) for name, of in blocks.items()})
    return Integers("int8", {name: kernels.packed_integers(rounded(weight)) for name, weight in linear.items()})


def _wanted(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype | None:
    """On a CPU float32, where decoding is exact; None: what the weights were saved in."""
    if dtype is not None:
        return dtype_of(dtype)
    return torch.float32 if device.type == "cpu" else None


def kernels_for(settings: Settings, model: PreTrainedModel) -> CpuKernels | NotBuilt | None:
    """None where they are switched off, or do not apply to the device and dtype."""
    if (settings.kernels, model.device.type) != ("auto", "cpu") or model.dtype not in DTYPES:
        return None
    if (packed := packed_bytes(model, settings.weights != "float")) > (free := free_bytes(model.device)):
        needed, left = (size / 2 ** 30 for size in (packed, free))
        return NotBuilt(f"their copy of the weights takes {needed:.1f} GiB, and {left:.1f} are free")
    return cpu_kernels()

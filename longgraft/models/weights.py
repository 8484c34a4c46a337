"""Reads a target's configuration, tokenizer and weights from a folder or a hub id.

The result is complete and finite, or a ValueError is raised.  transformers only warns about some errors,
such as missing tensors; here they are errors.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from longgraft.files.file_errors import reason
from longgraft.runtime.weight_state import parts
from longgraft.target_model.supported import refuse

BLOCK = 1 << 24  # elements summed at once: numbers of 16 bits are widened to float32 for it
NAMED = 3  # tensors that an error message names
# Most of each size: several times those of the largest models.  transformers would build any number of layers.
SIZES = {
    "num_hidden_layers": 1 << 10,
    "hidden_size": 1 << 20,
    "num_attention_heads": 1 << 16,
    "num_key_value_heads": 1 << 16,
    "head_dim": 1 << 16,
    "vocab_size": 1 << 24,
}
_PLACE = (
    "Give a name of `longgraft models`, a folder with config.json and safetensors, a GGUF file, or a "
    "hub id that this machine can reach."
)


def read_config(path: str, name: str) -> PretrainedConfig:
    """Returns the configuration of a model; raises ValueError with the reason if the model cannot be decoded.

    Args:
        path: Folder or hub id.
        name: The model's name in messages.
    """
    with _reading(f"Model {name!r}", _PLACE):
        declared, _ = PretrainedConfig.get_config_dict(path)
        kind = declared.get("model_type")
        if "auto_map" in declared and kind not in CONFIG_MAPPING:
            raise ValueError(f"its type {kind!r} comes with code of its own, which longgraft never runs")
        _check_sizes(declared)
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    refuse(config, name)
    return config


def _check_sizes(declared: Mapping[str, Any]) -> None:
    """Raises ValueError for a size that no model has; others of a wrong type are transformers' to refuse."""
    parts = [part for part in (declared, declared.get("text_config")) if isinstance(part, dict)]
    for key, most in SIZES.items():
        for part in parts:
            size = part.get(key)
            if isinstance(size, int) and not 1 <= size <= most:
                raise ValueError(f"its {key} is {size:,}, and 1 to {most:,} are possible")


def read_tokenizer(path: str, name: str, gguf: str = "") -> Any:
    """Returns the model's tokenizer.

    Args:
        path: Folder or hub id.
        name: The model's name in messages.
        gguf: A GGUF file in the folder, which takes the place of the other files.

    Raises:
        ValueError: it has no words; transformers makes up such a tokenizer if files are missing.
    """
    advice = "Give a folder or hub id that holds the tokenizer's files too, or (model, None) to decode token ids."
    with _reading(f"The tokenizer of {name!r}", advice):
        options = {"gguf_file": gguf} if gguf else {}
        tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=False, **options)
        if len(tokenizer) <= len(tokenizer.get_added_vocab()):
            raise ValueError("its files are missing, or hold no words")
    return tokenizer


def read_model(path: str, name: str, config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Returns the model on the CPU, in eval mode.

    Raises:
        ValueError: tensors are missing, misshapen or not finite; the message names them.
    """
    with _quiet(), _reading(f"Model {name!r}", "Give whole weights of this model, as safetensors."):
        # Shapes are compared in `_check_names`, which can name the tensors.
        read: Any = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
        model, report = read
    _check_names(model, report, name)
    check_finite(model, name)
    return model.eval()


def check_finite(model: PreTrainedModel, name: str) -> None:
    """Raises ValueError with the names of the tensors that hold NaN or infinity."""
    floats: dict[str, torch.Tensor] = {}
    for whole, quantised in model.state_dict().items():
        floats |= {key: t for key, t in parts(quantised, whole) if t.is_floating_point() and t.itemsize > 1}
    # One read and one sync: a tensor with a finite sum is finite.  Other sums may have overflowed, so those
    # are checked.
    sums = torch.stack([_sum(t) for t in floats.values()])
    suspects = [key for key, finite in zip(floats, sums.isfinite().tolist(), strict=True) if not finite]
    broken = [key for key in suspects if not floats[key].isfinite().all()]
    if broken:
        dtype = floats[broken[0]].dtype
        raise ValueError(
            f"{name} holds NaN or infinite numbers in {_named(broken)}, read as "
            f"{str(dtype)[6:]}.\n"
            "Its answers would be meaningless. Fetch the weights again, or load them as "
            "bfloat16 or float32 if float16 is too small for them."
        )


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's sum in float32, made block by block."""
    return torch.stack([block.sum(dtype=torch.float32) for block in tensor.flatten().split(BLOCK)]).sum()


def _check_names(model: PreTrainedModel, report: dict[str, Any], name: str) -> None:
    """Raises ValueError with the names of tensors that transformers filled with random numbers or dropped.

    transformers' lists leave out tied weights and known leftovers.
    """
    advice = "config.json and the weights do not belong together, or a file is missing; fetch both again."
    shapes = {key: (saved, declared) for key, saved, declared in report["mismatched_keys"]}
    if shapes:
        first = min(shapes)
        saved, declared = (list(shape) for shape in shapes[first])
        raise ValueError(
            f"{name}: {first} is {saved} in the weights and {declared} by config.json ({len(shapes)} differ).\n{advice}"
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise ValueError(f"{name}: the weights lack {_named(missing)}.\n{advice}")
    stems = {_stem(key) for key in model.state_dict()} - {""}
    modules = {module for module, _ in model.named_modules()} - {""}
    extra = sorted(key for key in report["unexpected_keys"] if _stem(key) in stems or key.rpartition(".")[0] in modules)
    if extra:
        raise ValueError(f"{name}: the weights hold {_named(extra)}, which its configuration does not have.\n{advice}")


def _stem(key: str) -> str:
    """Returns the name before the layer number.

    An unexpected tensor outside of layers is harmless if it is another module's, such as a score head.
    """
    numbered = re.match(r"(.*?)\.\d+\.", key)
    return numbered[1] if numbered else ""


def _named(keys: Collection[str]) -> str:
    names = ", ".join(list(keys)[:NAMED])
    if len(keys) > NAMED:
        return f"{names} and {len(keys) - NAMED} more"
    return names


@contextmanager
def _reading(what: str, advice: str) -> Iterator[None]:
    """Turns any error of transformers, safetensors or pickle over files into a ValueError: one sentence and advice."""
    try:
        yield
    except ImportError:
        raise  # its message names the missing package
    # Broken files raise SafetensorError, UnpicklingError, KeyError, ZeroDivisionError...: they share no base class.
    except Exception as error:
        raise ValueError(f"{what} could not be loaded: {reason(error)}.\n{advice}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences transformers' loading bar and its table of random weights, which are errors here; download bars stay."""
    bars = logging.is_progress_bar_enabled()
    downloads = not are_progress_bars_disabled()
    verbosity = logging.get_verbosity()
    logging.disable_progress_bar()
    if downloads:
        enable_progress_bars()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
        if not downloads:
            disable_progress_bars()

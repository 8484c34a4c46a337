"""Checks that a GGUF file is read whole: no tensor, and no entry of the metadata that changes numbers, is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

from longgraft.models.gguf_architecture import Architecture
from longgraft.models.gguf_header import ORIGINAL
from longgraft.models.gguf_metadata import EPSILON, NORMS, RMS_EPSILON, Metadata
from longgraft.models.gguf_tensors import TensorTable

# Tensors that no parameter takes, by the end of their names, and why they may be left out.
HARMLESS_TENSORS = {
    "rope_freqs.weight": "its divisors are in the configuration",
    "attn_rot_embd": "a table that follows from rope.freq_base",
    "attn_rot_embd.weight": "a table that follows from rope.freq_base",
}
# Keys that need not be followed, and why.
HARMLESS = {
    "context_length": "families without it have no longest prompt",
    "vocab_size": "the embedding says it",
    "feed_forward_length": "the matrices' sizes say it",
    "expert_feed_forward_length": "the matrices' sizes say it",
    "expert_shared_feed_forward_length": "the matrices' sizes say it",
    "tensor_data_layout": "the origin of the file",
    "pooling_type": "embeddings of whole texts only",
    "rope.dimension_sections": "positions of text are the same in each section",
    "rope.scaling.type": "other scaling is refused when the file is opened",
    "rope.scaling.factor": "other scaling is refused when the file is opened",
    "rope.scale_linear": "other scaling is refused when the file is opened",
    "rope.scaling.finetuned": "the origin of a scaling",
    "rope.scaling.original_context_length": "changes nothing without a scaling",
    "rope.scaling.yarn_beta_fast": "changes nothing without a scaling",
    "rope.scaling.yarn_beta_slow": "changes nothing without a scaling",
    "rope.scaling.yarn_ext_factor": "changes nothing without a scaling",
    "rope.scaling.yarn_attn_factor": "changes nothing without a scaling",
    "rope.scaling.yarn_log_multiplier": "changes nothing without a scaling",
}


def is_harmless(tensor: str) -> bool:
    """Returns True if no parameter needs to take this tensor."""
    return tensor.endswith(tuple(HARMLESS_TENSORS))


def _head(config: Any) -> float:
    """Returns the numbers of a head; NaN if the family does not attend."""
    heads = getattr(config, "num_attention_heads", 0)
    if not heads:
        return math.nan
    return getattr(config, "head_dim", None) or config.hidden_size // heads


def _rotated(config: Any) -> float:
    rope = getattr(config, "rope_parameters", None) or {}
    return _head(config) * rope.get("partial_rotary_factor", 1.0)


def _epsilon(config: Any) -> float:
    return next(getattr(config, name) for name in NORMS.split() if hasattr(config, name))


# What a model computes with, by keys that need not be read because a family has one value, or follows from others.
COMPUTED: dict[str, Callable[[Any], Any]] = {
    "attention.causal": lambda config: True,
    "attention.head_count_kv": lambda config: getattr(config, "num_attention_heads", math.nan),
    "attention.key_length": _head,
    "attention.value_length": _head,
    "attention.scale": lambda config: (getattr(config, "query_pre_attn_scalar", None) or _head(config)) ** -0.5,
    EPSILON: _epsilon,
    RMS_EPSILON: _epsilon,
    "rope.dimension_count": _rotated,
    "rope.scaling.attn_factor": lambda config: 1.0,
    "embedding_scale": lambda config: 1.0,
    "residual_scale": lambda config: 1.0,
    "logit_scale": lambda config: 1.0,
    "expert_gating_func": lambda config: 1,  # softmax
    "expert_group_count": lambda config: 1,
    "expert_group_used_count": lambda config: 1,
    "expert_weights_scale": lambda config: 1.0,
}


def check_whole(
    name: str, table: TensorTable, taken: Collection[str], architecture: Architecture, read: tuple[Metadata, Any]
) -> tuple[str, ...]:
    """Checks that a file is followed in all that changes numbers, and returns notes on keys that are not known.

    Args:
        name: Name of the model in messages.
        taken: Tensors that parameters of the model take.
        read: The metadata, which knows the keys that were read, and the configuration that was made of it.

    Raises:
        ValueError: a tensor is not taken, or a key is not followed.
    """
    metadata, config = read
    layers = config.num_hidden_layers
    drafting = tuple(f"blk.{layer}." for layer in range(layers, layers + metadata.get("nextn_predict_layers", 0)))
    for tensor in table.tensors:
        harmless = is_harmless(tensor.name) or tensor.name.startswith(drafting)
        if tensor.name not in taken and not harmless:
            raise ValueError(
                f"Model {name!r} holds the tensor {tensor.name}, which {config.model_type} models have no parameter "
                f"for: without it, the answers would be another model's. {ORIGINAL}"
            )
    notes = [f"{table.architecture}.{note}" for note in _notes(name, table, architecture, read)]
    return tuple(notes)


def _notes(name: str, table: TensorTable, architecture: Architecture, read: tuple[Metadata, Any]) -> Iterator[str]:
    """Yields notes on keys that are not followed; raises ValueError for one that changes numbers."""
    metadata, config = read
    known = set(known_keys())
    for key, value in metadata.items():
        used = architecture.constants.get(key, COMPUTED[key](config) if key in COMPUTED else None)
        told = value and key in architecture.notes
        followed = key in metadata.read or key in HARMLESS or key in architecture.harmless
        off = not value and used is not True  # 0, False and "" turn something off
        if told:
            yield f"{key} = {_shown(value)} is not followed: {architecture.notes[key]}"
        elif followed or off or (used is not None and _same(value, used)):
            continue
        elif used is None and key not in known:
            yield f"{key} = {_shown(value)} is not known, and not followed"
        else:
            instead = "" if used is None else f", and would compute with {used:g}"
            raise ValueError(
                f"Model {name!r} says {table.architecture}.{key} = {_shown(value)}, which longgraft does not follow "
                f"for {config.model_type} models{instead}: the answers would be another model's. {ORIGINAL}"
            )


def _same(value: Any, used: float) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(isinstance(number, int | float) and math.isclose(number, used, rel_tol=1e-5) for number in values)


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def known_keys() -> Iterator[str]:
    """Yields the keys of architectures that the package knows."""
    import gguf

    groups: list[type] = [gguf.Keys]
    for group in groups:
        for name, value in vars(group).items():
            if isinstance(value, type) and not name.startswith("_"):
                groups.append(value)
            elif isinstance(value, str) and value.startswith("{arch}."):
                yield value.removeprefix("{arch}.")

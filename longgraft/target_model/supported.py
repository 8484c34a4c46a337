"""Decides from a configuration alone if a model can be decoded, and gives the reason if not; no weight is read.

tests/target_model/test_families.py shows for every causal family that it is refused here or exact.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from torch import nn
from transformers import PretrainedConfig

from longgraft.target_model.stateful_modules import keeps_state

_CHUNKED = "attention is cut into chunks that a tree may cross"
_STATE = "it keeps a recurrent state, and a tree's branches would each need their own"
_SELECTS = "its layers attend to a selection or a summary of the past, and a tree's branches would each need their own"
_BIAS = "its attention adds a bias by position"
_HEAD = "its head is more than one product, so that a prompt's top tokens cannot be read from its output embedding"
_POSITIONS = "it counts positions from its padding token's id, not from 0"
_IMAGES = "its masks open blocks for images, which cannot be told from text here"
_FOLLOWS = "its attention is not causal: it sees what follows"
_DRAFTS = "it drafts for another model and needs that model's hidden states"

_STATEFUL = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}
WITHOUT_ATTENTION = {"linear_attention", "conv", "mlp", "moe"}  # kinds of layers that do not attend
_SELECTING = ("indexed_attention", "compressed_sparse_attention", "heavily_compressed_attention", "minimax_m3_sparse")
# Kind of a layer -> why it cannot be used; "" if it can.
_LAYERS = {
    "full_attention": "",
    "sliding_attention": "",
    **dict.fromkeys(_STATEFUL | WITHOUT_ATTENTION, ""),
    **dict.fromkeys(_SELECTING, _SELECTS),
    "chunked_attention": _CHUNKED,
}
_FAMILIES = {
    "blt": "it predicts bytes with several inner models, each with its own states",
    "diffllama": "its layers attend twice, with values that are halves of the cache's",
    "doge": "its masks depend on its values, not on positions alone",
    "mllama": "some of its layers attend to an image",
    **dict.fromkeys(("inkling_text", "inkling2_text"), _BIAS),
    **dict.fromkeys(("bert", "electra", "ernie", "modernbert-decoder", "roc_bert"), _HEAD),
    **dict.fromkeys(
        ("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
        _POSITIONS,
    ),
    **dict.fromkeys(("gemma4_unified", "git"), _IMAGES),
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), _DRAFTS),
}


def why_not(config: PretrainedConfig, cls: type | None = None) -> str:
    """Returns why models of this configuration cannot be decoded; "" if they can.

    Args:
        config: The models' configuration.
        cls: The model's class; None: transformers' causal LM for this configuration.
    """
    if config.is_encoder_decoder:
        return "it is an encoder-decoder, and only decoder-only models are supported"
    reason = _FAMILIES.get(config.model_type, "")
    if reason:
        return reason
    # is_decoder is False also for some causal models (GPT-NeoX).
    if config.model_type == "bert-generation" and not config.is_decoder:
        return _FOLLOWS
    return _why_not_layers(config.get_text_config(decoder=True)) or _why_not_class(config, cls)


def _why_not_layers(text: Any) -> str:
    kinds = sorted(set(getattr(text, "layer_types", None) or ()))
    reasons = [_LAYERS[kind] for kind in kinds if _LAYERS.get(kind)]
    if reasons:
        return f"{reasons[0]} (layers: {', '.join(kinds)})"
    unknown = [kind for kind in kinds if kind not in _LAYERS]
    if unknown:
        return f"it has layers of unknown kinds: {', '.join(unknown)}"
    if getattr(text, "attention_chunk_size", None):
        return _CHUNKED
    if not getattr(text, "is_causal", True) or getattr(text, "use_bidirectional_attention", None) in (True, "all"):
        return _FOLLOWS
    rope = getattr(text, "rope_parameters", None) or {}
    rope_types = {rope.get("rope_type")}
    rope_types |= {part.get("rope_type") for part in rope.values() if isinstance(part, dict)}
    if rope_types & {"dynamic", "longrope"}:
        return "its rotary frequencies change at a length that a tree may straddle"
    return ""


def _why_not_class(config: PretrainedConfig, cls: Any) -> str:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if cls is None and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return "transformers has no causal LM for it"
    cls = cls or MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    kinds = set(getattr(config.get_text_config(decoder=True), "layer_types", None) or ())
    code = sys.modules[cls.__module__]
    stateful = getattr(cls, "_is_stateful", False) or kinds & _STATEFUL
    if stateful and not any(map(keeps_state, _module_classes(code))):
        return _STATE
    # Some classes use the interface without declaring it (StableLM), and some declare it and leave its use
    # to other classes (Gemma 3).
    if not (
        (kinds and kinds <= WITHOUT_ATTENTION)
        or getattr(cls, "_supports_attention_backend", False)
        or "ALL_ATTENTION_FUNCTIONS" in vars(code)
    ):
        return "its attention does not go through transformers' AttentionInterface"
    return ""


def _module_classes(code: ModuleType) -> list[type]:
    """Returns the classes of torch modules that a modelling file has."""
    return [value for value in vars(code).values() if isinstance(value, type) and issubclass(value, nn.Module)]


def refuse(config: PretrainedConfig, name: str, cls: type | None = None) -> None:
    """Raises ValueError with the reason if models of this configuration cannot be decoded."""
    reason = why_not(config, cls)
    if reason:
        raise ValueError(
            f"{name} ({config.model_type}) cannot be used: {reason}.\n"
            "Use a decoder-only attention model, e.g. Llama, Qwen2/3, Mistral or Gemma."
        )

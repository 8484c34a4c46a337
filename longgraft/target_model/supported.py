"""Which models cannot be decoded here, and why: from their configuration alone, before a weight is read.

Knows transformers' configurations; knows no tensor.  tests/test_families.py walks through all causal families and
shows that each is refused here or exact.
"""

from __future__ import annotations

import sys
from typing import Any

from transformers import PretrainedConfig

_CHUNKED = "attention is cut into chunks that a tree may cross"
_STATE = "it keeps a recurrent state, and a tree of guesses has no single one"
_SELECTS = "its layers attend to a selection or a summary of the past, of which a tree has no single one"
_SINKS = "its attention has sinks, which the split backends do not add yet"
_HEAD = "its head is more than one product, so that a prompt's top tokens cannot be read from its output embedding"
_POSITIONS = "it counts positions from its padding token's, not from 0"
_IMAGES = "its masks open blocks for images, which are not told from text here"
_FOLLOWS = "its attention sees what follows"
_DRAFTS = "it drafts for another model, whose states it needs"

_LAYERS = dict.fromkeys(("full_attention", "sliding_attention"), "") | dict.fromkeys(
    ("linear_attention", "conv", "hybrid", "hybrid_sliding"), _STATE) | dict.fromkeys(
    ("indexed_attention", "compressed_sparse_attention", "heavily_compressed_attention", "minimax_m3_sparse"),
    _SELECTS) | {"chunked_attention": _CHUNKED}
_FAMILIES = {
    "blt": "it predicts bytes with models inside it, each of which has states of its own",
    "diffllama": "its layers attend twice, with values that are halves of the cache's",
    "doge": "its masks follow from its values, not from positions alone",
    "mllama": "some of its layers attend to an image",
} | dict.fromkeys(("flint", "gpt_oss", "granite_swa", "granitemoe_swa", "mimo_v2_flash"), _SINKS) | dict.fromkeys(
    ("bert", "electra", "ernie", "modernbert-decoder", "roc_bert"), _HEAD) | dict.fromkeys(
    ("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    _POSITIONS) | dict.fromkeys(("gemma4_unified", "git"), _IMAGES) | dict.fromkeys(
    ("gemma4_assistant", "gemma4_unified_assistant"), _DRAFTS)


def why_not(config: PretrainedConfig, cls: type | None = None) -> str:
    """Why models of this configuration cannot be decoded here; "" where nothing speaks against it.

    cls: the model's class, where there is a model; by default transformers' causal LM of this configuration.
    """
    if config.is_encoder_decoder:
        return "it is an encoder-decoder, and only decoder-only models are supported"
    if reason := _FAMILIES.get(config.model_type, ""):
        return reason
    # Others that are causal say is_decoder = False, too (GPT-NeoX).
    if config.model_type == "bert-generation" and not config.is_decoder:
        return _FOLLOWS
    return _why_not_layers(config.get_text_config(decoder=True)) or _why_not_class(config, cls)


def _why_not_layers(text: Any) -> str:
    kinds = sorted(set(getattr(text, "layer_types", None) or ()))
    if reasons := [_LAYERS[kind] for kind in kinds if _LAYERS.get(kind)]:
        return f"{reasons[0]} (layers: {', '.join(kinds)})"
    if unknown := [kind for kind in kinds if kind not in _LAYERS]:
        return f"it has layers of a kind that is not known here: {', '.join(unknown)}"
    if getattr(text, "attention_chunk_size", None):
        return _CHUNKED
    if getattr(text, "kv_lora_rank", None):
        return "its keys and values have different sizes (multi-head latent attention)"
    if not getattr(text, "is_causal", True) or getattr(text, "use_bidirectional_attention", None) in (True, "all"):
        return _FOLLOWS
    if (layers := getattr(text, "num_hidden_layers", 1)) < 1:
        return f"its configuration declares {layers} layers"
    rope = getattr(text, "rope_parameters", None) or {}
    rope_types = {rope.get("rope_type")} | {r.get("rope_type") for r in rope.values() if isinstance(r, dict)}
    if rope_types & {"dynamic", "longrope"}:
        return "its rotary frequencies change with the length, and one tree may stand on both sides"
    return ""


def _why_not_class(config: PretrainedConfig, cls: Any) -> str:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if cls is None and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return "transformers has no causal LM for it"
    cls = cls or MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if getattr(cls, "_is_stateful", False):
        return _STATE
    # Not all that use the interface declare it (StableLM), and not all that declare it use it themselves (Gemma 3).
    if not (getattr(cls, "_supports_attention_backend", False)
            or "ALL_ATTENTION_FUNCTIONS" in vars(sys.modules[cls.__module__])):
        return "its attention does not go through transformers' AttentionInterface"
    return ""


def refuse(config: PretrainedConfig, name: str, cls: type | None = None) -> None:
    """ValueError by name and reason for models that cannot work, before any weight is read."""
    if reason := why_not(config, cls):
        raise ValueError(f"{name} ({config.model_type}) cannot be used: {reason}.\n"
                         "Use a decoder-only attention model, e.g. Llama, Qwen2/3, Mistral or Gemma.")

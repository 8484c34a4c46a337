"""Which models cannot be decoded here, and why: from their configuration alone, before a weight is read.

Knows transformers' configurations; knows no tensor.
"""

from __future__ import annotations

from transformers import PretrainedConfig

_CHUNKED = "attention is cut into chunks that a tree may cross"
_STATE = "it keeps a recurrent state, and a tree of guesses has no single one"


def why_not(config: PretrainedConfig) -> str:
    """Why models of this configuration cannot be decoded here; "" where nothing speaks against it."""
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ())
    rope = getattr(text, "rope_parameters", None) or {}
    rope_types = {rope.get("rope_type")} | {r.get("rope_type") for r in rope.values() if isinstance(r, dict)}
    if (layers := getattr(text, "num_hidden_layers", 1)) < 1:
        return f"its configuration declares {layers} layers"
    if config.is_encoder_decoder:
        return "it is an encoder-decoder, and only decoder-only models are supported"
    if not kinds <= {"full_attention", "sliding_attention"}:
        if "chunked_attention" in kinds:
            return _CHUNKED
        return f"{_STATE} (layers: {', '.join(sorted(kinds))})"
    if getattr(text, "attention_chunk_size", None):
        return _CHUNKED
    if getattr(text, "kv_lora_rank", None):
        return "its keys and values have different sizes (multi-head latent attention)"
    if config.model_type == "gpt_oss":
        return "its attention has sinks, which the split backends do not add yet"
    if rope_types & {"dynamic", "longrope"}:
        return "its rotary frequencies change with the length, and one tree may stand on both sides"
    return _why_not_class(config)


def _why_not_class(config: PretrainedConfig) -> str:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return "transformers has no causal LM for it"
    cls = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if getattr(cls, "_is_stateful", False):
        return _STATE
    if not getattr(cls, "_supports_attention_backend", False):
        return "its attention does not go through transformers' AttentionInterface"
    return ""


def refuse(config: PretrainedConfig, name: str) -> None:
    """ValueError by name and reason for models that cannot work, before any weight is read."""
    if reason := why_not(config):
        raise ValueError(f"{name} ({config.model_type}) cannot be used: {reason}.\n"
                         "Use a decoder-only attention model, e.g. Llama, Qwen2/3, Mistral or Gemma.")

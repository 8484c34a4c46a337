"""Architectures of GGUF files that longgraft reads, by itself or by transformers' names of the tensors."""

from __future__ import annotations

from typing import Any

from longgraft.models.gguf_architecture import SIGMOID, Architecture, in_halves, joined
from longgraft.models.gguf_hybrids import HYBRIDS, short_convolutions
from longgraft.models.gguf_metadata import EPSILON, Metadata, Names, layers_of, window, yarn

GEMMA_27B = {"gemma2": 46, "gemma3": 62}  # layers of the models whose scale is by the width and not by a head's
MELLUM_PERIOD = 4
GEMMA2_PERIOD = 2
GEMMA3_PERIOD = 6
GPT_OSS_PERIOD = 2
GEMMA2_WINDOW = 4096  # llama.cpp's, if a file names none


def _gpt_oss(metadata: Metadata, names: Names) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base", 150000.0)}
    scaling = yarn(metadata)
    if scaling:
        rope |= scaling | {"truncate": False}
    return window(metadata, GPT_OSS_PERIOD) | {"rope_parameters": rope}


def _deepseek(metadata: Metadata, names: Names) -> dict[str, Any]:
    """Heads have two sizes, for which files since 2025 have separate keys.  Some files do not name their router."""
    rotated = metadata["rope.dimension_count"]
    keys = metadata.get("attention.key_length_mla", metadata["attention.key_length"])
    entries = {
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": keys - rotated,
        "v_head_dim": metadata.get("attention.value_length_mla", metadata["attention.value_length"]),
        "num_key_value_heads": metadata["attention.head_count"],
        "q_lora_rank": metadata.get("attention.q_lora_rank"),
        "norm_topk_prob": metadata.get("expert_weights_norm", False),
        "n_group": metadata.get("expert_group_count", 1),
        "topk_group": metadata.get("expert_group_used_count", 1),
    }
    corrects = any("exp_probs_b" in name for name in names)
    gating = metadata.get("expert_gating_func")
    takes_sigmoid = corrects if gating is None else gating == SIGMOID
    if not takes_sigmoid:
        method = "group_limited_greedy" if entries["n_group"] > 1 else "greedy"
        entries |= {"model_type": "deepseek_v2", "topk_method": method, "head_dim": rotated}
    return entries


def _granite_moe(metadata: Metadata, names: Names) -> dict[str, Any]:
    shared = metadata.get("expert_shared_feed_forward_length")
    if not shared:
        return {}
    return {"model_type": "granitemoeshared", "shared_intermediate_size": shared}


def _mellum(metadata: Metadata, names: Names) -> dict[str, Any]:
    """Layers with a window rotate positions without the scaling of the others."""
    base = metadata.get("rope.freq_base", 500000.0)
    full = {"rope_type": "default", "rope_theta": base} | yarn(metadata)
    sliding = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base_swa", base)}
    return window(metadata, MELLUM_PERIOD) | {
        "rope_parameters": {"full_attention": full, "sliding_attention": sliding},
    }


def _sizes(metadata: Metadata) -> tuple[int, int]:
    """Returns (a head's share of the width, the size of its keys)."""
    share = metadata["embedding_length"] // metadata["attention.head_count"]
    return share, metadata.get("attention.key_length", share)


def _gemma2(metadata: Metadata, names: Names) -> dict[str, Any]:
    return window(metadata, GEMMA2_PERIOD, GEMMA2_WINDOW) | _scale(metadata, GEMMA_27B["gemma2"])


def _gemma3(metadata: Metadata, names: Names) -> dict[str, Any]:
    """Layers with a window have a rotation of their own.  Ollama's converter has other names for the two bases."""
    base = metadata.get("rope.freq_base", metadata.get("rope.global.freq_base", 1e4))
    of_windows = metadata.get("rope.freq_base_swa", metadata.get("rope.local.freq_base", 1e4))
    full = {"rope_type": "default", "rope_theta": base}
    sliding = {"rope_type": "default", "rope_theta": of_windows}
    rope = {"full_attention": full, "sliding_attention": sliding}
    return window(metadata, GEMMA3_PERIOD) | _scale(metadata, GEMMA_27B["gemma3"]) | {"rope_parameters": rope}


def _scale(metadata: Metadata, largest: int) -> dict[str, Any]:
    """Returns the square of the number that scores are divided by, which files do not hold.

    llama.cpp tells the largest model by its layers, too: its heads are not as wide as their share of the width.
    """
    share, size = _sizes(metadata)
    return {"query_pre_attn_scalar": share if layers_of(metadata) == largest else size}


def _stablelm(metadata: Metadata, names: Names) -> dict[str, Any]:
    return {"use_parallel_residual": not any(".ffn_norm." in name for name in names)}


def _mamba(metadata: Metadata, names: Names) -> dict[str, Any]:
    return {"expand": metadata["ssm.inner_size"] // metadata["embedding_length"]}


def _lfm2(metadata: Metadata, names: Names) -> dict[str, Any]:
    return short_convolutions(metadata) | {"block_auto_adjust_ff_dim": False}


def _qwen3_moe(metadata: Metadata, names: Names) -> dict[str, Any]:
    _, size = _sizes(metadata)
    return {
        "head_dim": size,
        "norm_topk_prob": metadata.get("expert_weights_norm", True),
    }


def _read_by_transformers(model_type: str, **more: Any) -> Architecture:
    return Architecture(model_type, by_transformers=True, **more)


ARCHITECTURES: dict[str, Architecture] = {
    "granite": Architecture("granite", change=in_halves),
    "granitemoe": Architecture(
        "granitemoe",
        joined("ffn_gate_shexp", "ffn_up_shexp", "shared_mlp.input_linear")
        | {"ffn_gate_inp.weight": "block_sparse_moe.router.weight"},
        more=_granite_moe,
        change=in_halves,
    ),
    "gpt-oss": Architecture("gpt_oss", {"attn_sinks.weight": "self_attn.sinks"}, more=_gpt_oss),
    "mellum": Architecture("mellum", named_as="qwen3moe", more=_mellum),
    "deepseek2": Architecture(
        "deepseek_v3",
        {
            "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
            "attn_k_b.weight": "self_attn.kv_b_proj.keys",
            "attn_v_b.weight": "self_attn.kv_b_proj.values",
        },
        more=_deepseek,
        harmless=dict.fromkeys(
            ("attention.head_count_kv", "attention.key_length", "attention.value_length"),
            "sizes of the latents, which other keys name",
        ),
    ),
    "llama": _read_by_transformers("llama"),
    "qwen2": _read_by_transformers("qwen2"),
    "qwen2moe": _read_by_transformers("qwen2_moe"),
    "qwen3": _read_by_transformers("qwen3"),
    "qwen3moe": _read_by_transformers("qwen3_moe", more=_qwen3_moe),
    "gemma2": _read_by_transformers("gemma2", more=_gemma2),
    "gemma3": _read_by_transformers("gemma3_text", more=_gemma3),
    "phi3": _read_by_transformers(
        "phi3",
        rotates_parts=True,
        notes={"attention.sliding_window": "every layer attends to the whole prompt, as in llama.cpp"},
    ),
    "starcoder2": _read_by_transformers("starcoder2", epsilon=EPSILON),
    "stablelm": _read_by_transformers(
        "stablelm",
        epsilon=EPSILON,
        rotates_parts=True,
        more=_stablelm,
        harmless={"use_parallel_residual": "the norms that a file has say it, as in llama.cpp"},
    ),
    "nemotron": _read_by_transformers("nemotron", epsilon=EPSILON, rotates_parts=True),
    "gpt2": _read_by_transformers("gpt2", epsilon=EPSILON),
    "mamba": _read_by_transformers("mamba", more=_mamba),
    "lfm2": _read_by_transformers("lfm2", more=_lfm2),
    "minimax-m2": _read_by_transformers("minimax_m2", rotates_parts=True, constants={"expert_gating_func": SIGMOID}),
} | HYBRIDS
"""Architectures by the names that files give them."""

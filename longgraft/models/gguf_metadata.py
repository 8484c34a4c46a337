"""The metadata of GGUF files: which entry of a configuration each key sets, and llama.cpp's readings of absent keys."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

Names = Collection[str]
"""Names of the tensors of a file."""


class Metadata(dict[str, Any]):
    """Metadata of a file, by keys without the architecture before them.

    Attributes:
        read: Keys that were looked up, whether the file has them or not.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


RMS_EPSILON = "attention.layer_norm_rms_epsilon"
EPSILON = "attention.layer_norm_epsilon"
ENTRIES = {
    "context_length": "max_position_embeddings n_positions",
    "block_count": "num_hidden_layers n_layer",
    "embedding_length": "hidden_size n_embd",
    "feed_forward_length": "intermediate_size n_inner",
    "attention.head_count": "num_attention_heads n_head",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.scale": "attention_multiplier",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "leading_dense_block_count": "first_k_dense_replace num_dense_layers",
    "expert_count": "num_local_experts num_experts n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_count": "n_shared_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
    "expert_weights_scale": "routed_scaling_factor",
    "shortconv.l_cache": "conv_L_cache",
    "ssm.conv_kernel": "conv_kernel linear_conv_kernel_dim mamba_d_conv",
    "ssm.state_size": "state_size linear_key_head_dim mamba_d_state",
    "ssm.group_count": "n_groups linear_num_key_heads mamba_n_groups",
    "ssm.time_step_rank": "num_heads linear_num_value_heads mamba_n_heads time_step_rank",
}
"""Entries of a configuration by key: the first of these names that the family has."""
ABSENT = {
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
    "leading_dense_block_count": 0,
    "expert_weights_norm": None,
    "expert_weights_scale": 1.0,
    "attention.head_count_kv": None,
    "attention.key_length": None,
    "attention.scale": None,
    "attention.q_lora_rank": None,
}
"""Values of keys that a file need not have, as llama.cpp reads them; None: the family's own, or it follows from others.

A file without another key that its family has an entry for is not whole.
"""
NORMS = "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_epsilon norm_eps"  # names of a norm's epsilon
_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output", "attn_q_a", "attn_kv_a_mqa")
_NETWORK = ("ffn_gate", "ffn_up", "ffn_down")
_PROJECTIONS = ("ssm_in", "ssm_out")
BIASES = {
    "attention_bias": _ATTENTION,
    "qkv_bias": _ATTENTION,
    "use_qkv_bias": _ATTENTION,
    "mlp_bias": _NETWORK,
    "use_bias": (*_ATTENTION, *_NETWORK, *_PROJECTIONS),
    "mamba_proj_bias": _PROJECTIONS,
    "use_conv_bias": ("ssm_conv1d",),
    "mamba_conv_bias": ("ssm_conv1d",),
}
"""Modules of a layer whose biases an entry of a configuration turns on: a file tells by their tensors."""


def share_of(count: int, size: int) -> float:
    """Returns count / size, rounded so that int(size * share) is the count again."""
    share = count / size
    return share if int(size * share) == count else math.nextafter(share, 1.0)


def first_of(names: str, fields: Names) -> str:
    """Returns the first of some names that a family has; "" if it has none."""
    return next((name for name in names.split() if name in fields), "")


def entries_of(metadata: Metadata, keys: Mapping[str, str], fields: Names) -> dict[str, Any]:
    """Returns entries of a configuration, by the names that its family has for the metadata's keys."""
    entries = {}
    for key, names in keys.items():
        entry = first_of(names, fields)
        if not entry:
            continue
        value = metadata.get(key, ABSENT[key]) if key in ABSENT else metadata[key]
        if value is not None:
            entries[entry] = value[0] if isinstance(value, list) and len(set(value)) == 1 else value
    return entries


def layers_of(metadata: Metadata) -> int:
    """Returns the number of layers, without those that predict several tokens."""
    return metadata["block_count"] - metadata.get("nextn_predict_layers", 0)


def window(metadata: Metadata, period: int, usual: int = 0) -> dict[str, Any]:
    """Returns the kinds of layers and the window.

    Args:
        period: Unless the file lists the layers, the last of so many has no window.
        usual: The window if the file names none.
    """
    layers = layers_of(metadata)
    pattern = metadata.get("attention.sliding_window_pattern", period)
    if isinstance(pattern, int):
        pattern = [(layer + 1) % pattern != 0 for layer in range(layers)]
    size = metadata.get("attention.sliding_window", usual)
    kinds = ["sliding_attention" if size and slides else "full_attention" for slides in pattern[:layers]]
    return {"layer_types": kinds, "sliding_window": size or None}


def yarn(metadata: Metadata) -> dict[str, Any]:
    """Returns entries of YaRN's rotary scaling; {} if positions are not scaled so."""
    if metadata.get("rope.scaling.type") != "yarn":
        return {}
    scaling = {
        "rope_type": "yarn",
        "factor": metadata["rope.scaling.factor"],
        "original_max_position_embeddings": metadata["rope.scaling.original_context_length"],
        "beta_fast": metadata.get("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": metadata.get("rope.scaling.yarn_beta_slow", 1.0),
    }
    attention_factor = metadata.get("rope.scaling.yarn_attn_factor")
    if attention_factor is not None:
        scaling["attention_factor"] = attention_factor
    return scaling

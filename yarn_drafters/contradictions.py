"""Refuses heads whose config.json contradicts their tensors, or asks for what this network does not compute.

Checks the fields that public configs get right.  head_dim, tie_word_embeddings, rope_theta and vocab_size are
not
checked: published heads have wrong ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longgraft.config.options import Count, checked
from longgraft.yarn_drafters.network import HeadConfig

FIX_CONFIG = "Correct config.json, or download the head again."


def refuse_contradictions(
    config: Mapping[str, Any], inner: Mapping[str, Any], head: HeadConfig, target_layers: int
) -> None:
    """Raises ValueError if a size in the config differs from the tensors.

    Args:
        config: The whole config.
        inner: The fields of the layers.
        head: What was read.
        target_layers: Number of layers of the target.
    """
    sizes = {
        "draft_vocab_size": (config, head.draft_vocab_size, "lm_head has rows"),
        "hidden_size": (inner, head.hidden_size, "fc has outputs"),
        "intermediate_size": (inner, head.intermediate_size, "gate_proj has rows"),
        "num_key_value_heads": (inner, head.kv_heads, f"k_proj has heads of {head.head_dim}"),
    }
    # EAGLE, SpecForge, ModelOpt and AutoModel make one layer whatever the config says, and published configs repeat the
    # target's number.  Speculators makes as many as it says.
    own_number = head.layers > 1 and inner.get("num_hidden_layers") != target_layers
    if own_number or config.get("speculators_model_type"):
        sizes["num_hidden_layers"] = (inner, head.layers, "the tensors make layers")
    for key, (where, size, words) in sizes.items():
        stated = checked(where.get(key), Count | None, key)
        if stated not in (None, size):
            raise ValueError(f"config.json says {key} {stated:,}, and {words}: {size:,}. {FIX_CONFIG}")
    stated = checked(config.get("target_hidden_size"), Count | None, "target_hidden_size")
    if stated not in (None, head.target_hidden_size):
        raise ValueError(
            f"The head was made for a target of hidden size {stated:,}, and this one has "
            f"{head.target_hidden_size:,}: it belongs to another target."
        )
    stated = checked(inner.get("vocab_size"), Count | None, "vocab_size")
    if stated not in (None, head.vocab_size) and head.draft_vocab_size != head.vocab_size:
        raise ValueError(
            f"The head was made for a vocabulary of {stated:,} and the target has "
            f"{head.vocab_size:,}: it belongs to another target."
        )


def refuse_unread(config: Mapping[str, Any], inner: Mapping[str, Any], named: Mapping[str, Sequence[int]]) -> None:
    """Raises ValueError if the config has settings that this network would silently ignore."""
    nested = checked(config.get("eagle_config"), dict | None, "eagle_config") or {}
    for flag, tensor in (("norm_before_fc", "input_norm.weight"), ("fc_norm", "fc_norm.0.weight")):
        if (config.get(flag) or nested.get(flag)) and tensor not in named:
            raise ValueError(f"config.json says {flag}, and there is no {tensor}. The file is cut: download it again.")
    if "input_norm.weight" in named and "fc_norm.0.weight" in named:
        raise ValueError(
            "The head has input_norm and fc_norm, and a head norms its features together or "
            "each by itself. The file is damaged: download it again."
        )
    for key, supported in (("hidden_act", "silu"), ("logit_scale", 1)):
        if inner.get(key, supported) not in (supported, None):
            raise ValueError(f"The head's {key} is {inner[key]!r}; only {supported!r} is supported. Use another head.")
    if nested.get("use_aux_hidden_state") is False:
        raise ValueError(
            "This head reads the target's last hidden state alone (use_aux_hidden_state is "
            "false); a head over several layers is needed."
        )


def attention_heads(inner: Mapping[str, Any], q_rows: int, k_rows: int) -> tuple[int, int, int]:
    """Returns (heads, head size, key-value heads): the heads from the config, the rest from the projections' rows."""
    heads = checked(inner.get("num_attention_heads"), Count, "num_attention_heads of config.json")
    size, rest = divmod(q_rows, heads)
    if rest or size % 2:
        raise ValueError(
            f"config.json says {heads:,} attention heads, and q_proj has {q_rows:,} rows: heads "
            f"of one even size are needed. {FIX_CONFIG}"
        )
    kv_heads, rest = divmod(k_rows, size)
    if rest or not kv_heads or heads % kv_heads:
        raise ValueError(
            f"config.json says {heads:,} attention heads, of {size} by q_proj's rows, and "
            f"k_proj has {k_rows:,} rows: whole heads that share the {heads:,} evenly are "
            f"needed. {FIX_CONFIG}"
        )
    return heads, size, kv_heads


def refuse_other_sizes(config: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Raises ValueError if a size in the config differs from the tensors or the target."""
    for key, size in sizes.items():
        stated = checked(config.get(key), Count | None, key)
        if stated not in (None, size):
            raise ValueError(
                f"config.json says {key} {stated:,}, and by the tensors or the target it is "
                f"{size:,}: the drafter belongs to another target, or its files do not belong "
                f"together. {FIX_CONFIG}"
            )

"""Sizes, names of tensors, and experts and heads that tiny GGUF files of several architectures share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from toys.gguf_files import TOKENS

Tensors = Iterator[tuple[str, Tensor]]
"""Names and tensors of a GGUF file."""

SIZES = dict(
    vocab_size=len(TOKENS),
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    pad_token_id=None,
    bos_token_id=None,
    eos_token_id=None,
    tie_word_embeddings=False,
)
MODULES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
"""Names of a file by those of the common modules."""


@dataclass(frozen=True)
class Architecture:
    """An architecture of GGUF files.

    Attributes:
        config: Name of transformers' configuration.
        entries: Entries of the configuration besides SIZES.
        metadata: Metadata besides the common sizes, by key without the architecture.
        modules: Names of a file besides MODULES.
        changed: (name in the layer, tensor, configuration) -> other tensors in its place, or None.
        written: Name of the architecture in a file; "": its name here.
        in_blocks: False if its matrices cannot stay in blocks.
    """

    config: str
    entries: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    changed: Callable[[str, Tensor, Any], Tensors | None] = lambda name, tensor, config: None
    written: str = ""
    in_blocks: bool = True


def fused_experts(name: str, tensor: Tensor, config: Any) -> Tensors | None:
    """Cuts fused gates and ups, which a file has apart."""
    if name.endswith("experts.gate_up_proj"):
        gate, up = tensor.chunk(2, dim=1)
        return iter((("ffn_gate_exps.weight", gate), ("ffn_up_exps.weight", up)))
    if name.endswith("experts.down_proj"):
        return iter((("ffn_down_exps.weight", tensor),))
    if name == "mlp.shared_expert_gate.weight":
        return iter((("ffn_gate_inp_shexp.weight", tensor[0]),))
    return None


def neighbours(tensor: Tensor, heads: int) -> Tensor:
    """Orders rows for a rotation of neighbours, as llama.cpp's; transformers rotates halves."""
    return tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2)


def granite(name: str, tensor: Tensor, config: Any) -> Tensors | None:
    """Orders queries and keys as llama.cpp, and cuts the shared network's first matrix."""
    stem, _, suffix = name.rpartition(".")
    heads = {
        "self_attn.q_proj": ("attn_q", config.num_attention_heads),
        "self_attn.k_proj": ("attn_k", config.num_key_value_heads),
    }
    if stem in heads:
        written, count = heads[stem]
        ordered = neighbours(tensor, count)
        return iter(((f"{written}.{suffix}", ordered if tensor.ndim > 1 else ordered.flatten()),))
    if name == "shared_mlp.input_linear.weight":
        suffix = "_shexp" if config.num_local_experts else ""
        gate, up = tensor.chunk(2)
        return iter(((f"ffn_gate{suffix}.weight", gate), (f"ffn_up{suffix}.weight", up)))
    if name == "shared_mlp.output_linear.weight":
        return iter((("ffn_down_shexp.weight" if config.num_local_experts else "ffn_down.weight", tensor),))
    return fused_experts(name, tensor, config)


EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
EXPERT_COUNTS = {"expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 32}
SHARED_EXPERT = {f"mlp.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
GRANITE = {
    "attention_bias": True,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.7,
    "logits_scaling": 2.0,
}
GRANITE_SCALES = {"attention__scale": 0.2, "embedding_scale": 3.0, "residual_scale": 0.7, "logit_scale": 2.0}

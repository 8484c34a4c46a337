"""Tiny configurations of all model families in transformers, and random models of them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

VOCAB, WINDOW = 96, 12
# Sizes of the tiny models, each with the names that configurations use for it.
SIZES = [
    (32, "hidden_size n_embd d_model embedding_size word_embed_proj_dim conf_hidden_size"),
    (
        48,
        "intermediate_size ffn_dim dff n_inner dense_intermediate_size encoder_ffn_dim moe_intermediate_size "
        "shared_expert_intermediate_size shared_intermediate_size moe_shared_expert_intermediate_size",
    ),
    (8, "head_dim kv_channels v_head_dim index_head_dim laurel_rank hidden_size_per_layer_input"),
    (6, "num_hidden_layers n_layer n_layers"),
    (
        4,
        "num_attention_heads n_head n_heads encoder_attention_heads conf_num_attention_heads "
        "num_experts num_local_experts n_routed_experts moe_num_experts",
    ),
    (3, "max_window_layers"),
    (
        2,
        "num_key_value_heads num_layers encoder_layers decoder_layers conf_num_hidden_layers num_experts_per_tok "
        "moe_topk moe_k eos_token_id",
    ),
    (1, "n_group topk_group num_dense_layers bos_token_id"),
    (0, "pad_token_id num_kv_shared_layers"),
    (True, "use_sliding_window"),
    (None, "activation_sparsity_pattern"),
    (VOCAB, "vocab_size vocab_size_per_layer_input"),
    (VOCAB - 1, "image_token_id image_token_index audio_token_id video_token_id"),
    (20, "pronunciation_vocab_size shape_vocab_size"),
    (
        16,
        "mamba_d_state ssm_state_size state_size chunk_size mamba_chunk_size linear_key_head_dim linear_value_head_dim",
    ),
    (4, "linear_num_key_heads linear_num_value_heads"),
    (256, "max_position_embeddings n_positions max_seq_len original_max_position_embeddings"),
    (WINDOW, "sliding_window keep_window_size"),
    (2 * WINDOW, "local_attention"),  # ModernBERT counts both sides
    (28, "image_size"),
    (14, "patch_size"),
]
SMALL = {name: size for size, names in SIZES for name in names.split()}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
NEEDED: dict[str, dict[str, Any]] = {  # further entries that a family's configuration needs
    "bamba": {"attn_layer_indices": [1, 3, 5], "mamba_n_heads": 8, "mamba_d_head": 8},
    "bert-generation": {"is_decoder": True},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 48},
    },
    "dots1": {"n_shared_experts": 1},
    "dots3_note": {
        "vision_config": {"num_hidden_layers": 42, "adapter_in_dim": 32, "adapter_out_dim": 32},
        "audio_config": {"adapter_input_size": 32, "adapter_out_dim": 32},
    },
    "falcon_h1": {
        "mamba_d_ssm": 64,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 16,
        "mamba_chunk_size": 16,
    },
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}},
    "gpt_neo": {"num_layers": 6, "attention_types": [[["global", "local"], 3]]},
    "granitemoehybrid": {
        "layer_types": ["linear_attention", "full_attention"] * 3,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
    },
    "kimi_linear": {"linear_head_dim": 8, "linear_num_heads": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 3},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 3},
    "longcat_flash": {"expert_ffn_hidden_size": 32, "ffn_hidden_size": 48, "zero_expert_num": 2},
    "mamba2": {"num_heads": 8},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 8},
    "zamba": {"layers_block_type": ["linear_attention", "linear_attention", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["linear_attention", "linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}


def tiny(cls: type[PretrainedConfig], **more: Any) -> PretrainedConfig:
    """Returns a configuration of this class in which all sizes listed above are small."""
    entries: dict[str, Any] = {name: size for name, size in SMALL.items() if name in cls.__dataclass_fields__}
    if "kv_lora_rank" in cls.__dataclass_fields__:  # latent attention: each head has keys of its own
        entries |= {"num_key_value_heads": 4, "kv_lora_rank": 16, "qk_rope_head_dim": 8}
    needed = NEEDED.get(cls.model_type, {}) | more
    for name, part in cls.sub_configs.items():
        kind = part if part is not AutoConfig else type(getattr(cls(**needed), name))
        if kind.model_type and kind is not type(None):
            needed[name] = tiny(kind, **needed.get(name, {})).to_dict()
    return cls(**entries | needed)


def random_model(config: PretrainedConfig) -> Any:
    """Returns a random float32 model with large weights."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    assert size < 1e7, f"{config.model_type} is not tiny"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.15)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model

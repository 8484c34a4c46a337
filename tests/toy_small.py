"""Toys of what small models and Medusa heads are, for a toy target."""

from __future__ import annotations

from functools import cache

import torch

from longgraft.target_model.model import Target
from longgraft.yarn_drafters.medusa import MedusaConfig, MedusaHeads


@cache
def small_model(vocab: int, seed: int = 0, layers: int = 2) -> Target:
    """A random Llama with something to say."""
    import transformers

    torch.manual_seed(100 + seed)
    config = transformers.LlamaConfig(vocab_size=vocab, hidden_size=16, intermediate_size=24, num_hidden_layers=layers,
                                      num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
                                      pad_token_id=0, bos_token_id=None, eos_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in name:
                parameter.mul_(15.0)
    return Target(model.eval(), "small")


def medusa_heads(target: Target, seed: int = 0, heads: int = 4, tied: bool = True) -> MedusaHeads:
    """Random heads of the target's sizes."""
    torch.manual_seed(200 + seed)
    made = MedusaHeads(MedusaConfig(target.config.hidden_size, target.vocab_size, heads, 1, tied))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.5)
    return made.eval().requires_grad_(False)

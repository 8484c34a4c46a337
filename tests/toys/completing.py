"""A toy session for tests of completion: bytes as tokens, with or without the tokens of Qwen2.5-Coder."""

from __future__ import annotations

from functools import cache

import torch

import longgraft
from toys.models import SMALL
from toys.tokenizers import SPELLINGS, byte_tokenizer

NAMES = tuple(SPELLINGS["qwen-coder"].split())


@cache
def model_of(size: int):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(4)
    return Qwen3ForCausalLM(
        Qwen3Config(
            **SMALL | {"vocab_size": size, "max_position_embeddings": 8192, "head_dim": 16, "num_hidden_layers": 2}
        )
    ).eval()


@cache
def toy(fim: bool = False):
    """Returns (model, tokenizer); fim: adds Qwen's tokens, which decode to their text unless they are cut off."""
    tokenizer = byte_tokenizer(("<|endoftext|>",), plain=NAMES if fim else ())
    return model_of(len(tokenizer)), tokenizer


def completing(fim: bool = False, **options):
    return longgraft.load(toy(fim), None, tell=False, **{"method": "pld"} | options)

"""Models of real shapes with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers

from longgraft.target_model.model import Target
from longgraft.yarn_drafters.network import Eagle3Network, HeadConfig
from longgraft.yarn_drafters.rope import Rope

YARN = Rope(kind="yarn", factor=32.0, original=2048)  # the rotary embedding of the 64K heads


@dataclass(frozen=True)
class Shape:
    """Sizes of a public target and its EAGLE-3 head.

    name: the target's name in the key of a session's costs
    config: fields of transformers' configuration class `family`; mlp, draft_vocab: sizes of the head
    """

    name: str
    family: str
    config: Mapping[str, Any]
    mlp: int
    draft_vocab: int = 32_000

    def small(self) -> Shape:
        """Returns a toy of the same family for a rehearsal; the number of positions stays."""
        sizes = dict(
            vocab_size=512,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
        )
        return replace(self, name=f"toy-{self.name}", config={**self.config, **sizes}, mlp=96, draft_vocab=256)

    def target(self, device: torch.device, dtype: torch.dtype, attention: str = "auto") -> Target:
        """Makes a target with random weights.  It is not cast, because that would cast its rotary frequencies, too."""
        config = getattr(transformers, self.family)(**self.config)
        with torch.device(device):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
        return Target(model.eval(), self.name, attention)

    def network(self, target: Target) -> Eagle3Network:
        """Makes a head for the target, which shares its embedding."""
        c = target.config
        config = HeadConfig(
            hidden_size=c.hidden_size,
            target_hidden_size=c.hidden_size,
            intermediate_size=self.mlp,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_dim=c.head_dim,
            vocab_size=c.vocab_size,
            draft_vocab_size=self.draft_vocab,
            max_positions=65_536,
            rope=YARN,
            layout="specpv",
            feature_layers=(2, c.num_hidden_layers // 2, c.num_hidden_layers - 3),
        )
        with torch.device(target.device):
            network = Eagle3Network(config).to(target.dtype)
        network.share_embedding(target.model.get_input_embeddings())
        return network.eval()


def _rope(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


def _qwen2(name: str, hidden: int, inner: int, layers: int, heads: int) -> Shape:
    """Returns the shape of a small Qwen2.5 with two key heads."""
    config = {
        "vocab_size": 151_936,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "head_dim": hidden // heads,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        **_rope(1e6),
    }
    return Shape(name, "Qwen2Config", config, mlp=inner)


SHAPES = {
    "llama-3.1-8b": Shape(
        "Llama-3.1-8B-Instruct",
        "LlamaConfig",
        {
            "vocab_size": 128_256,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            **_rope(
                5e5,
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=8192,
            ),
        },
        mlp=14_336,
    ),
    "qwen3-8b": Shape(
        "Qwen3-8B",
        "Qwen3Config",
        {
            "vocab_size": 151_936,
            "hidden_size": 4096,
            "intermediate_size": 12_288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40_960,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            **_rope(1e6),
        },
        mlp=12_288,
    ),
    "qwen2.5-0.5b": _qwen2("Qwen2.5-0.5B", 896, 4864, layers=24, heads=14),
    "qwen2.5-1.5b": _qwen2("Qwen2.5-1.5B", 1536, 8960, layers=28, heads=12),
    "embedded": Shape(
        "embedded",
        "Qwen3Config",
        {
            "vocab_size": 4096,
            "hidden_size": 256,
            "intermediate_size": 768,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "max_position_embeddings": 65_536,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
            **_rope(1e6),
        },
        mlp=768,
        draft_vocab=3584,
    ),
}

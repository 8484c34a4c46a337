"""The LongSpec drafter network (arXiv 2502.17421).

Self-attention covers a window of recent tokens; cross-attention reads the keys and values of the target's last layer.
Embedding, rotary angles and output layer are the target's, so that nothing of the target is learnt twice.

Letters: B batch, n tokens, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longgraft.target_model.model import Target
from longgraft.yarn_drafters.network import MLP, Attention, Product, RMSNorm, through
from longgraft.yarn_drafters.rope import rotate

SelfAttend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Self-attention: (q [B, nh, n, d], k, v [B, nkv, n, d] of the new rows) -> [B, nh, n, d], over these and the window"""

CrossAttend = Callable[[Tensor], Tensor]
"""Cross-attention: q [B, nh, n, d] -> [B, nh, n, d], over the target's keys and values of committed tokens"""

Angles = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class LongSpecConfig:
    """Shape of a LongSpec drafter."""

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float = 1e-6
    # Number of earlier tokens that self-attention sees (flash-attn's window_size, as in the official code).
    window: int = 512
    attention_bias: bool = False
    qk_norm: bool = False  # RMSNorm of queries and keys, as in Qwen3
    final_norm: bool = False  # RMSNorm before the target's output layer; official drafters have none


class CrossAttention(nn.Module):
    """Cross-attention: the drafter's queries, the target's keys and values."""

    def __init__(self, config: LongSpecConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        wide = config.heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, wide, bias=config.attention_bias)
        self.o_proj = nn.Linear(wide, config.hidden_size, bias=False)
        if config.qk_norm:
            self.q_norm: nn.Module = RMSNorm(config.head_dim, config.rms_eps)
        else:
            self.q_norm = nn.Identity()

    def forward(self, x: Tensor, angles: Angles, attend: CrossAttend, product: Product) -> Tensor:
        q = through(self.q_proj, x, product).view(*x.shape[:2], -1, self.head_dim)
        q = rotate(self.q_norm(q).transpose(1, 2), *angles)
        return through(self.o_proj, attend(q).transpose(1, 2).flatten(2), product)


class LongSpecNetwork(nn.Module):
    """The LongSpec network: token t is at position t and predicts token t + 1."""

    def __init__(self, config: LongSpecConfig) -> None:
        super().__init__()
        self.config = config
        h = config.hidden_size
        eps = config.rms_eps
        self.input_layernorm = RMSNorm(h, eps)
        self.self_attn = Attention(config, h)
        self.post_self_attention_layernorm = RMSNorm(h, eps)
        self.cross_attn = CrossAttention(config)
        self.post_cross_attention_layernorm = RMSNorm(h, eps)
        self.mlp = MLP(config)
        self.norm = RMSNorm(h, eps) if config.final_norm else nn.Identity()

    def forward(
        self,
        embedded: Tensor,
        angles: Angles,
        attend_self: SelfAttend,
        attend_target: CrossAttend,
        product: Product = linear,
    ) -> Tensor:
        """embedded [B, n, H] -> [B, n, H], the input of the target's output layer."""
        x = self.input_layernorm(embedded)
        hidden = embedded + self.self_attn(x, angles, 0, lambda _, q, k, v: attend_self(q, k, v), product)
        hidden = hidden + self.cross_attn(self.post_self_attention_layernorm(hidden), angles, attend_target, product)
        return self.norm(hidden + self.mlp(self.post_cross_attention_layernorm(hidden), product))

    def rows(self, embedded: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        """Returns the tokens' keys and values [B, nkv, n, d].

        In a single layer they depend on the tokens alone, so nothing else is computed for committed tokens.
        """
        x = self.input_layernorm(embedded)
        layer = self.self_attn
        shape = (*x.shape[:2], -1, self.config.head_dim)
        return (
            rotate(layer.k_norm(layer.k_proj(x).view(shape)).transpose(1, 2), *angles),
            layer.v_proj(x).view(shape).transpose(1, 2),
        )


@dataclass(frozen=True)
class SharedParts:
    """The parts of the target that a drafter uses; raises ValueError unless its rotary embedding rotates
    whole heads."""

    target: Target

    def __post_init__(self) -> None:
        self.angles(torch.zeros(1, 1, dtype=torch.int64, device=self.target.device), head_dim(self.target))

    def embed(self, tokens: Tensor, like: Tensor) -> Tensor:
        """[B, n] int64 -> [B, n, H] in `like`'s dtype."""
        return self.target.model.get_input_embeddings()(tokens).to(like.dtype)

    def angles(self, positions: Tensor, size: int) -> Angles:
        """positions [B, n] int64 -> cos, sin [B, n, d] float32."""
        rotary = getattr(self.target.model.get_decoder(), "rotary_emb", None)
        try:
            cos, sin = rotary(torch.empty(0, device=positions.device), positions)  # type: ignore[misc]
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{self.target.name} has no rotary embedding that all of its layers share, "
                "which a LongSpec drafter needs. Use another method."
            ) from error
        if cos.shape[-1] != size:
            raise ValueError(
                f"{self.target.name} rotates {cos.shape[-1]} of its heads' {size} dimensions; a "
                "LongSpec drafter needs all rotated. Use another method."
            )
        return cos.float(), sin.float()


def head_dim(target: Target) -> int:
    """Head size of the target's attention."""
    c = target.config
    return getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads


def kv_heads(target: Target) -> int:
    """Key-value heads of the target's attention."""
    c = target.config
    return getattr(c, "num_key_value_heads", None) or c.num_attention_heads

"""The EAGLE-3 drafter network (arXiv 2503.01840) with the options of public checkpoints.

Letters: B batch, n slots, H hidden, Ht target hidden, A auxiliary layers, V target vocabulary, D draft
    vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from longgraft.yarn_drafters.rope import Rope, apply_rotary_pos_emb, rotate

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [B, nh, n, d], k [B, nkv, n, d], v [B, nkv, n, d]) -> [B, nh, n, d]"""

Product = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]
"""(x [.., in], weight [out, in], bias [out] or None) -> [.., out]: F.linear or an equivalent"""


class Sizes(Protocol):
    """The sizes of a drafter that attention and MLP use."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def rms_eps(self) -> float: ...
    @property
    def qk_norm(self) -> bool: ...
    @property
    def attention_bias(self) -> bool: ...


@dataclass(frozen=True)
class HeadConfig:
    """Shape and options of an EAGLE-3 head.  Sizes come from tensors, flags from the layout."""

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    feature_layers: tuple[int, ...]  # indices into transformers' hidden_states: k is the input of layer k
    max_positions: int
    rope: Rope = Rope()
    layers: int = 1
    rms_eps: float = 1e-5
    norm_before_residual: bool = False  # the residual is the normed feature (speculators)
    norm_output: bool = False  # the next level reads the normed state (EAGLE-3.1)
    norm_before_fc: bool = False  # one RMSNorm over the concatenated features (vLLM, speculators)
    fc_norm: bool = False  # one RMSNorm per feature (EAGLE-3.1)
    qk_norm: bool = False  # Qwen3-style layers (speculators)
    attention_bias: bool = False
    fc_bias: bool = False
    window: int | None = None  # tokens that a slot sees, itself included; None: all
    layout: str = "eagle3"


def through(module: nn.Linear, x: Tensor, product: Product) -> Tensor:
    """Returns the module's output, computed by `product`."""
    return product(x, module.weight, module.bias)


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class Attention(nn.Module):
    """Projections and rotary embedding; the caller's `attend` provides the attention."""

    def __init__(self, config: Sizes, width: int) -> None:
        super().__init__()
        self.config = config
        bias = config.attention_bias
        self.q_proj = nn.Linear(width, config.heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, config.kv_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, config.kv_heads * config.head_dim, bias=bias)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden_size, bias=False)
        if config.qk_norm:
            self.q_norm: nn.Module = RMSNorm(config.head_dim, config.rms_eps)
            self.k_norm: nn.Module = RMSNorm(config.head_dim, config.rms_eps)
        else:
            self.q_norm = nn.Identity()
            self.k_norm = nn.Identity()

    def forward(
        self, x: Tensor, cos_sin: tuple[Tensor, Tensor], layer: int, attend: Attend, product: Product
    ) -> Tensor:
        q = self.q_norm(self._heads(through(self.q_proj, x, product)))
        k, v = self._keys_values(x, product)
        q, k = apply_rotary_pos_emb(q.transpose(1, 2), k, *cos_sin)
        return through(self.o_proj, attend(layer, q, k, v).transpose(1, 2).flatten(2), product)

    def keys_values(self, x: Tensor, cos_sin: tuple[Tensor, Tensor], product: Product) -> tuple[Tensor, Tensor]:
        """Returns rotated keys and values [B, nkv, n, d] of x [B, n, width]."""
        k, v = self._keys_values(x, product)
        return rotate(k, *cos_sin), v

    def _keys_values(self, x: Tensor, product: Product) -> tuple[Tensor, Tensor]:
        k = self.k_norm(self._heads(through(self.k_proj, x, product)))
        v = self._heads(through(self.v_proj, x, product))
        return k.transpose(1, 2), v.transpose(1, 2)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.config.head_dim)


class MLP(nn.Module):
    """SiLU-gated MLP."""

    def __init__(self, config: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, product: Product = linear) -> Tensor:
        gated = silu(through(self.gate_proj, x, product)) * through(self.up_proj, x, product)
        return through(self.down_proj, gated, product)


class FirstLayer(nn.Module):
    """Attention over cat(norm(embedding), norm(feature)), embedding first, then the MLP."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_eps)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_eps)
        self.self_attn = Attention(config, 2 * config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_eps)
        self.mlp = MLP(config)

    def forward(
        self, embedded: Tensor, hidden: Tensor, cos_sin: tuple[Tensor, Tensor], attend: Attend, product: Product
    ) -> Tensor:
        normed = self.hidden_norm(hidden)
        residual = normed if self.config.norm_before_residual else hidden
        both = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        hidden = residual + self.self_attn(both, cos_sin, 0, attend, product)
        return hidden + self.mlp(self.post_attention_layernorm(hidden), product)


class PlainLayer(nn.Module):
    """A decoder layer after the first, H wide; with qk_norm, that of Qwen3."""

    def __init__(self, config: Sizes, index: int) -> None:
        super().__init__()
        self.index = index
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_eps)
        self.self_attn = Attention(config, config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_eps)
        self.mlp = MLP(config)

    def forward(self, hidden: Tensor, cos_sin: tuple[Tensor, Tensor], attend: Attend, product: Product) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cos_sin, self.index, attend, product)
        return hidden + self.mlp(self.post_attention_layernorm(hidden), product)


class Eagle3Network(nn.Module):
    """The EAGLE-3 head: slot t reads the feature of position t and token t + 1, is at position t, and
    predicts token t + 2.

    embed_tokens is None for heads without an embedding, which use the target's from `share_embedding`.

    Attributes:
        d2t: [D] int64 offsets (target id = draft id + d2t[draft id]).
        t2d: [V] bool.
        notice: A sentence for people on how its config was read; "": nothing was doubtful.
    """

    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: HeadConfig, own_embedding: bool = False) -> None:
        super().__init__()
        self.config = config
        h = config.hidden_size
        self.notice = ""
        wide = len(config.feature_layers) * config.target_hidden_size
        if own_embedding:
            self.embed_tokens: nn.Embedding | None = nn.Embedding(config.vocab_size, h)
        else:
            self.embed_tokens = None
        if config.norm_before_fc:
            self.input_norm: nn.Module = RMSNorm(wide, config.rms_eps)
        else:
            self.input_norm = nn.Identity()
        self.fc_norm = nn.ModuleList(
            RMSNorm(config.target_hidden_size, config.rms_eps) for _ in config.feature_layers if config.fc_norm
        )
        self.fc = nn.Linear(wide, h, bias=config.fc_bias)
        self.midlayer = FirstLayer(config)
        self.layers = nn.ModuleList(PlainLayer(config, i) for i in range(1, config.layers))
        self.norm = RMSNorm(h, config.rms_eps)
        self.lm_head = nn.Linear(h, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))

    def share_embedding(self, embedding: nn.Embedding) -> None:
        """Uses the target's embedding, [V, H]; it is not in our state dict."""
        object.__setattr__(self, "_shared", embedding)

    def embed(self, tokens: Tensor) -> Tensor:
        """[B, n] int64 -> [B, n, H] in the network's dtype."""
        embedding = self.embed_tokens
        if embedding is None:
            embedding = self.__dict__["_shared"]
        return embedding(tokens).to(self.fc.weight.dtype)

    def fuse(self, features: Tensor, product: Product = linear) -> Tensor:
        """Target features [B, n, A * Ht] -> [B, n, H]; not for the network's own states."""
        if self.fc_norm:
            parts = features.chunk(len(self.fc_norm), dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return through(self.fc, self.input_norm(features), product)

    def forward(
        self,
        hidden: Tensor,
        tokens: Tensor,
        cos_sin: tuple[Tensor, Tensor],
        attend: Attend,
        product: Product = linear,
    ) -> Tensor:
        """hidden [B, n, H] (fused features or own states), tokens [B, n], their rotations -> states [B, n, H].

        The returned states are the input of the next drafted level and of `logits`.
        """
        hidden = self.midlayer(self.embed(tokens), hidden, cos_sin, attend, product)
        for layer in self.layers:
            hidden = layer(hidden, cos_sin, attend, product)
        if self.config.norm_output:
            return self.norm(hidden)
        return hidden

    def cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the rotations of positions [B, n], float32 [B, n, D] each."""
        return self.config.rope.cos_sin(positions, self.config.head_dim)

    def logits(self, states: Tensor, product: Product = linear) -> Tensor:
        """[..., H] -> [..., D] over the draft vocabulary."""
        return through(self.lm_head, self.normed(states), product)

    def normed(self, states: Tensor) -> Tensor:
        """Returns states [..., H] as the output layer reads them."""
        if self.config.norm_output:
            return states
        return self.norm(states)

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Converts draft vocabulary ids to target vocabulary ids."""
        return draft_ids + self.d2t[draft_ids]

"""The DFlash drafter network: one forward predicts all tokens of a block of masks after the newest token.

Source: DFlash (arXiv 2602.06036), whose layers are Qwen3's.

Letters: B batch, n slots, H hidden, A feature layers, V vocabulary, nkv key heads, d head size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longgraft.yarn_drafters.network import Attend, PlainLayer, Product, RMSNorm, through
from longgraft.yarn_drafters.rope import Rope

BLOCK = 16  # tokens of a block, the newest committed token included: DFlash's released setting


@dataclass(frozen=True)
class BlockConfig:
    """Shape of a block drafter.  Embedding and output layer are the target's, and so are H and V."""

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocab_size: int
    feature_layers: tuple[int, ...]  # indices into transformers' hidden_states: k is the input of layer k
    mask_token: int  # token id at the positions to predict
    max_positions: int
    block: int = BLOCK
    rope: Rope = Rope()
    rms_eps: float = 1e-6
    qk_norm: bool = True
    attention_bias: bool = False


class BlockNetwork(nn.Module):
    """The DFlash network.

    Slot 0 of a block is the newest committed token, the others are masks; slot i predicts the token at its own
    position.  For tokens before the block a layer sees only the target's features, projected to keys and values.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        h = config.hidden_size
        self.fc = nn.Linear(len(config.feature_layers) * h, h, bias=False)
        self.hidden_norm = RMSNorm(h, config.rms_eps)
        self.layers = nn.ModuleList(PlainLayer(config, index) for index in range(config.layers))
        self.norm = RMSNorm(h, config.rms_eps)

    def share(self, embedding: nn.Embedding, head: nn.Linear) -> None:
        """Uses the target's embedding and output layer, [V, H] each; they are not in our state dict."""
        object.__setattr__(self, "_shared", (embedding, head))

    def fuse(self, features: Tensor) -> Tensor:
        """Target features [B, n, A * H] -> [B, n, H], from which every layer projects keys and values."""
        return self.hidden_norm(self.fc(features))

    def injected(self, fused: Tensor, positions: Tensor, product: Product = linear) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields each layer's keys and values [B, nkv, n, d] of fused features [B, n, H] at positions [B, n]."""
        cos_sin = self._angles(positions)
        layers = cast("Iterable[PlainLayer]", self.layers)
        for layer in layers:
            yield layer.self_attn.keys_values(fused, cos_sin, product)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, product: Product = linear) -> Tensor:
        """tokens, positions [B, n] -> normed states [B, n, H], which `logits` reads."""
        embedding, _ = self.__dict__["_shared"]
        hidden = embedding(tokens).to(self.fc.weight.dtype)
        cos_sin = self._angles(positions)
        for layer in self.layers:
            hidden = layer(hidden, cos_sin, attend, product)
        return self.norm(hidden)

    def logits(self, states: Tensor, product: Product = linear) -> Tensor:
        """[..., H] -> [..., V]."""
        _, head = self.__dict__["_shared"]
        return through(head, states, product)

    def blocks(self, anchors: Tensor) -> Tensor:
        """Returns blocks: token ids [...] -> [..., block], each token followed by masks."""
        masks = torch.full((*anchors.shape, self.config.block - 1), self.config.mask_token, device=anchors.device)
        return torch.cat([anchors[..., None], masks], dim=-1)

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.config.rope.cos_sin(positions, self.config.head_dim)


def usual_layers(target_layers: int, count: int) -> tuple[int, ...]:
    """Returns DFlash's choice of feature layers: the outputs of `count` layers, spaced evenly from 1 to n - 3.

    An output is given as the input of the layer after it.
    """
    if count == 1:
        return (target_layers // 2 + 1,)
    return tuple(1 + round(1 + i * (target_layers - 4) / (count - 1)) for i in range(count))

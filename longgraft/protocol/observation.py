"""What the target reports of a pass, and what memories want of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longgraft.trees.padded import PaddedTree
from longgraft.trees.tree import ProposalTree

if TYPE_CHECKING:
    from longgraft.runtime.kv_cache import KVCache


@dataclass(frozen=True)
class Wants:
    """What a memory needs the target to report of each node.

    layers:  decoder layers whose inputs are reported, as indices into transformers' hidden_states; ascending
    final:   whether the hidden states after the final norm are reported
    topk:    K next tokens, 0 for none
    cache:   whether the target's cache of committed rows is reported
    queries: of how many last kept nodes the queries of every layer are reported; such a pass has no fixed shape
    prompt_queries: the same, of prompt chunks alone
    """

    layers: tuple[int, ...] = ()
    final: bool = False
    topk: int = 0
    cache: bool = False
    queries: int = 0
    prompt_queries: int = 0

    def __or__(self, other: Wants) -> Wants:
        """What both need, in one pass."""
        return Wants(tuple(sorted({*self.layers, *other.layers})), self.final or other.final,
                     max(self.topk, other.topk), self.cache or other.cache, max(self.queries, other.queries),
                     max(self.prompt_queries, other.prompt_queries))

    @classmethod
    def union(cls, wants: Iterable[Wants]) -> Wants:
        """What all of them need."""
        whole = cls()
        for one in wants:
            whole = whole | one
        return whole


@dataclass(frozen=True, eq=False)
class Walked:
    """A verified tree on the device, padded to n rows; valid until the next pass.

    tree: its nodes; path: [n] int64, then -1; length: [1] int64 of the path; topk: [n, K] int32, as `Observation.topk`
    """

    tree: PaddedTree
    path: Tensor
    length: Tensor
    topk: Tensor | None


@dataclass(frozen=True, eq=False)
class Observation:
    """The target ran on a tree and kept one path of it.  A prompt chunk is a chain that is kept whole.

    path:       [a] int64 node indices from the root to the last kept node
    next_token: the token after the path: the next root (or the next chunk's first token)
    topk:       [n, K] int32, the target's most probable next tokens per node, best first; None unless wanted
    hidden:     wanted layer -> [a, H], its input at the kept nodes
    final:      [a, H] after the final norm at the kept nodes; None unless wanted
    prompt:     whether this is a prompt chunk
    seconds:    of the pass, draw and walk included
    walked:     the same on the device, if the pass had a fixed shape
    ranked:     [r] int64, the nodes that topk has rows of, [r, K] then; None: all
    cache:      the target's committed rows, the kept ones included, readable until the next pass; None unless wanted
    queries:    layer -> [Hq, w, D], after rotary embedding, of the last w kept nodes; w: at most the wanted number
    """

    tree: ProposalTree
    path: Tensor
    next_token: int
    topk: Tensor | None = None
    hidden: Mapping[int, Tensor] = field(default_factory=dict)
    final: Tensor | None = None
    prompt: bool = False
    seconds: float = 0.0
    walked: Walked | None = None
    ranked: Tensor | None = None
    cache: KVCache | None = None
    queries: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def kept(self) -> Tensor:
        """[a] int64 tokens that are committed now."""
        return self.tree.tokens if len(self.path) == len(self.tree) else self.tree.tokens[self.path]

    @property
    def following(self) -> Tensor:
        """[a] int64: the token after each kept one."""
        return torch.cat([self.kept[1:], torch.tensor([self.next_token])])

    def features(self, layers: Sequence[int]) -> Tensor:
        """[a, F]: these layers' inputs at the kept nodes, side by side."""
        return torch.cat([self.hidden[layer] for layer in layers], dim=-1)

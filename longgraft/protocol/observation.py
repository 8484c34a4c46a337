"""Observations: what the target reports of a pass, and which parts of it memories want."""

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
    """The values that a memory wants the target model to report for each node.

    Attributes:
        layers: Decoder layers whose inputs are reported, as indices into transformers' hidden_states;
            ascending.
        final: True if the hidden states after the final norm are reported.
        topk: Number of most probable next tokens; 0: none.
        probabilities: True if the probabilities of these tokens are reported.
        cache: True if the target's KV cache of committed rows is reported.
        queries: Number of last kept nodes whose queries are reported for every layer; such a pass has no
            fixed shape.
        prompt_queries: The same, for prompt chunks only.
    """

    layers: tuple[int, ...] = ()
    final: bool = False
    topk: int = 0
    probabilities: bool = False
    cache: bool = False
    queries: int = 0
    prompt_queries: int = 0

    def __or__(self, other: Wants) -> Wants:
        """Returns what both need, in one pass."""
        return Wants(
            tuple(sorted({*self.layers, *other.layers})),
            self.final or other.final,
            max(self.topk, other.topk),
            self.probabilities or other.probabilities,
            self.cache or other.cache,
            max(self.queries, other.queries),
            max(self.prompt_queries, other.prompt_queries),
        )

    @classmethod
    def union(cls, wants: Iterable[Wants]) -> Wants:
        """Returns what all of them need."""
        whole = cls()
        for wanted in wants:
            whole = whole | wanted
        return whole


@dataclass(frozen=True, eq=False)
class Walked:
    """A verified tree on the device, padded to n rows; valid until the next pass.

    Attributes:
        tree: The padded tree.
        path: [n] int64, rows of the kept path, then -1.
        length: [1] int64, the path's length.
        topk: [n, K] int32, as `Observation.topk`.
    """

    tree: PaddedTree
    path: Tensor
    length: Tensor
    topk: Tensor | None


@dataclass(frozen=True, eq=False)
class Observation:
    """Result of one target pass: the target model ran on a tree, and one path of it was kept.

    A prompt chunk is a chain that is kept whole.

    Attributes:
        tree: The tree that the target read.
        path: [a] int64 node indices from the root to the last kept node.
        next_token: The token after the path: the next root (or the next chunk's first token).
        topk: [n, K] int32, the target's most probable next tokens per node, best first; None unless wanted.
        topk_probabilities: [n, K] float32, their probabilities at temperature 1; None unless wanted.
        hidden: Wanted layer -> [a, H], its input at the kept nodes.
        final: [a, H] after the final norm at the kept nodes; None unless wanted.
        prompt: True for a prompt chunk.
        seconds: Duration of the pass, including draw and walk; 0 if it was over before the host asked for it.
        walked: The verified tree on the device, if the pass had a fixed shape.
        ranked: [r] int64, the nodes that have rows in topk and topk_probabilities, which are [r, K] then; None: all.
        cache: The target's committed rows, including the kept ones, readable until the next pass; None
            unless wanted.
        queries: Layer -> [Hq, w, D], after rotary embedding, of the last w kept nodes; w is at most the
            wanted number.
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
    topk_probabilities: Tensor | None = None

    @property
    def kept(self) -> Tensor:
        """[a] int64: the tokens that this pass commits."""
        return self.tree.tokens if len(self.path) == len(self.tree) else self.tree.tokens[self.path]

    @property
    def following(self) -> Tensor:
        """[a] int64: the token after each kept one."""
        return torch.cat([self.kept[1:], torch.tensor([self.next_token])])

    def features(self, layers: Sequence[int]) -> Tensor:
        """Returns [a, F]: these layers' inputs at the kept nodes, concatenated."""
        return torch.cat([self.hidden[layer] for layer in layers], dim=-1)

"""Inputs and outputs of a target pass: segments, each a tree or a prompt chunk of one sequence, and reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from longgraft.attention.layout import Layout
from longgraft.runtime.kv_cache import KVCache
from longgraft.trees.tree import ProposalTree


@dataclass(frozen=True, eq=False)
class Segment:
    """A tree or a prompt chunk to run on; its rows are written after the committed rows of its cache.

    Attributes:
        tree: The tree, or the chunk as a chain.
        cache: The cache that its rows are written to.
        logits: Whose logits are returned: those of "all" nodes, of the "last" one or of "none".
        ranked: [r] int64 on the host, the nodes whose top-k is reported if wanted; None: all.
    """

    tree: ProposalTree
    cache: KVCache
    logits: Literal["all", "last", "none"] = "all"
    ranked: Tensor | None = None

    @property
    def depths(self) -> Tensor:
        """[n] int64 on the host: the depths of its nodes."""
        if self.tree.is_chain:
            return torch.arange(len(self.tree))
        return self.tree.depths

    @property
    def record(self) -> Tensor:
        """[2, n] int64: tokens and positions."""
        return torch.stack([self.tree.tokens, self.cache.position + self.depths])

    @property
    def with_logits(self) -> slice:
        """The nodes whose logits are returned."""
        return {"all": slice(None), "last": slice(-1, None), "none": slice(0)}[self.logits]

    def layout(self, device: torch.device) -> Layout:
        """Returns the layout of what its rows see."""
        return Layout(self.cache.length, self.depths, None if self.tree.is_chain else self.tree.mask, device)


AFTER_DRAFTS = 16  # first turn after all passes of drafters


class Runner(Protocol):
    """A model whose passes several callers may share: the target, or a drafter's head; or a plan for a shared pass.

    Attributes:
        packs: True if rows of several callers may share a pass; set to False when such a pass fails.
        drafts: True if a verification follows its passes, so that they run first and in any mode of
            gradients.
    """

    packs: bool

    @property
    def name(self) -> str: ...

    @property
    def drafts(self) -> bool: ...

    def turn(self, wants: Any) -> int:
        """Returns the order in which passes run that wait at the same time.

        It is below AFTER_DRAFTS for passes of a drafter.
        """

    def forward(self, segments: Sequence[Any], wants: Any) -> list[Any]:
        """Returns one result per segment, in one pass."""


Shared = Callable[[Runner, Sequence[Any], Any], "list[Any]"]
SHARED: ContextVar[Shared | None] = ContextVar("longgraft_shared_passes", default=None)
"""Runs a pass together with those of other callers that wait; None: each caller runs its own passes."""


@dataclass(frozen=True, eq=False)
class Report:
    """Outputs for one segment of n nodes, made in inference mode: copy them before writing.

    All but the logits are None or empty unless wanted.

    Attributes:
        logits: [m, V] with m = n, 1 or 0.
        topk: [r, K] int32 of the r ranked nodes.
        topk_probabilities: [r, K] float32.
        hidden: Layer -> [n, H].
        final: [n, H], the final hidden states.
        queries: Layer -> [Hq, w, D] of all nodes, or of the last ones if not all logits are returned.
    """

    logits: Tensor
    topk: Tensor | None
    hidden: Mapping[int, Tensor]
    final: Tensor | None
    queries: Mapping[int, Tensor] = field(default_factory=dict)
    topk_probabilities: Tensor | None = None

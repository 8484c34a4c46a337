"""SpecPV (arXiv 2512.02337): verifies on a part of the KV cache, and only now and then on the whole cache.

It is lossy: tokens that are accepted on a part are kept, whatever the whole cache would give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor

from longgraft.acceptance.rules import AcceptanceRule, DrawThenWalk
from longgraft.config.options import option
from longgraft.config.settings import Drafting
from longgraft.methods.building import drafter
from longgraft.methods.method import Method
from longgraft.methods.needs import HEAD
from longgraft.methods.parts import Parts
from longgraft.protocol.observation import Observation, Wants
from longgraft.runtime.cuda_graphs import EAGER
from longgraft.target_model.verifier import Verifier
from longgraft.trees.padded import Tree, on_host
from longgraft.trees.tree import ROOT, ProposalTree
from longgraft.zoo.cascade import Cascade
from longgraft.zoo.partial_kv import PartialKVCache, partial
from longgraft.zoo.selection import Quest

SPECPV = "SpecPV (arXiv 2512.02337)"


@dataclass(frozen=True)
class _Behind:
    """The rule for a tree that follows `rows` tokens, which are kept unconditionally."""

    rule: AcceptanceRule
    own: ProposalTree
    rows: int

    @property
    def guesses(self) -> DrawThenWalk:
        return self.rule.guesses

    def __call__(self, tree: ProposalTree, logits: Tensor, positions: Tensor) -> tuple[Tensor, int]:
        path, token = self.rule(self.own, logits[self.rows :], positions[self.rows :])
        return torch.cat([torch.arange(self.rows), self.rows + path]), token


class PartialVerifier(Verifier):
    """A verifier on `partial`; if more than `most` tokens wait, the next tree is verified in full, together with them.

    The full pass gives the waiting tokens their true rows, and its queries select rows again; the first pass after the
    prompt is full, too.  If the selection leaves no row out, all passes are full.  cache: the cache of the next pass
    """

    def __init__(self, full: Verifier, partial: PartialKVCache, most: int) -> None:
        super().__init__(full.target, full.cache, full.rule, full.clock, full.regions, full.reads)
        self._full = full
        self._partial = partial
        self._most = most
        self._part = replace(full, cache=partial.cache, regions=EAGER)
        self._waiting: list[int] = []
        partial.reset(full.cache.capacity)

    def launch(self, tree: Tree, wants: Wants) -> Callable[[], Observation]:
        return lambda: self._verify(tree, wants)

    def _verify(self, tree: Tree, wants: Wants) -> Observation:
        """Commits the path that is accepted, on the part or in full."""
        if self.cache is self._full.cache or len(self._waiting) > self._most:
            return self._in_full(on_host(tree), wants)
        observation = self._part.verify(tree, wants)
        self._waiting += observation.kept.tolist()
        return observation

    def _in_full(self, tree: ProposalTree, wants: Wants) -> Observation:
        rows = len(self._waiting)
        behind = self._full
        if rows:
            behind = replace(self._full, rule=_Behind(self.rule, tree, rows))
        observation = behind.verify(_hung(tree, self._waiting), wants | self._partial.wants)
        self._waiting = []
        self._partial.observe(observation)
        if self._partial.chosen().whole:
            self.cache = self._full.cache
        else:
            self.cache = self._partial.fresh()
        if rows:
            return _without(observation, tree, rows)
        return observation


def _hung(tree: ProposalTree, tokens: list[int]) -> ProposalTree:
    """Returns the tree below a chain of these tokens."""
    if not tokens:
        return tree
    chain = ProposalTree.chain(torch.tensor(tokens), ROOT)
    return ProposalTree(
        torch.cat([chain.tokens, tree.tokens]),
        torch.cat([chain.parents, tree.parents + len(tokens)]),
        torch.cat([chain.scores, tree.scores]),
        torch.cat([chain.origin, tree.origin]),
    )


def _without(seen: Observation, tree: ProposalTree, rows: int) -> Observation:
    """Returns the observation of the tree alone, without the `rows` nodes before it, which were observed earlier."""
    reported: dict[str, Any] = {"hidden": {layer: states[rows:] for layer, states in seen.hidden.items()}}
    for name in ("topk", "topk_probabilities", "final"):
        states = getattr(seen, name)
        if states is not None:
            reported[name] = states[rows:]
    return replace(seen, tree=tree, path=seen.path[rows:] - rows, **reported)


@dataclass(frozen=True)
class SpecPVChoices(Drafting):
    """Choices of `specpv` and `specpv-exact`."""

    sinks: Annotated[int, Ge(0), Le(4096)] = option(
        2, "First blocks of 16 rows, always kept", unit="blocks", source="its code"
    )
    retrieved: Annotated[int, Ge(1), Le(65536)] = option(
        64,
        "Blocks that are chosen by the newest queries",
        unit="blocks",
        source="its code has 256, for contexts of 60,000 tokens",
    )
    local: Annotated[int, Ge(1), Le(4096)] = option(8, "Newest blocks, always kept", unit="blocks", source="its code")
    waiting: Annotated[int, Ge(1), Le(4096)] = option(
        20, "Tokens verified on the part before a full pass", unit="tokens", source="its code has 20"
    )
    score: Literal["corners", "bound"] = option(
        "corners",
        "Score of a block: the larger product with its corners, or Quest's bound",
        source="its code; arXiv 2406.10774",
    )

    def select(self) -> Quest:
        """Returns the selector of the kept rows."""
        return Quest(self.sinks, self.retrieved, self.local, corners=self.score == "corners")


def specpv_exact(p: Parts) -> Cascade:
    """Rows are selected again at each full pass."""
    return Cascade(p.target, drafter(p), partial(p, p.choices.select(), every=1), (p.choices.waiting, 60), p.clock)


def partial_verifier(p: Parts) -> Callable[[Verifier], Verifier]:
    """SpecPV's verification; each request has its own partial cache."""

    def wrapped(verifier: Verifier) -> Verifier:
        return PartialVerifier(verifier, PartialKVCache(p.target, p.choices.select(), 1, p.clock), p.choices.waiting)

    return wrapped


EXACT = Method(
    "specpv-exact",
    "EAGLE-3 trees verified on a part of the cache, what comes of them in full",
    SPECPV,
    specpv_exact,
    (HEAD,),
    choices=SpecPVChoices(waiting=6),
)
LOSSY = Method(
    "specpv",
    "EAGLE-3 trees verified on a part of the cache, and in full only now and then",
    SPECPV,
    drafter,
    (HEAD,),
    "lossy",
    choices=SpecPVChoices(),
    verifies=partial_verifier,
)

"""AdaPLD (arXiv 2606.05742): a copied chain, and branches of tokens that the target found probable at its source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from longgraft.config.options import Checked, option
from longgraft.methods.method import Method
from longgraft.methods.parts import Parts
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.target_model.model import Target
from longgraft.trees.tree import ProposalTree
from longgraft.trees.trie import Trie
from longgraft.zoo.anchors import Anchors, anchors, states
from longgraft.zoo.hidden_states import HiddenStates
from longgraft.zoo.pld_plus import ComparedLayer


@dataclass(frozen=True)
class Likeness:
    """The tokens that may replace a missing one."""

    embedding: Tensor  # [V, H]
    least: float  # lowest cosine of their embedding with the token's own


@dataclass(frozen=True)
class Branches:
    """The tokens that the target found most probable at an anchor."""

    count: int  # number of tokens, not counting the copied one
    final: HiddenStates  # the final norm's output at every committed position
    # [H] -> [V]; computed for one anchor per step, so that nothing of the vocabulary's size is stored.
    logits: Callable[[Tensor], Tensor]
    successors: bool = True  # True if each token is followed by one more

    @torch.inference_mode()
    def at(self, position: int, without: Sequence[int]) -> list[int]:
        """Returns the `count` most probable tokens after this position, except those in `without`."""
        best = self.logits(self.final.rows[position]).topk(self.count + len(without)).indices.tolist()
        return [token for token in best if token not in without][: self.count]


class AdaPld:
    """A proposer of a copied chain with branches.

    If there are few slots, the chain gets half of them and the branches the rest.

    Attributes:
        length: Most tokens that are copied.
        likeness: None: only the root's own token is an anchor.
        branches: None: a chain without branches.
    """

    def __init__(
        self,
        anchors: Anchors,
        length: int,
        likeness: Likeness | None,
        branches: Branches | None,
        clock: Clock | None = None,
    ) -> None:
        self.anchors = anchors
        self.length = length
        self.likeness = likeness
        self.branches = branches
        self.memories = (anchors.history, anchors.context, *((branches.final,) if branches else ()))
        self.clock = clock or Clock()

    def propose(self, ask: Ask) -> ProposalTree:
        with self.clock.part("retrieve"):
            text = self.anchors.history.up_to(ask.root)
            tree = Trie(ask.root, ask.budget)
            if ask.budget > 1:
                self._grow(tree, text, ask.root)
            return tree.tree()

    def _grow(self, tree: Trie, text: np.ndarray, root: int) -> None:
        copied, match = self.anchors.after_prediction(text, self.length)
        ((place, same),) = self._anchors(text, [root])
        if not len(place):
            tree.add(copied, match=match)
            return
        (at,) = self.anchors.closest([place], len(text) - 2)
        # Nothing is copied after a token that is only similar to the root.
        main = copied
        if same and not copied:
            main = text[at + 1 : at + 1 + self.length].tolist()
        branches = self._branches_at(text, at, main[:1]) if self.branches else []
        slots = tree.budget - 1
        tree.add(main[: max(slots - sum(map(len, branches)), (slots + 1) // 2)], match=match or 1)
        for branch in branches:
            tree.add(branch)

    def _branches_at(self, text: np.ndarray, at: int, copied: Sequence[int]) -> list[list[int]]:
        """Returns the branches, most probable first, each followed by its token's successor if there is one."""
        assert self.branches is not None
        tokens = self.branches.at(at, copied)
        if not self.branches.successors:
            return [[token] for token in tokens]
        groups = {
            token: group for token, (group, _) in zip(tokens, self._anchors(text, tokens), strict=True) if len(group)
        }
        # A branch has no hidden state yet, so its anchor's is compared.
        places = {}
        if groups:
            places = dict(zip(groups, self.anchors.closest([*groups.values()], at), strict=True))
        chains = []
        for token in tokens:
            chain = [token]
            if token in places:
                chain.append(int(text[places[token] + 1]))
            chains.append(chain)
        return chains

    def _anchors(self, text: np.ndarray, tokens: Sequence[int]) -> list[tuple[np.ndarray, bool]]:
        """Returns for each token (its anchors, True if they hold the token itself)."""
        anchors = {token: (self.anchors.of(text, token), True) for token in tokens}
        missing = [token for token, (group, _) in anchors.items() if not len(group)]
        missing = [token for token in missing if token not in self.anchors.never]
        if missing and self.likeness is not None:
            like = self.anchors.like(text, missing, self.likeness.embedding, self.likeness.least)
            anchors |= {token: (group, False) for token, group in zip(missing, like, strict=True)}
        return [anchors[token] for token in tokens]


@dataclass(frozen=True)
class AdaPldChoices(Checked):
    """Choices of `adapld`."""

    length: Annotated[int, Ge(1)] = option(30, "Tokens copied at most", source="AdaPLD")
    branches: Annotated[int, Ge(0), Le(64)] = option(
        4, "Branches: most probable tokens at the anchor", source="2 to 8 in AdaPLD"
    )
    successors: bool = option(True, "Follow each branch by one more token", source="AdaPLD")
    likeness: Annotated[float, Ge(-1), Le(1)] | None = option(
        0.55,
        "Least cosine of embeddings for another token to be an anchor",
        none="the token alone",
        source="docs/methods.md",
    )
    layer: ComparedLayer = None


def adapld(p: Parts) -> AdaPld:
    """AdaPLD, with likeness and branches as chosen."""
    target = p.target
    chosen = p.choices
    likeness = None
    if chosen.likeness is not None:
        likeness = Likeness(target.model.get_input_embeddings().weight[:], chosen.likeness)
    branches = None
    if chosen.branches:
        branches = Branches(chosen.branches, states(p, None), target.logits, chosen.successors)
    return AdaPld(anchors(p, special(target)), chosen.length, likeness, branches, p.clock)


def special(target: Target) -> frozenset[int]:
    """Returns the begin, end and padding ids of the configurations."""
    ids: set[int] = set()
    for config in (target.config, getattr(target.model, "generation_config", None)):
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            token = getattr(config, name, None)
            ids |= {token} if isinstance(token, int) else set(token or ())
    return frozenset(ids)


METHOD = Method(
    "adapld",
    "the same at greater length, also after similar tokens, with probable tokens as branches",
    "AdaPLD (arXiv 2606.05742)",
    adapld,
    budget=39,
    choices=AdaPldChoices(),
    looks_up=True,
)

"""The registry: every method is one expression over proposers.

Knows names and constructors; no code outside this file asks for a method by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from longgraft.compose import Graft, Plain, TailGraft
from longgraft.drafters.eagle3 import LEVELS, TOP_K, Eagle3Drafter
from longgraft.drafters.policies import DEFAULT_THRESHOLDS, Dense, Gates, Split
from longgraft.memories.adjacency import AdjacencyMatrix
from longgraft.observation import Clock, Proposer, PruningPolicy
from longgraft.retrievers.matrix import MatrixRetriever
from longgraft.retrievers.prompt_lookup import PromptLookup
from longgraft.target.model import Target
from longgraft.templates import DEEPEST, WIDEST, Template, bounded, chain, envelope, token_recycling
from longgraft.yarn_drafters.network import Eagle3Network

BUDGET = 60     # nodes per verification, root included; the paper's K_max
WINDOW = 2048   # tokens that a windowed drafter sees: what most heads are trained on


@dataclass
class Parts:
    """What methods are made of, and the settings that they share.

    snapshot: warm rows that every request starts from; None: empty.  persist: rows outlive a request instead.
    """

    target: Target
    network: Eagle3Network | None = None
    snapshot: Tensor | None = None
    thresholds: Mapping[int, float] = field(default_factory=lambda: DEFAULT_THRESHOLDS)
    split: int = 40             # nodes kept of 60 where nothing is pruned, root included (A15)
    levels: int = LEVELS
    top_k: int = TOP_K
    window: int | None = None   # tokens of its past that the drafter sees; None: what its checkpoint says
    depth: int | None = None    # bounds on retrieved trees: tokens in a row, successors of one token; None: Table 7's
    width: int | None = None
    persist: bool = False
    clock: Clock = field(default_factory=Clock)

    def drafter(self, policy: PruningPolicy, window: int | None = None) -> Eagle3Drafter:
        """window: the method's own, where the settings leave it open."""
        assert self.network is not None
        return Eagle3Drafter(self.network, policy, self.levels, self.top_k, self.clock, self.window or window)

    def gates(self) -> Gates:
        return Gates(self.thresholds)

    def matrix(self) -> AdjacencyMatrix:
        return AdjacencyMatrix(self.target.vocab_size, device=self.target.device)

    def retriever(self, shape: Callable[[int], Template] = envelope) -> MatrixRetriever:
        """Graft's: seeded by the prompt, refilled in the envelope's order."""
        if shape is envelope and (self.depth or self.width):
            shape = partial(bounded, depth=self.depth or DEEPEST, width=self.width or WIDEST)
        return MatrixRetriever(self.matrix(), snapshot=self.snapshot, shape=shape, persist=self.persist,
                               clock=self.clock)


@dataclass(frozen=True)
class Method:
    """A registry entry.  budget: the method's own, where it is not the common one; windowed: its drafter has no
    length limit."""

    name: str
    clause: str
    paper: str
    build: Callable[[Parts], Proposer]
    needs_drafter: bool = False
    needs_matrix: bool = False
    windowed: bool = False
    budget: int = BUDGET
    lossless: bool = True

    @property
    def needs(self) -> str:
        """In words, for people."""
        return ", ".join(["EAGLE-3 drafter"] * self.needs_drafter + ["top-k logits"] * self.needs_matrix) or "nothing"


GRAFT = "Draft Less, Retrieve More (arXiv 2605.20104)"
EAGLE3 = "EAGLE-3 (arXiv 2503.01840)"

METHODS: dict[str, Method] = {method.name: method for method in (
    Method("ar", "plain decoding, one token a step", "-", lambda p: Plain(), budget=1),
    Method("pld", "copies what followed the same n-gram before", "Prompt lookup decoding (Saxena, 2023)",
           lambda p: PromptLookup(clock=p.clock), budget=11),
    Method("token-recycling", "a static tree of the target's last top-8 per token, not seeded by the prompt",
           "Token Recycling (arXiv 2408.08696)",
           lambda p: MatrixRetriever(p.matrix(), shape=lambda _: token_recycling(), prompt=False, persist=True,
                                     in_order=True, clock=p.clock),
           needs_matrix=True, budget=81),
    Method("retrieval", "graft's matrix alone, seeded by the prompt; what a model without a head gets", GRAFT,
           lambda p: p.retriever(), needs_matrix=True),
    Method("eagle3", "a dense drafted tree, never pruned", EAGLE3, lambda p: p.drafter(Dense()),
           needs_drafter=True),
    Method("eagle3-window", "eagle3 with a drafter that sees only its last 2,048 tokens",
           EAGLE3 + "; vLLM, SGLang", lambda p: p.drafter(Dense(), window=WINDOW), needs_drafter=True, windowed=True),
    Method("graft", "drafts, stops when unsure, fills the freed slots from the matrix", GRAFT,
           lambda p: Graft(p.drafter(p.gates()), p.retriever(), p.clock),
           needs_drafter=True, needs_matrix=True),
    Method("graft-root", "never stops; a fixed 20 of 60 slots retrieved at the root", GRAFT + ", Figure 2",
           lambda p: Graft(p.drafter(Split()), p.retriever(), p.clock),
           needs_drafter=True, needs_matrix=True),
    Method("graft-tail", "never stops; four retrieved chains of five behind the best leaves", GRAFT + ", Figure 2",
           lambda p: TailGraft(p.drafter(Split()), p.retriever(chain), clock=p.clock),
           needs_drafter=True, needs_matrix=True),
    Method("graft-no-retrieval", "stops when unsure and leaves the freed slots empty", GRAFT + ", Figure 5",
           lambda p: p.drafter(p.gates()), needs_drafter=True),
    Method("graft-no-prune", "never stops; the retrieved share is the calibrated one", GRAFT + ", Figure 5",
           lambda p: Graft(p.drafter(Split(p.split)), p.retriever(), p.clock),
           needs_drafter=True, needs_matrix=True),
)}


def find(name: str) -> Method:
    """The entry of this name; ValueError lists the known ones."""
    if name not in METHODS:
        raise ValueError(f"Method {name!r} is unknown. Known: {', '.join(METHODS)}.")
    return METHODS[name]


def build(name: str, parts: Parts) -> Proposer:
    """The method's proposer; ValueError where a part is missing."""
    method = find(name)
    if method.needs_drafter and parts.network is None:
        without = ", ".join(m.name for m in METHODS.values() if not m.needs_drafter)
        raise ValueError(f"Method {name!r} needs an EAGLE-3 drafter for {parts.target.name}, and none was given.\n"
                         f"Pass --drafter PATH_OR_REPO, or use a method without one: {without}.")
    return method.build(parts)

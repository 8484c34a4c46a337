"""Plain decoding, EAGLE-3 and what this library adds to it.  Names and constructors only."""

from __future__ import annotations

from dataclasses import dataclass

from longgraft.config.options import check, option
from longgraft.drafters.pruning import Dense, Filled, Mass, Split
from longgraft.methods.combinators import Plain, TailGraft
from longgraft.methods.method import BUDGETED, DRAFTS, Method
from longgraft.methods.needs import HEAD
from longgraft.trees.templates import chain

WINDOW = 2048   # tokens that a windowed drafter sees: what most heads are trained on

SPLIT = DRAFTS | {"thresholds"}
GATED = SPLIT | {"online"}
RANKED = DRAFTS | {"warm"}
LOOKS_UP = BUDGETED | {"depth", "width", "warm"}

OURS = "docs/choices.md, one ranking"
GRAFT = "Draft Less, Retrieve More (arXiv 2605.20104)"
EAGLE3 = "EAGLE-3 (arXiv 2503.01840)"


@dataclass(frozen=True)
class Over:
    """What graft-x can be given."""

    source: str = option("", "Method whose nodes are ranked instead of the drafter's, where they carry probabilities",
                         none="the drafter")

    def __post_init__(self) -> None:
        check(self)


METHODS: tuple[Method, ...] = (
    Method("ar", "plain decoding, one token a step", "-", lambda p: Plain(), budget=1, takes=frozenset()),
    Method("retrieval", "graft's matrix alone, seeded by the prompt; what graft is without a head", GRAFT,
           lambda p: p.retriever(), takes=LOOKS_UP),
    Method("eagle3", "a dense drafted tree, never pruned", EAGLE3, lambda p: p.drafter(Dense()), (HEAD,), takes=DRAFTS),
    Method("eagle3-window", "eagle3 with a drafter that sees only its last 2,048 tokens", EAGLE3 + "; vLLM, SGLang",
           lambda p: p.drafter(Dense(), window=WINDOW), (HEAD,), takes=DRAFTS),
    Method("graft-x", "drafted and remembered nodes in one ranking by the probability of their paths", OURS,
           lambda p: p.ranked(Mass()), (HEAD,), takes=RANKED, fallback="graft-x-text",
           adaptive=lambda p: p.controlled(), choices=Over(), over=lambda chosen: chosen.source),
    Method("graft-x-text", "graft-x without a drafter: what followed the longest match", OURS, lambda p: p.ranked(),
           adaptive=lambda p: p.controlled(drafts=False)),
    Method("graft-x-no-text", "graft-x without the text: drafted nodes and the matrix", OURS,
           lambda p: p.ranked(Mass(), order=0), (HEAD,), takes=RANKED, adaptive=lambda p: p.controlled(order=0),
           choices=Over(), over=lambda chosen: chosen.source),
    Method("graft-x-no-probing", "graft-x that leaves a drafter which loses for the rest of an answer", OURS,
           lambda p: p.ranked(Mass()), (HEAD,), takes=RANKED, adaptive=lambda p: p.controlled(probing=False)),
    Method("graft-x-no-rows", "graft-x without the matrix", OURS, lambda p: p.ranked(Mass(), rows=False), (HEAD,),
           takes=DRAFTS),
    Method("graft-x-dense", "graft-x that never stops drafting", OURS, lambda p: p.ranked(Dense()), (HEAD,),
           takes=RANKED),
    Method("graft", "drafts, stops when unsure, fills the freed slots from the matrix", GRAFT,
           lambda p: p.graft(p.gated(), p.retriever()), (HEAD,), takes=GATED | LOOKS_UP,
           fallback="retrieval"),
    Method("graft-root", "never stops; a fixed 20 of 60 slots retrieved at the root", GRAFT + ", Figure 2",
           lambda p: p.graft(p.drafter(Split()), p.retriever()), (HEAD,), takes=DRAFTS | LOOKS_UP),
    Method("graft-tail", "never stops; four retrieved chains of five behind the best leaves", GRAFT + ", Figure 2",
           lambda p: TailGraft(p.drafter(Split()), p.retriever(chain), clock=p.clock), (HEAD,),
           takes=DRAFTS | {"warm"}),
    Method("graft-no-retrieval", "stops when unsure and leaves the freed slots empty", GRAFT + ", Figure 5",
           lambda p: p.gated(), (HEAD,), takes=GATED),
    Method("graft-filled", "stops when unsure and fills the freed slots with drafted candidates", GRAFT + ", Figure 5",
           lambda p: p.gated(Filled), (HEAD,), takes=GATED),
    Method("graft-no-prune", "never stops; the retrieved share is the calibrated one", GRAFT + ", Figure 5",
           lambda p: p.graft(p.drafter(Split(p.split)), p.retriever()), (HEAD,), takes=SPLIT | LOOKS_UP),
)

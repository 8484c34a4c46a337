"""graft-x: drafted and remembered nodes in one ranking, and a controller that spends what pays (docs/choices.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from longgraft.budget.acceptance_estimates import AcceptanceEstimates
from longgraft.budget.controller import Controller, Levels, planned_together
from longgraft.budget.cost_model import LiveCosts
from longgraft.budget.node_ranking import RankedProposer
from longgraft.config.options import Checked, Option, option
from longgraft.config.settings import Drafting
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.pruning import BeamMassPolicy, Dense
from longgraft.memories.partial_matching import PartialMatching
from longgraft.methods.building import drafter, drafter_cache, text
from longgraft.methods.method import Method
from longgraft.methods.needs import HEAD
from longgraft.methods.parts import Parts
from longgraft.protocol.pruning import PruningPolicy

PAPER = "docs/choices.md, one ranking"
BEAMS = (10, 6, 3)  # beam widths that a controller's draft may have
WIDER = 1.25  # most that a wider draft level may cost, as a multiple of the narrowest
NEAR = 1024  # prefix in tokens at which costs are compared
# Rows are used if a pass of WIDE nodes costs at most WIDELY plain passes: narrow trees do not earn back
# the top-k that they need of every verified node, and of many tokens of the prompt.
WIDE = 32
WIDELY = 1.5


Rows = Annotated[bool, Option("Rank what the target predicted elsewhere; without a budget, only if nodes are cheap")]
Probing = Annotated[bool, Option("Probe a drafter that is expected to lose now and then")]


@dataclass(frozen=True)
class GraftXChoices(Drafting):
    """Choices of `graft-x`."""

    text: bool = option(True, "Rank what followed in the text; without it, no rows either")
    rows: Rows = True
    pruning: Literal["mass", "none"] = option(
        "mass", "Stop drafting where the beam holds too little probability, or never (none: needs a --budget)"
    )
    probing: Probing = True
    source: str = option(
        "", "Method whose nodes are ranked instead of the drafter's, if they have probabilities", none="the drafter"
    )


@dataclass(frozen=True)
class TextChoices(Checked):
    """Choices of `graft-x-text`."""

    rows: Rows = True
    probing: Probing = True


def ranked(p: Parts) -> RankedProposer:
    """Returns a ranking that fills the budget."""
    c: GraftXChoices = p.choices
    learnt = text(p, c.rows) if c.text else None
    if p.source:
        return RankedProposer(learnt, p.source, p.clock, pool=1)
    policy: PruningPolicy = Dense()
    if c.pruning == "mass":
        policy = BeamMassPolicy()
    return RankedProposer(learnt, drafter(p, policy), p.clock)


def text_ranked(p: Parts) -> RankedProposer:
    """Returns a ranking of the text that fills the budget."""
    return RankedProposer(text(p, p.choices.rows), clock=p.clock)


def controlled(p: Parts) -> Controller:
    """Returns a ranking with as many nodes and draft levels as pay."""
    c: GraftXChoices = p.choices
    if c.pruning == "none":
        raise ValueError(
            "graft-x+pruning=none never stops drafting, so it cannot choose what a step spends. "
            "Give it a budget: --budget 60, in a sweep graft-x+pruning=none+budget=60."
        )
    costs = _needed_costs(p)
    learnt = _text(p, costs, c.rows) if c.text else None
    if p.source is not None:
        ranking = RankedProposer(learnt, p.source, p.clock, pool=1)
        return _controller(p, ranking, ("source", c.text, *p.source.memories))
    cache = drafter_cache(p, c.window)
    levels = Levels(cache, _beam(costs, c.top_k), c.levels)
    drafts = Eagle3Drafter(cache, Dense(), levels.most, levels.beam, p.clock)
    return _controller(p, RankedProposer(learnt, drafts, p.clock), (c.text, cache), levels)


def text_controlled(p: Parts) -> Controller:
    """Returns a ranking of the text with as many nodes as pay."""
    return _controller(p, RankedProposer(_text(p, _needed_costs(p), p.choices.rows), clock=p.clock), ("text",))


def _controller(p: Parts, ranking: RankedProposer, nodes: tuple, levels: Levels | None = None) -> Controller:
    """Returns a controller; nodes: tells its ranking's nodes from others, so that both have estimates of their own."""
    probing = p.choices.probing
    estimates = p.once(("estimates", probing, *nodes), lambda: AcceptanceEstimates(_needed_costs(p)))
    together = p.once_per_engine(("the plan of a pass", p.choices), planned_together)
    return Controller(ranking, estimates, levels, probing=probing, clock=p.clock, together=together)


def _needed_costs(p: Parts) -> LiveCosts:
    assert p.costs is not None, "a controller needs costs"
    return p.costs


def _text(p: Parts, costs: LiveCosts, rows: bool) -> PartialMatching:
    """The text, with rows if these are wanted and wide trees are cheap enough.

    That is decided once for all lanes, which share prefixes, and not again when costs are corrected.
    """
    cheap = p.once_per_engine("rows pay", lambda: costs.verify(WIDE, NEAR) <= WIDELY * costs.verify(1, NEAR))
    return text(p, rows and cheap)


def _beam(costs: LiveCosts, top_k: int) -> int:
    """The widest beam that costs little more than the narrowest."""
    least = costs.level(BEAMS[-1], NEAR)
    return next(min(beam, top_k) for beam in BEAMS if costs.level(beam, NEAR) <= WIDER * least)


METHODS: tuple[Method, ...] = (
    Method(
        "graft-x",
        "drafted and remembered nodes in one ranking by the probability of their paths",
        PAPER,
        ranked,
        (HEAD,),
        fallback="graft-x-text",
        adaptive=controlled,
        choices=GraftXChoices(),
        over=lambda chosen: chosen.source,
    ),
    Method(
        "graft-x-text",
        "graft-x without a drafter: what followed in the text, and what the target predicted",
        PAPER,
        text_ranked,
        adaptive=text_controlled,
        choices=TextChoices(),
    ),
)

"""Methods that draft with a small model, or with heads that predict several tokens ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from longgraft.acceptance.typical import typical
from longgraft.config.options import Checked, option
from longgraft.drafters.draft_model_chain import DraftLength, DraftModelChain
from longgraft.drafters.medusa import LastHidden, Medusa
from longgraft.memories.draft_model import DraftModelCache
from longgraft.methods.method import Method
from longgraft.methods.needs import MEDUSA, SMALL
from longgraft.methods.parts import Parts
from longgraft.protocol.proposer import Proposer
from longgraft.target_model.verifier import Verifier

SPS = "Speculative decoding (arXiv 2211.17192, 2302.01318)"
HEADS = "Medusa (arXiv 2401.10774)"


@dataclass(frozen=True)
class SpsChoices(Checked):
    """Choices of a small model's chains."""

    schedule: str = option("constant", "How many tokens are drafted: all that fit, or two more after a step that "
                           "accepted all and one fewer after others", choices=("constant", "heuristic"),
                           source="Spec-Bench")


@dataclass(frozen=True)
class TypicalChoices(Checked):
    """Choices of typical acceptance."""

    epsilon: float = option(0.09, "Probability above which a token is always accepted", low=0, high=1, source="Medusa")
    alpha: float = option(0.3, "Probability above which a token is accepted, as a multiple of exp(-entropy)", low=0,
                          high=1, source="Medusa")


def small_model(p: Parts) -> DraftModelCache:
    """The small model's cache, one for all methods of a session."""
    model = p.the(SMALL)
    return p.one(("small-model", id(model)), lambda: DraftModelCache(model, p.target.vocab_size, p.clock, p.regions))


def chain(p: Parts, coupled: bool) -> Proposer:
    """A small model's chain."""
    length = p.one(("draft-length",), DraftLength) if p.choices.schedule == "heuristic" else None
    return DraftModelChain(small_model(p), length, coupled, p.clock)


def medusa(p: Parts) -> Proposer:
    """Heads on the newest hidden state."""
    return Medusa(p.one(("last-hidden",), LastHidden), p.the(MEDUSA), p.target.logits, p.clock)


def typical_verifier(p: Parts) -> Callable[[Verifier], Verifier]:
    """Typical acceptance for requests that sample."""
    return lambda verifier: replace(verifier, rule=typical(verifier.rule, p.choices.epsilon, p.choices.alpha))


METHODS: tuple[Method, ...] = (
    Method("sps", "a chain that a smaller model draws, accepted with min(1, p / q)", SPS, lambda p: chain(p, False),
           (SMALL,), "distribution", budget=6, choices=SpsChoices()),
    Method("sps-gumbel", "the same, drawn with the noise of the target's own draws", "arXiv 2408.07978",
           lambda p: chain(p, True), (SMALL,), budget=6, choices=SpsChoices()),
    Method("medusa", "heads that guess several tokens ahead, combined in the authors' tree", HEADS, medusa, (MEDUSA,),
           budget=64),
    Method("medusa-typical", "the same with typical acceptance where a request samples: lossy", HEADS, medusa,
           (MEDUSA,), "lossy", budget=64, choices=TypicalChoices(), verifies=typical_verifier),
)

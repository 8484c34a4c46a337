"""The entries of `medusa` and `medusa-typical`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from longgraft.config.options import Checked, Share, option
from longgraft.methods.method import Method
from longgraft.methods.needs import Need, Sources
from longgraft.methods.parts import Parts
from longgraft.protocol.proposer import Proposer
from longgraft.target_model.verifier import Verifier
from longgraft.zoo.medusa.drafter import LastHidden, Medusa
from longgraft.zoo.medusa.heads import FOLDER, MedusaHeads, load_medusa
from longgraft.zoo.medusa.typical import typical

HEADS = "Medusa (arXiv 2401.10774)"


@dataclass(frozen=True)
class TypicalChoices(Checked):
    """Choices of typical acceptance."""

    epsilon: Share = option(0.09, "Probability above which a token is always accepted", source="Medusa")
    alpha: Share = option(
        0.3, "Probability above which a token is accepted, as a multiple of exp(-entropy)", source="Medusa"
    )


def _medusa(sources: Sources) -> MedusaHeads:
    """Loads heads in the target's precision, on its device."""
    target = sources.target
    return load_medusa(
        sources.path("medusa-heads", FOLDER), target.config.hidden_size, target.vocab_size, target.dtype, target.device
    )


MEDUSA: Need[MedusaHeads] = Need("medusa-heads", "Medusa heads", _medusa)


def medusa(p: Parts) -> Proposer:
    """Heads on the newest hidden state."""
    return Medusa(p.once("last-hidden", LastHidden), p.the(MEDUSA), p.target.logits, p.clock)


def typical_verifier(p: Parts) -> Callable[[Verifier], Verifier]:
    """Typical acceptance for requests that sample."""
    return lambda verifier: replace(verifier, rule=typical(verifier.rule, p.choices.epsilon, p.choices.alpha))


EXACT = Method(
    "medusa",
    "heads that guess several tokens ahead, combined in the authors' tree",
    HEADS,
    medusa,
    (MEDUSA,),
    budget=64,
)
TYPICAL = Method(
    "medusa-typical",
    "the same with typical acceptance where a request samples: lossy",
    HEADS,
    medusa,
    (MEDUSA,),
    "lossy",
    budget=64,
    choices=TypicalChoices(),
    verifies=typical_verifier,
)

"""A drafted chain whose free slots repeat earlier answers to the same prompt (arXiv 2605.20104, future work)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Le

from longgraft.budget.node_ranking import RankedProposer
from longgraft.config.options import Checked, Share, option
from longgraft.config.settings import DraftWindow
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.pruning import Filled, Gates
from longgraft.memories.continuations import FAR, Continuations
from longgraft.memories.partial_matching import PartialMatching
from longgraft.memories.token_history import BETWEEN
from longgraft.methods.building import drafter_cache
from longgraft.methods.method import Method
from longgraft.methods.needs import HEAD
from longgraft.methods.parts import Parts
from longgraft.protocol.observation import Observation

MOST = 16  # answers that are kept: the size of a group when policies are trained


class RollOuts(PartialMatching):
    """The request's committed tokens, with earlier answers to the same prompt as if they came before them.

    A group is identified by its prompt's tokens: another prompt forgets the group; the end of a request adds
    its answer.
    """

    name = "roll-outs"
    lasting = True

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._prompt: list[int] = []  # the group's prompt
        self._answers: tuple[tuple[int, ...], ...] = ()  # answers to it
        super().__init__()
        self._joined = False  # True once the group was looked up

    @property
    def answers(self) -> int:
        """Number of earlier answers to this prompt."""
        self._join()
        return len(self._answers)

    def reset(self, capacity: int) -> None:
        if self._answer is not None:
            self._answers = (*self._answers, tuple(self.text[self._answer - 1 :]))[-self.most :]
        super().reset(capacity)
        self._joined = False

    def observe(self, seen: Observation) -> None:
        if seen.prompt and self._answer is not None:  # a rewound request has ended
            self.reset(0)
        if not seen.prompt:
            self._join()
        super().observe(seen)

    def known(self) -> Continuations:
        self._join()
        return super().known()

    def _join(self) -> None:
        """Looks up the group once the prompt is read: keeps it, or begins a new one."""
        if self._joined or not self.text:
            return
        self._joined = True
        prompt = self.text[: (self._answer or len(self.text)) - 1]
        if prompt != self._prompt:
            self._prompt = prompt
            self._answers = ()
        if self._answers:
            self._count([token for answer in self._answers for token in (*prompt[-FAR:], *answer, BETWEEN)])

    def mark(self) -> Any:
        return super().mark(), self._prompt, self._answers

    def rewind(self, mark: Any) -> None:
        held, self._prompt, self._answers = mark
        super().rewind(held)
        self._joined = False


@dataclass(frozen=True)
class MtpChoices(Checked):
    """Choices of `mtp`."""

    tau: Share = option(0.14, "The chain ends at or below this probability", source="Graft, Table 11")
    length: Annotated[int, Ge(1), Le(64)] = option(8, "Drafted tokens at most", unit="tokens")
    answers: Annotated[int, Ge(1), Le(1024)] = option(
        16, "Earlier answers to the prompt that are kept", source="groups of 8 to 16 roll-outs"
    )
    window: DraftWindow = None


def mtp(parts: Parts) -> RankedProposer:
    """A drafted chain, with remembered tokens at its root, beside it and after it, in one ranking."""
    chosen = parts.choices
    policy = Filled(Gates(dict.fromkeys(range(chosen.length), chosen.tau)))
    chain = Eagle3Drafter(drafter_cache(parts, chosen.window), policy, chosen.length, 1, parts.clock)
    answers = parts.once(("roll-outs", chosen.answers), lambda: RollOuts(chosen.answers))
    return RankedProposer(answers, chain, clock=parts.clock, pool=1)


METHOD = Method(
    "mtp",
    "a drafted chain while it is probable; its free slots repeat this and earlier answers to the same prompt",
    "Draft Less, Retrieve More (arXiv 2605.20104), future work",
    mtp,
    (HEAD,),
    choices=MtpChoices(),
)

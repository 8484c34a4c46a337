"""What a method is: a name and how its proposer is built from parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from longgraft.config.method_syntax import joined
from longgraft.config.options import Option, options
from longgraft.config.settings import Budget
from longgraft.methods.needs import Need
from longgraft.methods.parts import Parts
from longgraft.protocol.proposer import Proposer
from longgraft.target_model.verifier import Verifier

BUDGET = 60     # nodes per verification, root included; the paper's K_max

# Settings that can be set for one method (`method+name=value`), by what it is built from.
BUDGETED = frozenset({"budget"})
DRAFTS = BUDGETED | {"levels", "top_k", "window"}

Promise = Literal["exact", "distribution", "lossy"]


def unchanged(parts: Parts) -> Callable[[Verifier], Verifier]:
    """The usual verification."""
    return lambda verifier: verifier


@dataclass(frozen=True)
class Method:
    """A way to decode.

    clause, paper: for people
    build:    from parts to a proposer
    needs:    what must be given besides the target
    promise:  exact: in float32 the ids of plain decoding, greedy and sampled; distribution: its distribution; lossy:
              neither, and kept out of lossless tables
    budget:   nodes per verification, root included, where none is given
    takes:    settings that can be set for this method alone
    fallback: the method that replaces it where a need is not known for a target; "": none
    adaptive: from parts with costs to a proposer that chooses its own budgets, up to `budget`, where none is given
    choices:  options of this method alone, a frozen dataclass of `option`s (`longgraft.config.options`), which `build`
              finds in `parts.choices`; None: none
    usual:    the choices that its bare name stands for; None: `choices`
    over:     from its choices to the name of another method, which drafts in the drafter's place: its proposer is
              `parts.source`, and its needs are this method's; "": none
    verifies: from parts to a function that changes the request's verifier; only a lossy method changes it
    """

    name: str
    clause: str
    paper: str
    build: Callable[[Parts], Proposer]
    needs: tuple[Need, ...] = ()
    promise: Promise = "exact"
    budget: int = BUDGET
    takes: frozenset[str] = BUDGETED
    fallback: str = ""
    adaptive: Callable[[Parts], Proposer] | None = None
    choices: Any = None
    over: Callable[[Any], str] | None = None
    verifies: Callable[[Parts], Callable[[Verifier], Verifier]] = unchanged
    usual: Any = None

    def __post_init__(self) -> None:
        if self.usual is None:      # `dataclasses.replace` then keeps it beside other choices
            object.__setattr__(self, "usual", self.choices)

    def usual_budget(self, wanted: Budget) -> int:
        """The wanted nodes per verification, the method's own, or one where it never proposes anything."""
        return wanted if isinstance(wanted, int) and self.budget > 1 else self.budget

    def chooses(self, wanted: Budget) -> bool:
        """Whether it chooses its budgets: it can, and none is wanted."""
        return wanted is None and self.adaptive is not None

    @property
    def source(self) -> str:
        """The method that it is over, by its choices."""
        return "" if self.over is None else self.over(self.choices)

    def choosing(self, settings: Mapping[str, str]) -> Method:
        """With other choices, as texts by name; ValueError where it has no such choice, or the value is not allowed."""
        known, chosen = {one.name: one for one in self.own}, {}
        for name, text in settings.items():
            if name not in known:
                raise ValueError(f"Method {self.name!r} has no choice {name!r}. Known: {', '.join(known) or 'none'}. "
                                 "Settings of all methods are options of the command, such as --budget.")
            chosen[name] = known[name].parse(text)
            known[name].check(chosen[name])
        return replace(self, choices=replace(self.choices, **chosen)) if chosen else self

    def __str__(self) -> str:
        """Its name with the choices that differ from the usual, as `longgraft.methods.find.find` takes it."""
        return joined(self.name, {one.name: one.text(one.default) for one in self.own
                                  if one.default != getattr(self.usual, one.name)})

    @property
    def own(self) -> tuple[Option, ...]:
        """Its choices, with the values that it has as defaults."""
        known = {} if self.choices is None else options(type(self.choices))
        return tuple(replace(one, default=getattr(self.choices, name)) for name, one in known.items())

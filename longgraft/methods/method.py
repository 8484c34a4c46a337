"""The type of methods: a name and a function that builds a proposer from parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from longgraft.config.method_syntax import joined
from longgraft.config.options import Option, options
from longgraft.config.settings import Budget, Drafting, Retrieving
from longgraft.methods.needs import Need

if TYPE_CHECKING:
    from longgraft.methods.parts import Parts
    from longgraft.protocol.proposer import Proposer
    from longgraft.target_model.verifier import Verifier

BUDGET = 60  # nodes per verification, root included; the paper's K_max

BUDGETED = frozenset({"budget"})

Promise = Literal["exact", "distribution", "lossy"]


def unchanged(parts: Parts) -> Callable[[Verifier], Verifier]:
    """Leaves the verifier as it is; for all methods that are not lossy."""
    return lambda verifier: verifier


@dataclass(frozen=True)
class Method:
    """A way to decode.

    Attributes:
        name: Its name on the command line and in result files.
        clause: One clause that describes it, for people.
        paper: Its source, for people.
        build: Builds the proposer from parts.
        needs: What must be given besides the target.
        promise: exact: in float32 the ids of plain decoding, greedy and sampled; distribution: the
            distribution of plain decoding; lossy: neither, so that it is kept out of lossless tables.
        budget: Nodes per verification, root included, if none is given.
        takes: Names of VARIANT_SETTINGS (`methods.chosen`) that can be set for this method alone.
        fallback: Method that replaces it if a need is not known for a target; "": none.
        adaptive: Builds, from parts with costs, a proposer that chooses its own budgets up to `budget`; used
            if no budget is given.
        choices: Options of this method alone, a frozen dataclass of `option`s (`longgraft.config.options`),
            which `build` finds in `parts.choices`; None: none.
        over: Maps its choices to the name of another method that takes the drafter's place: the other's
            proposer is `parts.source`, and its needs are this method's; "": no other method.
        verifies: Maps parts to a function that changes the request's verifier, whose `launch` is called; only a
            lossy method changes it.
        usual: Choices used when only the name is given; None: `choices`.
        looks_up: True if all that it proposes is looked up, so that a larger tree costs no draft.

    Examples:
        A method that proposes the latest token once more:

        >>> import longgraft, torch
        >>> from longgraft.trees.tree import ProposalTree
        >>> class Again:
        ...     memories = ()
        ...     def propose(self, ask):
        ...         return ProposalTree.chain(torch.tensor([ask.root, ask.root]))
        >>> method = Method("again", "the latest token once more", "-", lambda parts: Again(), budget=2)
        >>> longgraft.generate("if __name__ ==", method=method, stop=[":"]).text
        ' "__main__"'
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
    looks_up: bool = False

    def __post_init__(self) -> None:
        if self.usual is None:  # set here, so that `dataclasses.replace` with other choices keeps it
            object.__setattr__(self, "usual", self.choices)

    def usual_budget(self, wanted: Budget) -> int:
        """Returns the wanted nodes per verification, or the method's own; one if it never proposes anything."""
        if isinstance(wanted, int) and self.budget > 1:
            return wanted
        return self.budget

    def chooses(self, wanted: Budget) -> bool:
        """True if it chooses its own budgets: it can, and no budget is wanted."""
        return wanted is None and self.adaptive is not None

    @property
    def bounds(self) -> dict[str, Any]:
        """Its bounds of a step's tree, by name: those of `Drafting` and `Retrieving` that are among its choices."""
        groups = [group for group in (Drafting, Retrieving) if isinstance(self.choices, group)]
        return {name: getattr(self.choices, name) for group in groups for name in options(group)}

    def within(self, bounds: Mapping[str, Any]) -> Method:
        """Returns the method with those of these bounds that it has."""
        read = {name: value for name, value in bounds.items() if name in self.bounds}
        if read:
            return replace(self, choices=replace(self.choices, **read))
        return self

    @property
    def source(self) -> str:
        """The name of the method that it builds on, by its choices; "" for none."""
        if self.over is None:
            return ""
        return self.over(self.choices)

    def choosing(self, settings: Mapping[str, str]) -> Method:
        """Returns the method with other choices, given as texts by name.

        Raises:
            ValueError: the method has no such choice, or the value is not allowed.
        """
        by_name = {option.name: option for option in self.own}
        chosen = {}
        for name, text in settings.items():
            if name not in by_name:
                raise ValueError(
                    f"Method {self.name!r} has no choice {name!r}. Known: "
                    f"{', '.join(by_name) or 'none'}. Settings of all methods are options of "
                    "the command, such as --budget."
                )
            chosen[name] = by_name[name].parse(text)
            by_name[name].check(chosen[name])
        if chosen:
            return replace(self, choices=replace(self.choices, **chosen))
        return self

    def __str__(self) -> str:
        """Returns its name with the choices that differ from the usual ones, as `find` of `methods.find` takes it."""
        return joined(self.name, self.changed)

    @property
    def changed(self) -> dict[str, str]:
        """The choices that differ from the usual ones, as texts."""
        return {
            option.name: option.text(option.default)
            for option in self.own
            if option.default != getattr(self.usual, option.name)
        }

    @property
    def own(self) -> tuple[Option, ...]:
        """Its choices, with their present values as defaults."""
        if self.choices is None:
            return ()
        by_name = options(type(self.choices))
        return tuple(replace(option, default=getattr(self.choices, name)) for name, option in by_name.items())

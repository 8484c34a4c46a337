"""What a run compares: methods, each with one of the heads and settings of its own.

Knows names and numbers; loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from longgraft.config.method_names import PLACE, joined, split
from longgraft.config.method_roles import PLAIN
from longgraft.config.options import options
from longgraft.config.settings import Budget, OfMethod

COLD = "none"                   # for +warm and +thresholds: no calibration
TRANSFORMERS = "transformers"   # the other baseline: transformers' own generate


@dataclass(frozen=True)
class Variant:
    """`method[@head][+setting=value ...]`, the settings being those of `OfMethod` and the method's own choices;
    `transformers` is no method of ours.

    method: with its own choices; calibrations: by setting, the name that one was given under.
    """

    name: str
    method: str
    head: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict, hash=False)
    calibrations: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, name: str) -> Variant:
        """ValueError names what is unknown, out of range, or nothing that this method has."""
        given, settings = split(name)
        place = PLACE.match(given)[0]       # type: ignore[index]
        method, _, head = given[len(place):].partition("@")
        bare = place + method
        known, (taken, own) = options(OfMethod), _taken(bare)
        numbers, names = {}, {}
        chosen = {key: text for key, text in settings.items() if key in own}
        for key, text in settings.items():
            if key in chosen:
                continue
            if key not in known or not text:
                wanted = ", ".join([f"{key}={'NAME' if one.kind is str else 'NUMBER'}" for key, one in known.items()]
                                   + [f"{key}=..." for key in own])
                raise ValueError(f"{f'{key}={text}'!r} in {name!r} is no setting. Known: {wanted}.")
            if key not in taken:
                raise ValueError(f"{name!r}: {bare} has nothing that {key} could set.")
            try:
                value = known[key].parse(text)
                known[key].check(value)
            except ValueError as error:
                raise ValueError(f"{name!r}: {error}") from error
            if known[key].kind is str:
                names[key] = value
            elif value is not None:
                numbers[key] = value
        return cls(name, joined(bare, chosen), head, numbers, names)

    @classmethod
    def plain(cls) -> Variant:
        """Our plain decoding, which every method is paired with."""
        return cls(PLAIN, PLAIN)

    @property
    def ours(self) -> bool:
        """Whether it is decoded by a method of ours."""
        return self.method != TRANSFORMERS

    @property
    def promise(self) -> str:
        """Its method's; transformers' own greedy answers are plain decoding's."""
        from longgraft.methods.find import find

        return find(self.method).promise if self.ours else "exact"

    def budget(self, wanted: Budget) -> int:
        """Nodes per verification: its setting, the wanted, the method's own, or one where nothing is proposed."""
        from longgraft.methods.find import find

        return find(self.method).usual_budget(self.numbers.get("budget", wanted))

    def adaptive(self, wanted: Budget) -> bool:
        """Whether the method chooses its budgets: it can, and none is given."""
        from longgraft.methods.find import find

        return self.ours and find(self.method).chooses(self.numbers.get("budget", wanted))


def _taken(bare: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """(the settings that this method reads, the choices that it alone has)."""
    from longgraft.methods.find import find  # where torch is: names can be read without it

    return (frozenset(), ()) if bare == TRANSFORMERS else (find(bare).takes, tuple(one.name for one in find(bare).own))

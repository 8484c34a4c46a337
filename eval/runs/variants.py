"""What a run compares: methods, each with one of the heads and settings of its own.

Knows names and numbers; loads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from longgraft.options import options
from longgraft.roles import PLAIN
from longgraft.settings import Budget, OfMethod

PLACE = re.compile(r"(.*\.py:|[\w.]+:)?")     # of FILE.py:OBJECT and MODULE:OBJECT; a path may hold an @ or a +
COLD = "none"                   # for +warm and +thresholds: no calibration
TRANSFORMERS = "transformers"   # the other baseline: transformers' own generate


@dataclass(frozen=True)
class Variant:
    """`method[@head][+setting=value ...]`, the settings being those of `OfMethod`; `transformers` is no method of ours.

    calibrations: by setting, the name that one was given under.
    """

    name: str
    method: str
    head: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict, hash=False)
    calibrations: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, name: str) -> Variant:
        """ValueError names what is unknown, out of range, or nothing that this method has."""
        place = PLACE.match(name)[0]        # type: ignore[index]
        who, *settings = name[len(place):].split("+")
        bare, _, head = who.partition("@")
        bare = place + bare
        known, taken = options(OfMethod), _taken(bare)
        numbers, names = {}, {}
        for setting in settings:
            key, _, text = setting.partition("=")
            if key not in known or not text:
                wanted = ", ".join(f"{key}={'NAME' if one.kind is str else 'NUMBER'}" for key, one in known.items())
                raise ValueError(f"{setting!r} in {name!r} is no setting. Known: {wanted}.")
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
        return cls(name, bare, head, numbers, names)

    @classmethod
    def plain(cls) -> Variant:
        """Our plain decoding, which every method is paired with."""
        return cls(PLAIN, PLAIN)

    @property
    def ours(self) -> bool:
        """Whether it is decoded by a method of ours."""
        return self.method != TRANSFORMERS

    def budget(self, wanted: Budget) -> int:
        """Nodes per verification: its setting, the wanted, the method's own, or one where nothing is proposed."""
        from longgraft.methods import find

        return find(self.method).usual_budget(self.numbers.get("budget", wanted))

    def adaptive(self, wanted: Budget) -> bool:
        """Whether the method chooses its budgets: it can, and none is given."""
        from longgraft.methods import find

        return self.ours and find(self.method).chooses(self.numbers.get("budget", wanted))


def _taken(bare: str) -> frozenset[str]:
    """The settings that this method reads."""
    from longgraft.methods import find  # where torch is: names can be read without it

    return frozenset() if bare == TRANSFORMERS else find(bare).takes

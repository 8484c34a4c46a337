"""What a run compares: methods, each with one of the heads and settings of its own.

Knows names and numbers; loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from longgraft.options import options
from longgraft.settings import OfMethod

COLD = "none"                   # for +warm: an empty matrix
PLAIN = "ar"                    # our plain decoding, which every method is paired with
TRANSFORMERS = "transformers"   # the other baseline: transformers' own generate


@dataclass(frozen=True)
class Variant:
    """`method[@head][+setting=value ...]`, the settings being those of `OfMethod`; `transformers` is no method of ours.

    calibrations: by setting, the name that one was given under.
    """

    name: str
    method: str
    head: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict, hash=False)
    calibrations: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, name: str) -> Variant:
        """ValueError names what is unknown, out of range, or nothing that this method has."""
        who, *settings = name.split("+")
        bare, _, head = who.partition("@")
        known, idle = options(OfMethod), _idle(bare)
        numbers, names = {}, {}
        for setting in settings:
            key, _, text = setting.partition("=")
            if key not in known or not text:
                wanted = ", ".join(f"{key}={'NAME' if one.kind is str else 'NUMBER'}" for key, one in known.items())
                raise ValueError(f"{setting!r} in {name!r} is no setting. Known: {wanted}.")
            if key in idle:
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

    def budget(self, wanted: int | None) -> int:
        """Nodes per verification: its setting, the wanted, the method's own, or one where nothing is proposed."""
        from longgraft.methods import find

        own = find(self.method).budget
        return own if own == 1 else self.numbers.get("budget", own if wanted is None else wanted)


def _idle(bare: str) -> set[str]:
    """The settings that nothing of this method would read."""
    from longgraft.methods import find  # where torch is: names can be read without it

    if bare == TRANSFORMERS:
        return set(options(OfMethod))
    needs = find(bare)
    return ({"budget"} if needs.budget == 1 else set()) | (
        set() if needs.needs_matrix else {"depth", "width", "warm"}) | (
        set() if needs.needs_drafter else {"levels", "top_k", "window", "thresholds"})

"""A method with a head and settings of its own: `method[@head][+setting=value ...]`.  Knows names; loads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from longgraft.calibration import Calibration
from longgraft.methods import PLAIN, find
from longgraft.parts import Parts

COLD = "none"                   # for +warm: an empty matrix
TRANSFORMERS = "transformers"   # the other baseline: transformers' own generate

# Nodes per verification; bounds of the retrieved tree; levels and width of the drafted one; calibrations, by the name
# they were given under, for the thresholds or the matrix's first rows.
NUMBERS, NAMES = ("budget", "depth", "width", "levels", "top_k"), ("thresholds", "warm")


@dataclass(frozen=True)
class Variant:
    """`transformers` is no method of ours."""

    name: str
    method: str
    head: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict, hash=False)
    calibrations: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, name: str) -> Variant:
        """ValueError names what is unknown."""
        who, *settings = name.split("+")
        bare, _, head = who.partition("@")
        takes = frozenset[str]() if bare == TRANSFORMERS else find(bare).takes
        numbers, names = {}, {}
        for setting in settings:
            key, _, value = setting.partition("=")
            if key in (*NUMBERS, *NAMES) and key not in takes:
                raise ValueError(f"{name!r}: {bare} has nothing that {key} could set.")
            if key in NUMBERS and value.isdigit() and int(value) > 0:
                numbers[key] = int(value)
            elif key in NAMES and value:
                names[key] = value
            else:
                raise ValueError(f"{setting!r} in {name!r} is no setting. Known: "
                                 f"{', '.join(f'{key}=NUMBER' for key in NUMBERS)}, "
                                 f"{', '.join(f'{key}=NAME' for key in NAMES)}.")
        return cls(name, bare, head, numbers, names)

    @classmethod
    def plain(cls) -> Variant:
        """Our plain decoding, which every method is paired with."""
        return cls.parse(PLAIN)

    @property
    def ours(self) -> bool:
        """Whether it is decoded by a method of ours."""
        return self.method != TRANSFORMERS

    def budget(self, wanted: int | None) -> int:
        """Nodes per verification: its setting, the wanted, the method's own, or one where nothing is proposed."""
        return find(self.method).usual_budget(self.numbers.get("budget", wanted))


@dataclass(frozen=True)
class Stock:
    """What variants are made of: the parts of each head ("": the default one's), calibrations by name."""

    heads: Mapping[str, Parts]
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)

    def parts(self, variant: Variant) -> Parts:
        """This variant's; ValueError where a head or calibration was not given."""
        parts = self._find(variant, variant.head, self.heads, "head", "head")
        taken = {key: self._find(variant, name, self.calibrations, "calibration", "calibrated")
                 for key, name in variant.calibrations.items() if name != COLD}
        changes: dict[str, Any] = {key: value for key, value in variant.numbers.items() if key != "budget"}
        if "thresholds" in taken:
            changes["thresholds"], changes["split"] = taken["thresholds"].thresholds, taken["thresholds"].split
        if "warm" in taken:
            changes["snapshot"] = taken["warm"].snapshot
        elif "warm" in variant.calibrations:
            changes["snapshot"] = None
        return replace(parts, **changes)

    @staticmethod
    def _find(variant: Variant, name: str, given: Mapping[str, Any], what: str, option: str) -> Any:
        if name not in given:
            known = ", ".join(key for key in given if key) or "none"
            raise ValueError(f"{variant.name} names the {what} {name!r}, which was not given. Given: {known}. "
                             f"Add --{option} NAME=PATH.")
        return given[name]

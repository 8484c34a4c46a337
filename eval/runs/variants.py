"""Variants that a run compares: methods, each with a head and settings of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from longgraft.config.method_roles import PLAIN
from longgraft.config.method_syntax import PLACE, joined, split
from longgraft.config.settings import Budget

COLD = "none"  # value of +warm and +thresholds that stands for no calibration
# The other baselines: transformers' own generate, with the arguments that it decodes with.  Ten proposed tokens are the
# value in transformers' documentation of prompt lookup.
TRANSFORMERS: Mapping[str, Mapping[str, Any]] = {
    "transformers": {},
    "transformers-lookup": {"prompt_lookup_num_tokens": 10},
}


@dataclass(frozen=True)
class Variant:
    """`method[@head][+setting=value ...]`: the settings are those of `MethodSettings` and the method's own choices.

    Names in TRANSFORMERS are not methods of ours.
    """

    name: str
    method: str  # the method with its own choices
    head: str = ""  # name of its head; "": the default head
    own_budget: Budget = None  # nodes per verification that its name sets; None: those of the run
    # Setting -> the name that the calibration was given under.
    calibrations: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, name: str) -> Variant:
        """Parses a name; a ValueError names a setting that is unknown, out of range, or not read by this method."""
        from longgraft.methods.chosen import own_settings  # needs torch; names are read without it

        without_settings, settings = split(name)
        place = PLACE.match(without_settings)[0]  # type: ignore[index]
        bare_name, _, head = without_settings[len(place) :].partition("@")
        if bare_name in TRANSFORMERS:
            if settings:
                raise ValueError(f"{name!r}: {bare_name} does not read {', '.join(settings)}. Leave it out.")
            return cls(name, bare_name, head)
        method, values = own_settings(joined(place + bare_name, settings))
        budget = values.pop("budget", None)
        return cls(name, method, head, budget, values)

    @classmethod
    def plain(cls) -> Variant:
        """Returns our plain decoding, with which every method is paired."""
        return cls(PLAIN, PLAIN)

    @property
    def ours(self) -> bool:
        """True if it is decoded by a method of ours."""
        return self.method not in TRANSFORMERS

    @property
    def promise(self) -> str:
        """The promise of its method; transformers' own greedy answers are plain decoding's."""
        from longgraft.methods.find import find

        if not self.ours:
            return "exact"
        return find(self.method).promise

    def wanted(self, budget: Budget) -> Budget:
        """Returns its own budget, or else that of the run."""
        if self.own_budget is None:
            return budget
        return self.own_budget

    def budget(self, wanted: Budget) -> int:
        """Returns the nodes per verification: its setting, the wanted, the method's own, or one if nothing is
        proposed."""
        from longgraft.methods.find import find

        return find(self.method).usual_budget(self.wanted(wanted))

    def adaptive(self, wanted: Budget) -> bool:
        """True if the method chooses its budgets: it can, and none is given."""
        from longgraft.methods.find import find

        return self.ours and find(self.method).chooses(self.wanted(wanted))

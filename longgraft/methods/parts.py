"""The parts that methods are built from: a target, loaded needs, choices, and a place for what proposers share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from longgraft.budget.cost_model import LiveCosts
from longgraft.methods.calibration import Calibration
from longgraft.methods.needs import HEAD, Need
from longgraft.protocol.memory import Memory
from longgraft.protocol.proposer import Proposer
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.target_model.model import Target
from longgraft.yarn_drafters.network import Eagle3Network

T = TypeVar("T")
M = TypeVar("M", bound=Memory)


@dataclass(frozen=True)
class Parts:
    """The parts that a method is built from.  `longgraft.methods.building` makes this repository's proposers of them.

    A key of `once` and `once_per_engine` says what the thing is: a name, or a tuple or frozen dataclass of all that
    tells it from others.  Objects that it is made from, such as a network, stand in the key themselves.

    Attributes:
        target: The target model.
        given: Loaded needs, by name.
        calibration: Thresholds, split and warm matrix rows.
        costs: Costs of a step on this machine; a controller needs them.
        clock: Measures a step's parts.
        regions: Record the parts of a step that have a fixed shape.
        choices: The method's own choices.
        persist: True if the matrix outlives a request.
        source: Proposer whose nodes are ranked instead of a drafter's, if the method's choices name another method.
        kept: The memories made so far, by key; `replace(parts, ...)` shares them.
        shared: What the lanes of one engine share, by key.
    """

    target: Target
    given: Mapping[str, object] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)
    costs: LiveCosts | None = None
    clock: Clock = field(default_factory=Clock)
    regions: Regions = EAGER
    choices: Any = None
    persist: bool = False
    source: Proposer | None = None
    kept: dict[Hashable, Memory] = field(default_factory=dict, repr=False)
    shared: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def the(self, need: Need[T]) -> T:
        """Returns the loaded need."""
        return self.given[need.name]  # type: ignore[return-value]

    @property
    def head(self) -> Eagle3Network | None:
        """The drafter network; None if the method needs none."""
        return self.the(HEAD) if HEAD.name in self.given else None

    def once(self, key: Hashable, make: Callable[[], M]) -> M:
        """Returns the memory of this key, which all proposers of a lane share; makes it at the first call."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]  # type: ignore[return-value]      # the key implies the type

    def once_per_engine(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns the object of this key, which all lanes of the engine share; makes it at the first call."""
        if key not in self.shared:
            self.shared[key] = make()
        return self.shared[key]

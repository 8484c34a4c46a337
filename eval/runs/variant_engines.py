"""Engines of the variants of a run: each method with its head and settings, on one target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from longgraft.budget.cost_model import LiveCosts
from longgraft.config.settings import Budget
from longgraft.engine.engine import Engine
from longgraft.eval.runs.variants import COLD, Variant
from longgraft.methods.assembly import Loaded
from longgraft.methods.calibration import Calibration
from longgraft.methods.find import Method, find
from longgraft.methods.parts import Parts
from longgraft.protocol.memory import Memory
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.target_model.model import Target

Engines = Mapping[tuple[str, str], Engine]  # by variant and run; run "" stands for no run


@dataclass
class VariantEngines:
    """Makes the engines of variants, and keeps what lasting memories learn from prompt to prompt.

    A run is one pass over all prompts in one mode.  It does not know what another one learnt, nor what was learnt from
    prompts of another suite or length: these may be the same rows, cut differently, whose answers it would know.
    """

    loaded: Loaded
    heads: Mapping[str, Parts]  # the parts of each head, by name; "": the default head
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)
    budget: Budget = None  # nodes per verification; None: each method's own
    profile: bool = False  # as in `Clock`
    runs: Sequence[str] = ()  # names of the runs, which are the modes' names
    bounds: Mapping[str, Any] = field(default_factory=dict)  # of drafts, as in `find`
    clock: Clock = field(init=False)  # measures the steps of all variants
    regions: Regions = field(init=False)  # record the steps of all variants
    # Number of prompts of a pool that a variant has answered in a run.
    prompts: Counter[tuple[str, str, str]] = field(init=False, default_factory=Counter)
    _lasting: dict[tuple[str, str, str], dict[Hashable, Memory]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = Clock(profile=self.profile)
        if self.target.device.type == "cuda":
            self.clock.wait = partial(torch.cuda.synchronize, self.target.device)
        self.regions = next((parts.regions for parts in self.heads.values()), EAGER).anew()

    @property
    def target(self) -> Target:
        return self.loaded.target

    def of(self, variants: Iterable[Variant], learning: bool = True, pool: str = "") -> Engines:
        """Makes the engines for one prompt.  They share their memories, except that each run has its own lasting ones.

        Args:
            learning: False: there are no runs, so nothing is learnt from the prompt.
            pool: Names the prompts that learn from one another.

        Raises:
            ValueError: a head or calibration was not given, or runs cannot have memories of their own.
        """
        memories: dict[Hashable, Memory] = {}
        shared: dict[Hashable, Any] = {}  # a prompt knows nothing of the prompts before it
        # Each prompt begins with the costs that were measured at load.
        costs = {head: parts.costs and parts.costs.copy() for head, parts in self.heads.items()}
        engines = {}
        for variant in variants:
            parts = replace(self._joined(variant, costs), kept=memories, shared=shared)
            engine = self._engine(variant, parts)
            engines[variant.name, ""] = engine
            if learning and any(memory.lasting for memory in engine.proposer.memories):
                for run in self.runs:
                    engines[variant.name, run] = self._learning(variant, parts, (variant.name, run, pool), engine)
        return engines

    def _joined(self, variant: Variant, costs: Mapping[str, LiveCosts | None]) -> Parts:
        return replace(self.parts(variant), clock=self.clock, regions=self.regions, costs=costs[variant.head])

    def _engine(self, variant: Variant, parts: Parts) -> Engine:
        loaded = replace(self.loaded, method=self.method(variant), parts=parts)
        return loaded.joined_engine(variant.wanted(self.budget))

    def _learning(self, variant: Variant, parts: Parts, learner: tuple[str, str, str], without_run: Engine) -> Engine:
        """Returns the engine of a run, whose lasting memories are those of the prompt before.

        Args:
            learner: Who learns: variant, run and pool.
            without_run: The variant's engine that learns nothing.
        """
        memories = {key: memory for key, memory in parts.kept.items() if not memory.lasting}
        memories.update(self._lasting.get(learner, {}))
        engine = self._engine(variant, replace(parts, kept=memories))
        if engine.proposer is without_run.proposer:
            raise ValueError(
                f"{variant.name} is one object whose memory lasts, and every run needs one of its own. "
                "Give a longgraft.methods.Method whose build makes it."
            )
        self._lasting[learner] = {key: memory for key, memory in memories.items() if memory.lasting}
        return engine

    def parts(self, variant: Variant) -> Parts:
        """Returns a variant's parts; raises ValueError if a head or calibration was not given."""
        parts = self._find(variant, variant.head, self.heads, "head", "head")
        calibration = parts.calibration
        if "thresholds" in variant.calibrations:
            source = self._calibration(variant, "thresholds")
            calibration = replace(calibration, thresholds=source.thresholds, split=source.split)
        if "warm" in variant.calibrations:
            calibration = replace(calibration, snapshot=self._calibration(variant, "warm").snapshot)
        return replace(parts, calibration=calibration)

    def _calibration(self, variant: Variant, setting: str) -> Calibration:
        name = variant.calibrations[setting]
        if name == COLD:
            return Calibration()
        return self._find(variant, name, self.calibrations, "calibration", "calibrated")

    def method(self, variant: Variant) -> Method:
        """Returns a variant's method, whose bounds of drafts are those of the run if its name sets none."""
        return find(variant.method, self.bounds)

    @staticmethod
    def _find(variant: Variant, name: str, by_name: Mapping[str, Any], what: str, option: str) -> Any:
        if name not in by_name:
            names = ", ".join(filter(None, by_name)) or "none"
            raise ValueError(
                f"{variant.name} names the {what} {name!r}, which was not given. Given: {names}. "
                f"Add --{option} NAME=PATH."
            )
        return by_name[name]

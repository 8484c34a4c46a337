"""Loads everything that a sweep runs on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from longgraft.budget.cost_measurement import costs_for
from longgraft.budget.sample_text import sample_tokens
from longgraft.config.method_roles import DEFAULT, HEADLESS
from longgraft.config.settings import HeadOverrides, Settings
from longgraft.drafters.pruning import DEFAULT_THRESHOLDS
from longgraft.engine.session import Session
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.variant_engines import VariantEngines
from longgraft.eval.runs.variants import COLD, Variant
from longgraft.loading import assemble
from longgraft.methods.assembly import Loaded
from longgraft.methods.calibration import Calibration
from longgraft.methods.find import build, find
from longgraft.methods.needs import HEAD, Missing, Sources, check_given, head_of
from longgraft.methods.parts import Parts


@dataclass(frozen=True)
class Bench:
    """The loaded objects that a sweep runs on."""

    loaded: Loaded  # the target model, its tokenizer and parts
    session: Session  # decodes without the variants' settings
    engines: VariantEngines  # makes the engines of the variants
    missing: Mapping[str, str] = field(default_factory=dict)  # variant -> why it cannot be measured on this target

    @classmethod
    def open(cls, config: SweepConfig) -> Bench:
        """Loads the target once, and every head and calibration."""
        loaded = _loaded(config)
        sources = Sources(loaded.target, _unless_cold(config.drafter), given=config.given, tokenizer=loaded.tokenizer)
        heads = _heads(config, loaded, _needs(config, sources))
        calibrations = {}
        for name, path in config.calibrations.items():
            calibrations[name] = Calibration.load(Path(path), loaded.identity, loaded.target.device)
        bounds = {"levels": config.draft_levels, "top_k": config.draft_top_k}
        engines = VariantEngines(loaded, heads, calibrations, config.budget, config.profile, config.modes, bounds)
        session = loaded.session(Settings(budget=loaded.method.usual_budget(config.budget)))
        return cls(loaded, session, engines, _missing_variants(config, engines))

    def able(self, variants: Iterable[Variant]) -> list[Variant]:
        """Returns the variants whose needs are available."""
        return [variant for variant in variants if variant.name not in self.missing]


def _unless_cold(name: str | None) -> str | None:
    if name == COLD:
        return None
    return name


def _loaded(config: SweepConfig) -> Loaded:
    """Loads the target with the run's head and calibration."""
    drafter = _unless_cold(config.drafter)
    settings = Settings(
        method=DEFAULT if drafter else HEADLESS,
        calibration=_unless_cold(config.calibration),
        device=config.device,
        dtype=config.dtype,
        weights=config.weights,
        kv_dtype=config.kv_dtype,
        attention=config.attention,
        costs=config.costs,
    )
    return assemble(config.model, drafter, settings)


def _needs(config: SweepConfig, sources: Sources) -> dict[str, Any]:
    """Loads what the methods need besides a head; returns it by the need's name."""
    needs = {}
    for variant in config.variants:
        if variant.ours:
            needs.update({need.name: need for need in find(variant.method).needs if need != HEAD})
    if config.methods:
        check_given(config.given, needs.values())
    available = {}
    for name, need in needs.items():
        with suppress(Missing) if config.allow_missing else nullcontext():
            available[name] = need.load(sources)
    return available


def _heads(config: SweepConfig, loaded: Loaded, needs: Mapping[str, Any]) -> dict[str, Parts]:
    """Returns the parts of each head, by name; "": the default head."""
    target = loaded.target
    default = replace(loaded.parts, given={**needs, **loaded.parts.given})
    # Thresholds belong to the head that they were calibrated with; the matrix rows to the target.
    calibration = replace(default.calibration, thresholds=DEFAULT_THRESHOLDS, split=Calibration.split)
    heads = {"": default}
    for name, path in config.heads.items():
        # Prompts that are longer than a head was made for are measured on purpose here.
        network = head_of(path, target, HeadOverrides(max_positions=target.max_positions))
        heads[name] = replace(default, given={**needs, HEAD.name: network}, calibration=calibration)
    if not any(variant.adaptive(config.budget) for variant in config.variants):
        return heads
    text = sample_tokens(loaded.tokenizer)
    for name, parts in heads.items():
        heads[name] = replace(parts, costs=costs_for(target, parts.head, config.costs, parts.regions, text))
    return heads


def _missing_variants(config: SweepConfig, engines: VariantEngines) -> dict[str, str]:
    """Returns variant -> why it cannot be built; raises `Missing` if the run does not allow that."""
    missing = {}
    for variant in config.variants:
        if not variant.ours:
            continue
        try:
            build(engines.method(variant), engines.parts(variant), variant.adaptive(config.budget))
        except Missing as error:
            if not config.allow_missing:  # then it is an error before anything runs
                raise
            missing[variant.name] = str(error).splitlines()[0]
    return missing

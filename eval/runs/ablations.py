"""Ablations: sweeps with the variants of one of the paper's figures or tables, or with all methods.

Source: Graft (arXiv 2605.20104), section 4.3 and appendix C.4.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from longgraft.config.method_roles import GROUPS, PAPERS
from longgraft.config.method_syntax import joined
from longgraft.eval.checks.calibrate import Prompt, WarmupSettings, calibrate, prompt_of
from longgraft.eval.prompts.buckets import fit
from longgraft.eval.prompts.example import Example
from longgraft.eval.prompts.suites import read_prompts, suite_name
from longgraft.eval.runs.bench import Bench
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.plan import Reader, check_plan, planned
from longgraft.eval.runs.variants import COLD
from longgraft.methods.calibration import Calibration
from longgraft.methods.find import BUDGET, CORE, find, zoo
from longgraft.methods.needs import Missing, Sources

ROUNDS = (1, 3, 5, 10, 25, 50)  # numbers of warm-up prompts, as in Table 4
FIELD = "field"  # every method of the core and the zoo whose needs are available


def prepare(name: str, config: SweepConfig, out: Path, warmup: Path | None = None, dry: bool = False) -> SweepConfig:
    """Returns the sweep of an ablation; calibrations that it needs are made in `out`, once.

    Methods that the configuration names are measured, too.

    Args:
        name: One of GROUPS, or FIELD.
        config: The sweep without the ablation's variants.
        out: Folder of the calibrations.
        warmup: Prompts of the ablation `warmup`.
        dry: True to leave out calibrations.
    """
    if name not in (*GROUPS, FIELD):
        raise ValueError(f"Ablation {name!r} is unknown. Known: {', '.join((*GROUPS, FIELD))}.")
    calibrations: dict[str, str] = {}
    methods = tuple(_field(config)) if name == FIELD else GROUPS[name]
    if name in CALIBRATED and not dry:
        setting, calibrated = CALIBRATED[name]
        check_plan(config)  # errors of its suites come before a model is loaded
        prompts: Sequence[Example] = ()
        if name == "warmup":
            if warmup is None:
                raise ValueError(
                    "The ablation of warm-up rounds needs prompts to warm up on. Give --warmup-prompts FILE, a JSONL "
                    "of conversations that are in none of the suites."
                )
            prompts = read_prompts(warmup, max(ROUNDS))
        calibrations = calibrated(config, Bench.open(config), out, prompts)
        methods += tuple(f"{PAPERS}+{setting}={key}" for key in calibrations)
    return replace(
        config,
        methods=tuple(dict.fromkeys((*methods, *config.methods))),
        calibrations=config.calibrations | calibrations,
    )


def _field(config: SweepConfig) -> Iterator[str]:
    """Yields each method as it is, with a tree of at most the common budget.

    Methods that only look up, or that choose their budgets, are also yielded at that budget.  Methods that lack
    something are named on stderr and left out.
    """
    loaded = Bench.open(replace(config, methods=())).loaded
    drafter = config.drafter
    if drafter == COLD:
        drafter = None
    sources = Sources(loaded.target, drafter, given=config.given, tokenizer=loaded.tokenizer)
    methods = [*CORE.values(), *zoo().values()]
    needs = {need.name: need for method in methods for need in method.needs}
    lacking: dict[str, str] = {}
    for need in needs.values():
        try:
            need.load(sources)
        except Missing as error:
            lacking[need.name] = f"needs {need.clause}: {error}"
    for method in methods:
        reasons = [lacking[need.name] for need in method.needs if need.name in lacking]
        if reasons:
            print(f"longgraft: {method.name} is left out: it {reasons[0]}", file=sys.stderr)
            continue
        both_budgets = method.adaptive is not None or (method.looks_up and method.budget != BUDGET)
        if both_budgets or method.budget <= BUDGET:
            yield method.name
        if "budget" in method.takes and (both_budgets or method.budget > BUDGET):
            yield joined(method.name, {"budget": str(BUDGET)})


def _warmed(config: SweepConfig, bench: Bench, out: Path, examples: Sequence[Example]) -> dict[str, str]:
    """Makes matrix rows after 1, 3, 5, ... warm-up prompts (Table 4)."""
    prompts = [prompt_of(example, bench.session) for example in examples]
    calibrations = {}
    for count in ROUNDS:
        if count <= len(prompts):
            calibrations[str(count)] = _calibrated(config, bench, prompts[:count], out, f"warm-{count}")
    return calibrations


def _by_suite(config: SweepConfig, bench: Bench, out: Path, _: Sequence[Example]) -> dict[str, str]:
    """Makes thresholds chosen on rows of each suite that are not measured (Tables 11 and 12)."""
    suites = check_plan(config)
    plans = planned(config, suites, Reader.of(bench.session))
    calibrations = {}
    for suite, examples in suites.items():
        measured = {fitted.example.id for prompts in plans[suite].values() for fitted in prompts}
        rest = [example for example in examples if example.id not in measured]
        prompts = _prompts_of(rest, config, bench)
        if not prompts:
            raise ValueError(
                f"All rows of {suite} are measured, and none is left to choose thresholds on. Lower --prompts."
            )
        name = suite_name(suite)
        calibrations[name] = _calibrated(config, bench, prompts, out, f"thresholds-{name}")
    return calibrations


def _prompts_of(examples: Sequence[Example], config: SweepConfig, bench: Bench) -> list[Prompt]:
    """Returns as many prompts as a sweep has of a suite, cut to its shortest length if it has lengths."""
    prompts: list[Prompt] = []
    for example in examples:
        if len(prompts) == config.prompts:
            break
        if not config.lengths:
            prompts.append(prompt_of(example, bench.session))
            continue
        fitted = fit(example, bench.session.tokenizer, min(config.lengths))
        if fitted is not None:
            prompts.append(prompt_of(example, bench.session, fitted.ids))
    return prompts


def _calibrated(config: SweepConfig, bench: Bench, prompts: Sequence[Prompt], out: Path, name: str) -> str:
    budget = find(PAPERS).usual_budget(config.budget)
    path = out / f"{name}-budget-{budget}.safetensors"
    if not path.exists():
        calibrate(bench.loaded, prompts, WarmupSettings(config.max_new_tokens, config.temperature, budget), path)
    calibration = Calibration.load(path, bench.loaded.identity, bench.loaded.target.device)
    snapshot = calibration.snapshot
    assert snapshot is not None
    rows = int((snapshot >= 0).any(1).sum())
    size = rows * snapshot.shape[1] * 4 / 1e6
    print(f"longgraft: {calibration.describe()}; {rows:,} tokens with a row, {size:.2f} MB", file=sys.stderr)
    return str(path)


# Groups whose calibrations are made first: the setting that takes them, and the function that makes them.
CALIBRATED = {"warmup": ("warm", _warmed), "thresholds": ("thresholds", _by_suite)}

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
from longgraft.eval.prompts.suites import Example, read_prompts, suite_name
from longgraft.eval.runs.bench import Bench
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.plan import Reader, check_plan, planned
from longgraft.eval.runs.variants import COLD
from longgraft.methods.calibration import Calibration
from longgraft.methods.find import BUDGET, CORE, find, zoo
from longgraft.methods.needs import Missing, Sources

ROUNDS = (1, 3, 5, 10, 25, 50)      # numbers of warm-up prompts, as in Table 4
FIELD = "field"     # every method of the core and the zoo whose needs are available


def prepare(name: str, config: SweepConfig, out: Path, warmup: Path | None = None,
            dry: bool = False) -> SweepConfig:
    """Returns the sweep of an ablation; calibrations that it needs are made in `out`, once.

    Methods that the configuration names are measured, too.  dry: calibrations are left out
    """
    if name not in (*GROUPS, FIELD):
        raise ValueError(f"Ablation {name!r} is unknown. Known: {', '.join((*GROUPS, FIELD))}.")
    made: dict[str, str] = {}
    methods = tuple(_field(config)) if name == FIELD else GROUPS[name]
    if name in CALIBRATED and not dry:
        setting, calibrated = CALIBRATED[name]
        check_plan(config)      # errors of its suites come before a model is loaded
        prompts = _warmup_prompts(warmup) if name == "warmup" else ()
        made = calibrated(config, Bench.open(config), out, prompts)
        methods += tuple(f"{PAPERS}+{setting}={key}" for key in made)
    return replace(config, methods=tuple(dict.fromkeys((*methods, *config.methods))),
                   calibrations=config.calibrations | made)


def _field(config: SweepConfig) -> Iterator[str]:
    """Yields each method as it is, with a tree of at most the common budget.

    Methods that only look up, or that choose their budgets, are also yielded at that budget.  Methods that lack
    something are named on stderr and left out.
    """
    loaded = Bench.open(replace(config, methods=())).loaded
    sources = Sources(loaded.target, None if config.drafter == COLD else config.drafter, given=config.given,
                      tokenizer=loaded.tokenizer)
    methods = [*CORE.values(), *zoo().values()]
    lacking: dict[str, str] = {}
    for need in {need.name: need for method in methods for need in method.needs}.values():
        try:
            need.load(sources)
        except Missing as error:
            lacking[need.name] = f"needs {need.clause}: {error}"
    for method in methods:
        if reasons := [lacking[need.name] for need in method.needs if need.name in lacking]:
            print(f"longgraft: {method.name} is left out: it {reasons[0]}", file=sys.stderr)
            continue
        also = method.adaptive is not None or (method.looks_up and method.budget != BUDGET)
        if also or method.budget <= BUDGET:
            yield method.name
        if "budget" in method.takes and (also or method.budget > BUDGET):
            yield joined(method.name, {"budget": str(BUDGET)})


def _warmup_prompts(path: Path | None) -> Sequence[Example]:
    if path is None:
        raise ValueError("The ablation of warm-up rounds needs prompts to warm up on. Give --warmup-prompts FILE, a "
                         "JSONL of conversations that are in none of the suites.")
    return read_prompts(path, max(ROUNDS))


def _warmed(config: SweepConfig, bench: Bench, out: Path, examples: Sequence[Example]) -> dict[str, str]:
    """Makes matrix rows after 1, 3, 5, ... warm-up prompts (Table 4)."""
    prompts = [prompt_of(example, bench.session) for example in examples]
    rounds = [count for count in ROUNDS if count <= len(prompts)]
    return {str(n): _calibrated(config, bench, prompts[:n], out, f"warm-{n}") for n in rounds}


def _by_suite(config: SweepConfig, bench: Bench, out: Path, _: Sequence[Example]) -> dict[str, str]:
    """Makes thresholds chosen on rows of each suite that are not measured (Tables 11 and 12)."""
    suites, made = check_plan(config), {}
    measured = planned(config, suites, Reader.of(bench.session))
    for suite, examples in suites.items():
        taken = {fitted.example.id for prompts in measured[suite].values() for fitted in prompts}
        prompts: list[Prompt] = []
        for example in examples:
            if example.id in taken or len(prompts) == config.prompts:
                continue
            if not config.lengths:
                prompts.append(prompt_of(example, bench.session))
            elif cut := fit(example, bench.session.tokenizer, min(config.lengths)):
                prompts.append(prompt_of(example, bench.session, cut.ids))
        if not prompts:
            raise ValueError(f"All rows of {suite} are measured, and none is left to choose thresholds on. Lower "
                             "--prompts.")
        name = suite_name(suite)
        made[name] = _calibrated(config, bench, prompts, out, f"thresholds-{name}")
    return made


def _calibrated(config: SweepConfig, bench: Bench, prompts: Sequence[Prompt], out: Path, name: str) -> str:
    budget = find(PAPERS).usual_budget(config.budget)
    path = out / f"{name}-budget-{budget}.safetensors"
    if not path.exists():
        calibrate(bench.loaded, prompts, WarmupSettings(config.max_new_tokens, config.temperature, budget), path)
    found = Calibration.load(path, bench.loaded.identity, bench.loaded.target.device)
    assert found.snapshot is not None
    rows = int((found.snapshot >= 0).any(1).sum())
    size = rows * found.snapshot.shape[1] * 4 / 1e6
    print(f"longgraft: {found.describe()}; {rows:,} tokens with a row, {size:.2f} MB", file=sys.stderr)
    return str(path)


# Groups whose calibrations are made first: the setting that takes them, and the function that makes them.
CALIBRATED = {"warmup": ("warm", _warmed), "thresholds": ("thresholds", _by_suite)}

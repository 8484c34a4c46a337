"""Measures every variant on one prompt at a time, checks it against plain decoding, and records failures."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.cost_measurement import costs_for
from longgraft.budget.sample_text import sample_tokens
from longgraft.comparison.levels import Check, first_divergence
from longgraft.config.method_roles import DEFAULT, HEADLESS, PLAIN
from longgraft.config.settings import HeadOverrides, Settings
from longgraft.drafters.pruning import DEFAULT_THRESHOLDS
from longgraft.engine.repetition import loops
from longgraft.engine.session import Session
from longgraft.eval.prompts.buckets import Fitted, as_it_is
from longgraft.eval.prompts.suites import Example
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.jobs import Job, failed_turn, failures, missing
from longgraft.eval.runs.measure import PromptMeasurement
from longgraft.eval.runs.quiet import OtherLoad
from longgraft.eval.runs.rows import Failure, Key, Result, Row, done
from longgraft.eval.runs.variant_engines import VariantEngines
from longgraft.eval.runs.variants import COLD, Variant
from longgraft.eval.scores import score
from longgraft.loading import assemble
from longgraft.methods.assembly import Loaded
from longgraft.methods.calibration import Calibration
from longgraft.methods.find import build, find
from longgraft.methods.needs import HEAD, Missing, Sources, check_given, head_of

FAILURES = (ValueError, RuntimeError, MemoryError)      # errors of one prompt or variant, not of the run


@dataclass(frozen=True)
class Bench:
    """The loaded objects that a sweep runs on: one target model, its tokenizer, and the engines of its variants.

    missing: variant -> why it cannot be measured on this target
    """

    loaded: Loaded
    session: Session
    engines: VariantEngines
    missing: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, config: SweepConfig) -> Bench:
        """Loads the target once, and every head and calibration."""
        drafter, calibrated = (None if name == COLD else name for name in (config.drafter, config.calibration))
        settings = Settings(method=DEFAULT if drafter else HEADLESS, calibration=calibrated,
                          draft_levels=config.draft_levels, draft_top_k=config.draft_top_k, device=config.device,
                          dtype=config.dtype, weights=config.weights, kv_dtype=config.kv_dtype,
                          attention=config.attention, costs=config.costs)
        loaded = assemble(config.model, drafter, settings)
        target = loaded.target
        needs = {need.name: need for v in config.variants if v.ours for need in find(v.method).needs if need != HEAD}
        if config.methods:
            check_given(config.given, needs.values())
        sources = Sources(target, drafter, given=config.given, tokenizer=loaded.tokenizer)
        own = {}
        for name, need in needs.items():
            with suppress(Missing) if config.allow_missing else nullcontext():
                own[name] = need.load(sources)
        parts = replace(loaded.parts, given=own | dict(loaded.parts.given))
        heads = {"": parts}
        for name, path in config.heads.items():
            # Prompts that are longer than a head was made for are measured on purpose here.
            network = head_of(path, target, HeadOverrides(max_positions=target.max_positions))
            # Thresholds belong to the head that they were calibrated with; the matrix rows to the target.
            calibration = replace(parts.calibration, thresholds=DEFAULT_THRESHOLDS, split=Calibration.split)
            heads[name] = replace(parts, given=own | {HEAD.name: network}, calibration=calibration)
        if any(variant.adaptive(config.budget) for variant in config.variants):
            text = sample_tokens(loaded.tokenizer)
            heads = {name: replace(one, costs=costs_for(target, one.head, config.costs, one.regions, text))
                     for name, one in heads.items()}
        calibrations = {name: Calibration.load(Path(path), loaded.identity, target.device)
                        for name, path in config.calibrations.items()}
        engines = VariantEngines(loaded, heads, calibrations, config.budget, config.profile, config.modes)
        missing = {}
        for variant in (variant for variant in config.variants if variant.ours):
            try:
                build(engines.method(variant), engines.parts(variant), variant.adaptive(config.budget))
            except Missing as error:
                if not config.allow_missing:        # then it is an error before anything runs
                    raise
                missing[variant.name] = str(error).splitlines()[0]
        return cls(loaded, loaded.session(Settings(budget=loaded.method.usual_budget(config.budget))), engines, missing)

    def able(self, variants: Iterable[Variant]) -> list[Variant]:
        """Returns the variants whose needs are available."""
        return [variant for variant in variants if variant.name not in self.missing]


def run_prompt(config: SweepConfig, bench: Bench, job: Job) -> Iterator[Result]:
    """Yields all missing rows of one prompt and of its later turns; a failure becomes a row with the error, no numbers.

    A later turn follows plain decoding's answer in the same mode, so every method is measured on one conversation.
    """
    job, session = replace(job, done=dict(job.done)), bench.session
    yield from _run_turn(config, bench, job, job.fitted)
    for mode in config.modes if not config.lengths else ():
        alone, turn = replace(config, modes=(mode,)), job.fitted
        while turn.example.follow_ups:
            answered = job.done.get(job.key(turn, mode, PLAIN, 0))
            if not answered:
                yield from failures(alone, replace(job, fitted=turn), f"turn {turn.example.turn} has no answer to go "
                                                                      "on from: its own rows say why")
                break
            # The answer is kept as in a chat: without the token that ended it.
            answer = session.tokenizer.decode([t for t in answered if t not in session.eos], skip_special_tokens=True)
            turn = as_it_is(turn.example.next_turn(answer), session.tokenizer)
            yield from _run_turn(alone, bench, job, turn)


def _run_turn(config: SweepConfig, bench: Bench, job: Job, fitted: Fitted) -> Iterator[Result]:
    """Yields all missing rows of one turn, and adds them to the job's."""
    wanted = missing(config, job, fitted)
    if not wanted:
        return
    try:
        for row in measure_prompt(config, bench, job, fitted, wanted):
            job.done |= done([row])
            yield row
    except FAILURES as error:
        rows = list(failed_turn(config, job, fitted, f"{type(error).__name__}: {error}"))
        job.done |= done(rows)
        yield from rows


def measure_prompt(config: SweepConfig, bench: Bench, job: Job, fitted: Fitted, wanted: set[Key]) -> Iterator[Result]:
    """Yields the wanted rows of one turn, from one prefill.

    A variant that fails gets a row with the error, and the others go on.
    """
    session, example = bench.session, fitted.example
    limit, most = _limit(config, example), session.target.max_positions
    if len(fitted.ids) + limit > most:
        raise ValueError(f"The prompt has {len(fitted.ids):,} tokens and {limit:,} may follow, but "
                         f"{session.target.name} has {most:,} positions. Lower --max-new-tokens, or cut prompts to a "
                         "shorter length with `longgraft sweep`.")
    variants = bench.able(v for v in config.variants if any(v.name == key.method for key in wanted))
    # Replays are checked against plain decoding, also if a resumed run already has its rows.
    variants = list(dict.fromkeys((Variant.plain(), *variants)))
    predicted = example.predicted(session.tokenizer)
    with PromptMeasurement(bench.engines, variants, fitted.ids, max(limit, config.check_tokens or 0),
                           prediction=predicted) as state:
        checks = _Checks(config, state)
        for mode in (mode for mode in config.modes if any(mode == key.mode for key in wanted)):
            draw = draw_of(config, bench, example, mode)
            checks.plain[mode] = job.done.get(job.key(fitted, mode, PLAIN, 0), [])
            with suppress(*FAILURES):       # the first decoding is not timed; a failure will occur again below
                state.decode(Variant.plain(), draw.sampling, min(2, draw.limit))
            for repeat in range(config.repeats):
                for variant in interleaved(variants, example.id, repeat):
                    key = job.key(fitted, mode, variant.name, repeat)
                    if key in wanted:
                        yield _measure(bench, checks, variant, draw, key, fitted)
    for key in sorted(key for key in wanted if key.method in bench.missing):
        promise = Variant.parse(key.method).promise
        yield Failure(key, bench.missing[key.method], example.turn, fitted.cut_tokens, promise,
                      example.fingerprint(key.mode))


def interleaved(variants: Sequence[Variant], prompt: str, repeat: int) -> list[Variant]:
    """Returns the order in which variants are timed, so that a machine that warms up or slows down favours none.

    Every prompt begins with another variant, and every second repeat goes backwards. Plain decoding, with which the
    others are compared, is first in even repeats and last in odd ones.
    """
    plain, *others = variants
    first = zlib.crc32(prompt.encode()) % max(1, len(others))
    order = [plain, *others[first:], *others[:first]]
    return order if repeat % 2 == 0 else order[::-1]


def _measure(bench: Bench, checks: _Checks, variant: Variant, draw: Draw, key: Key, fitted: Fitted) -> Result:
    """Measures one row."""
    state, example, tokenizer = checks.state, fitted.example, bench.session.tokenizer
    load = OtherLoad()
    try:
        tokens, stats = state.decode(variant, draw.sampling, draw.limit, draw.eos, key.mode)
        other_load = load.cores()
        if key.method == PLAIN and key.repeat == 0:
            checks.plain[key.mode] = tokens
        check = checks.of(variant, key.mode, draw, tokens)
    except FAILURES as error:
        return Failure(key, f"{type(error).__name__}: {error}", example.turn, fitted.cut_tokens, variant.promise,
                       example.fingerprint(key.mode))
    scored = None
    if key.mode != "replay" and key.repeat == 0:
        scored = score(example.suite, tokenizer.decode(tokens, skip_special_tokens=True), example.answers)
    return Row(key, **stats.as_dict(), token_ids=tokens, loop=loops(tokens), lossless=check,
               promise=variant.promise, score=scored, limit=draw.limit,
               learned_from=state.learned_from(variant, key.mode), turn=example.turn, cut_tokens=fitted.cut_tokens,
               other_load=other_load, fingerprint=example.fingerprint(key.mode))


@dataclass(frozen=True)
class Draw:
    """Decoding settings of a mode: sampling, token limit, and the tokens that end an answer."""

    sampling: Sampling
    limit: int
    eos: Sequence[int]


def draw_of(config: SweepConfig, bench: Bench, example: Example, mode: str) -> Draw:
    """Returns how tokens are drawn in a mode; raises ValueError if there is nothing to replay."""
    limit = _limit(config, example)
    if mode != "replay":
        return Draw(config.sampling(mode), limit, bench.session.eos)
    recording = bench.session.tokenizer(example.recording, add_special_tokens=False)["input_ids"][:limit]
    if not recording:
        raise ValueError(f"The recorded continuation of {example.id} has no token.")
    return Draw(config.sampling(mode, recording), len(recording), ())


def _limit(config: SweepConfig, example: Example) -> int:
    return min(config.max_new_tokens, example.max_new_tokens or config.max_new_tokens)


class _Checks:
    """Compares a variant's tokens with plain decoding's on one prompt.  plain: plain decoding's tokens by mode."""

    def __init__(self, config: SweepConfig, state: PromptMeasurement) -> None:
        self._config, self.state = config, state
        self.plain: dict[str, list[int]] = {}
        self._drawn: dict[str, Check | None] = {}

    def of(self, variant: Variant, mode: str, draw: Draw, tokens: list[int]) -> Check | None:
        """Returns the comparison of a variant's tokens with plain decoding's.

        A replay cannot diverge, so tokens are drawn beside it, in the mode in which the method must have plain
        decoding's, and compared.  transformers' own `generate` is compared if it is greedy, as plain decoding is.  None
        if there is nothing to compare, such as when plain decoding failed.
        """
        if not variant.ours and mode != "greedy":
            return None
        if mode != "replay":
            return self._compare(self.plain[mode], draw, tokens)
        if variant.name not in self._drawn:
            # In half precision only greedy draws have a margin to judge a divergence by.
            exact = self.state.target.dtype == torch.float32 and variant.promise == "exact"
            how = "sampled" if exact else "greedy"
            draw = Draw(self._config.sampling(how), self._config.check_tokens or draw.limit, ())
            mode = f"{how} beside replay"
            ours = self.state.decode(variant, draw.sampling, draw.limit)[0]
            if variant.name == PLAIN:
                self.plain[mode] = ours
            elif mode not in self.plain:
                self.plain[mode] = self.state.decode(Variant.plain(), draw.sampling, draw.limit)[0]
            self._drawn[variant.name] = self._compare(self.plain[mode], draw, ours)
        return self._drawn[variant.name]

    def _compare(self, theirs: list[int], draw: Draw, ours: list[int]) -> Check | None:
        if not theirs:
            return None
        at = first_divergence(ours, theirs)
        near = at is not None and draw.sampling.temperature == 0
        return Check(len(theirs), at, *(self.state.margin(theirs[:at]) if near else (None, None)))


def warm_up(config: SweepConfig, bench: Bench, fitted: Fitted) -> None:
    """Runs a few untimed steps of every method on a short prompt: kernels are chosen, memory is allocated."""
    variants = bench.able(config.variants)
    with PromptMeasurement(bench.engines, variants, fitted.ids[-256:], 8, learning=False) as state:
        for variant in variants:
            with suppress(*FAILURES):       # the method's own rows will have the error
                state.decode(variant, Sampling(), 8)

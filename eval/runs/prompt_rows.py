"""Measures every variant on one prompt at a time, checks it against plain decoding, and records failures."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from longgraft.acceptance.sampling import Sampling
from longgraft.comparison.levels import Check, first_divergence
from longgraft.config.method_roles import PLAIN
from longgraft.engine.repetition import loops
from longgraft.eval.prompts.buckets import Fitted, as_it_is
from longgraft.eval.prompts.example import Example
from longgraft.eval.runs.bench import Bench
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.jobs import Job, failed_turn, failure, failures, missing
from longgraft.eval.runs.measure import PromptMeasurement
from longgraft.eval.runs.quiet import OtherLoad
from longgraft.eval.runs.rows import Key, Result, Row, done
from longgraft.eval.runs.variants import Variant
from longgraft.eval.scores import score

FAILURES = (ValueError, RuntimeError, MemoryError)  # errors of one prompt or variant, not of the run


def run_prompt(config: SweepConfig, bench: Bench, job: Job) -> Iterator[Result]:
    """Yields all missing rows of one prompt and of its later turns; a failure becomes a row with the error, no numbers.

    A later turn follows plain decoding's answer in the same mode, so every method is measured on one conversation.
    """
    job = replace(job, done=dict(job.done))
    yield from _run_turn(config, bench, job, job.fitted)
    if config.lengths:
        return
    for mode in config.modes:
        yield from _run_later_turns(replace(config, modes=(mode,)), bench, job, mode)


def _run_later_turns(config: SweepConfig, bench: Bench, job: Job, mode: str) -> Iterator[Result]:
    """Yields all missing rows of a prompt's later turns in one mode."""
    session = bench.session
    turn = job.fitted
    while turn.example.follow_ups:
        answer = job.done.get(job.key(turn, mode, PLAIN, 0))
        if not answer:
            why = f"turn {turn.example.turn} has no answer to go on from: its own rows say why"
            yield from failures(config, replace(job, fitted=turn), why)
            return
        # The answer is kept as in a chat: without the token that ended it.
        tokens = [token for token in answer if token not in session.eos]
        text = session.tokenizer.decode(tokens, skip_special_tokens=True)
        turn = as_it_is(turn.example.next_turn(text), session.tokenizer)
        yield from _run_turn(config, bench, job, turn)


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
    session = bench.session
    example = fitted.example
    limit = _limit(config, example)
    most = session.target.max_positions
    if len(fitted.ids) + limit > most:
        raise ValueError(
            f"The prompt has {len(fitted.ids):,} tokens and {limit:,} may follow, but {session.target.name} has "
            f"{most:,} positions. Lower --max-new-tokens, or cut prompts to a shorter length with `longgraft sweep`."
        )
    methods = {key.method for key in wanted}
    variants = bench.able(variant for variant in config.variants if variant.name in methods)
    # Replays are checked against plain decoding, also if a resumed run already has its rows.
    variants = list(dict.fromkeys((Variant.plain(), *variants)))
    predicted = example.predicted(session.tokenizer)
    with PromptMeasurement(
        bench.engines,
        variants,
        fitted.ids,
        max(limit, config.check_tokens or 0),
        prediction=predicted,
        pool=f"{job.suite} {job.length}",
    ) as state:
        checks = _Checks(config, state)
        modes = {key.mode for key in wanted}
        for mode in config.modes:
            if mode not in modes:
                continue
            draw = draw_of(config, bench, example, mode)
            checks.plain[mode] = job.done.get(job.key(fitted, mode, PLAIN, 0), [])
            with suppress(*FAILURES):  # the first decoding is not timed; a failure will occur again below
                state.decode(Variant.plain(), draw.sampling, min(2, draw.limit))
            for repeat in range(config.repeats):
                for variant in interleaved(variants, example.id, repeat):
                    key = job.key(fitted, mode, variant.name, repeat)
                    if key in wanted:
                        yield _measure(bench, checks, variant, draw, key, fitted)
    for key in sorted(wanted):
        if key.method in bench.missing:
            yield failure(key, bench.missing[key.method], fitted, Variant.parse(key.method).promise)


def interleaved(variants: Sequence[Variant], prompt: str, repeat: int) -> list[Variant]:
    """Returns the order in which variants are timed, so that a machine that warms up or slows down favours none.

    Every prompt begins with another variant, and every second repeat goes backwards. Plain decoding, with which the
    others are compared, is first in even repeats and last in odd ones.
    """
    plain, *others = variants
    first = zlib.crc32(prompt.encode()) % max(1, len(others))
    order = [plain, *others[first:], *others[:first]]
    if repeat % 2:
        return order[::-1]
    return order


def _measure(bench: Bench, checks: _Checks, variant: Variant, draw: Draw, key: Key, fitted: Fitted) -> Result:
    """Measures one row."""
    state = checks.state
    example = fitted.example
    load = OtherLoad()
    try:
        tokens, stats = state.decode(variant, draw.sampling, draw.limit, draw.eos, key.mode)
        other_load = load.cores()
        if key.method == PLAIN and key.repeat == 0:
            checks.plain[key.mode] = tokens
        check = checks.of(variant, key.mode, draw, tokens)
    except FAILURES as error:
        return failure(key, f"{type(error).__name__}: {error}", fitted, variant.promise)
    scored = None
    if key.mode != "replay" and key.repeat == 0:
        text = bench.session.tokenizer.decode(tokens, skip_special_tokens=True)
        scored = score(example.suite, text, example.answers)
    return Row(
        key,
        **stats.as_dict(),
        token_ids=tokens,
        loop=loops(tokens),
        lossless=check,
        promise=variant.promise,
        score=scored,
        limit=draw.limit,
        learned_from=state.learned_from(variant, key.mode),
        turn=example.turn,
        cut_tokens=fitted.cut_tokens,
        other_load=other_load,
        fingerprint=example.fingerprint(key.mode),
    )


@dataclass(frozen=True)
class Draw:
    """Decoding settings of a mode."""

    sampling: Sampling  # how tokens are drawn
    limit: int  # most tokens of an answer
    eos: Sequence[int]  # tokens that end an answer


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
    """Compares the tokens of variants with plain decoding's on one prompt.

    Attributes:
        state: The prompt, from which tokens are drawn beside a replay.
        plain: Mode -> plain decoding's tokens.
    """

    def __init__(self, config: SweepConfig, state: PromptMeasurement) -> None:
        self._config = config
        self.state = state
        self.plain: dict[str, list[int]] = {}
        self._beside_replay: dict[str, Check | None] = {}

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
        if variant.name not in self._beside_replay:
            self._beside_replay[variant.name] = self._check_beside_replay(variant, draw)
        return self._beside_replay[variant.name]

    def _check_beside_replay(self, variant: Variant, replayed: Draw) -> Check | None:
        """Draws tokens and compares them."""
        mode = "greedy"
        # In half precision only greedy draws have a margin to judge a divergence by.
        if self.state.target.dtype == torch.float32 and variant.promise == "exact":
            mode = "sampled"
        draw = Draw(self._config.sampling(mode), self._config.check_tokens or replayed.limit, ())
        key = f"{mode} beside replay"
        tokens, _ = self.state.decode(variant, draw.sampling, draw.limit)
        if variant.name == PLAIN:
            self.plain[key] = tokens
        elif key not in self.plain:
            self.plain[key], _ = self.state.decode(Variant.plain(), draw.sampling, draw.limit)
        return self._compare(self.plain[key], draw, tokens)

    def _compare(self, plain: list[int], draw: Draw, tokens: list[int]) -> Check | None:
        if not plain:
            return None
        divergence = first_divergence(tokens, plain)
        if divergence is None or draw.sampling.temperature > 0:
            return Check(len(plain), divergence)
        return Check(len(plain), divergence, *self.state.margin(plain[:divergence]))


def warm_up(config: SweepConfig, bench: Bench, fitted: Fitted) -> None:
    """Runs a few untimed steps of every method on a short prompt: kernels are chosen, memory is allocated."""
    variants = bench.able(config.variants)
    with PromptMeasurement(bench.engines, variants, fitted.ids[-256:], 8, learning=False) as state:
        for variant in variants:
            with suppress(*FAILURES):  # the method's own rows will have the error
                state.decode(variant, Sampling(), 8)

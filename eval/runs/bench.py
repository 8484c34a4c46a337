"""One prompt at a time: what is measured on it by every variant, checked against plain decoding, and what fails.

Knows the target with its heads, and prompts; knows no file and no worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from longgraft.calibration import Calibration
from longgraft.drafters.policies import DEFAULT_THRESHOLDS
from longgraft.eval.checks.losslessness import first_divergence
from longgraft.eval.loops import loops
from longgraft.eval.prompts.buckets import Fitted, as_it_is, plan, whole
from longgraft.eval.prompts.suites import load_suite
from longgraft.eval.reports.report import key
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.measure import Learned, Prefilled, Stock
from longgraft.eval.runs.variants import COLD, Variant
from longgraft.eval.runs.workers import Done, Job
from longgraft.eval.scores import score
from longgraft.loading import Loaded, assemble
from longgraft.methods import build
from longgraft.needs import HEAD, head_of
from longgraft.parts import Parts
from longgraft.roles import DEFAULT, PLAIN, RETRIEVAL
from longgraft.sampling import Sampling
from longgraft.session import Session
from longgraft.settings import HeadOverrides, Settings

FAILURES = (ValueError, RuntimeError, MemoryError)      # of one prompt or variant, not of the run


@dataclass(frozen=True)
class Bench:
    """What a sweep runs on: one target, its tokenizer, and what its variants are made of."""

    loaded: Loaded
    session: Session
    stock: Stock
    learned: Learned = field(default_factory=Learned)

    @classmethod
    def open(cls, config: SweepConfig) -> Bench:
        """Load the target once, every head and every calibration."""
        drafter, calibration = (None if name == COLD else name for name in (config.drafter, config.calibration))
        settings = Settings(method=DEFAULT if drafter else RETRIEVAL, calibration=calibration,
                          draft_levels=config.draft_levels, draft_top_k=config.draft_top_k, device=config.device,
                          dtype=config.dtype, attention=config.attention)
        loaded = assemble(config.model, drafter, settings)
        target, parts = loaded.target, loaded.parts
        heads = {"": parts}
        for name, path in config.heads.items():
            # Prompts that are longer than a head was made for are the question here, not a mistake.
            network = head_of(path, target, HeadOverrides(max_positions=target.max_positions))
            # Thresholds are of the head that they were calibrated with; the matrix's rows are the target's.
            heads[name] = replace(parts, given={HEAD.name: network}, thresholds=DEFAULT_THRESHOLDS, split=Parts.split)
        stock = Stock(heads, {name: Calibration.load(Path(path), loaded.identity, target.device)
                              for name, path in config.calibrations.items()})
        for variant in config.variants:
            if variant.ours:
                build(variant.method, stock.parts(variant))     # what it lacks is said before anything runs
        return cls(loaded, loaded.session(), stock)


def planned(config: SweepConfig, bench: Bench) -> dict[str, dict[int, list[Fitted]]]:
    """suite -> length -> prompts, cut to length or whole.  Where a mode replays, these are recorded ones, if any."""
    data = None if config.data is None else Path(config.data)
    tokenizer, found = bench.session.tokenizer, {}
    for suite in config.suites:
        examples = load_suite(suite, data, [Path(path) for path in config.recorded])
        if "replay" in config.modes:
            recorded = [example for example in examples if example.recording]
            if not recorded and config.modes == ("replay",):
                raise ValueError(f"No row of {suite} has a recorded continuation to replay. Give --recorded FILE, or "
                                 "another --mode.")
            examples = recorded or examples
        found[suite] = (plan(examples, tokenizer, config.lengths, config.prompts) if config.lengths
                        else whole(examples, tokenizer, config.prompts))
    return found


def measure_prompt(config: SweepConfig, bench: Bench, fitted: Fitted, wanted: set[tuple[str, str, int]]
                   ) -> Iterator[dict[str, Any]]:
    """The rows (mode, method, repeat) of one prompt that are wanted, from one prefill; a variant that fails gets a row
    that says why, and the others go on."""
    session, example = bench.session, fitted.example
    limit = min(config.max_new_tokens, example.max_new_tokens or config.max_new_tokens)
    most = session.target.max_positions
    # A length is the user's choice, up to the last position; a whole prompt is as long as it is.
    if not config.lengths and len(fitted.ids) + limit > most:
        raise ValueError(f"The prompt has {len(fitted.ids):,} tokens and {limit:,} may follow, but "
                         f"{session.target.name} has {most:,} positions. Lower --max-new-tokens, or cut prompts to a "
                         "length with `longgraft sweep`.")
    # All are checked against plain decoding, also where a resumed run has its rows.
    variants = [v for v in config.variants if any(v.name == name for _, name, _ in wanted)]
    variants = list(dict.fromkeys((Variant.plain(), *variants)))
    state = Prefilled(session.target, bench.stock, variants, fitted.ids, max(limit, config.check_tokens),
                      budget=config.budget, profile=config.profile, learned=bench.learned, runs=config.modes)
    checks = _Checks(config, state)
    for mode in (mode for mode in config.modes if any(mode == m for m, _, _ in wanted)):
        recording = _recording(example, session)[:limit] if mode == "replay" else []
        if mode == "replay" and not recording:
            continue
        draw = _Draw(config.sampling(mode, recording), len(recording) or limit,
                     () if mode == "replay" else session.eos)
        checks.plain(mode, draw)        # and so nothing of this length is timed cold
        for repeat in range(config.repeats):
            # Alternated, so that a machine that warms or slows down favours no method.
            for variant in variants if repeat % 2 == 0 else reversed(variants):
                if (mode, variant.name, repeat) not in wanted:
                    continue
                about = {"mode": mode, "method": variant.name, "repeat": repeat}
                try:
                    tokens, stats = state.decode(variant, draw.sampling, draw.limit, draw.eos, mode)
                    row = about | stats.as_dict() | {"token_ids": tokens, "loop": loops(tokens),
                                                     "lossless": checks.of(variant, mode, draw, tokens)}
                except FAILURES as error:
                    yield about | {"error": f"{type(error).__name__}: {error}"}
                    continue
                if (before := state.learned_from(variant, mode)) is not None:
                    row["learned_from"] = before
                if mode != "replay" and repeat == 0:
                    row["score"] = score(example.suite, session.tokenizer.decode(tokens, skip_special_tokens=True),
                                         example.answers)
                yield row


@dataclass(frozen=True)
class _Draw:
    """How a mode draws tokens, how many, and what ends them."""

    sampling: Sampling
    limit: int
    eos: Sequence[int]


class _Checks:
    """Whether a variant's tokens are plain decoding's, on one prompt."""

    def __init__(self, config: SweepConfig, state: Prefilled) -> None:
        self._config, self._state = config, state
        self._plain: dict[str, list[int]] = {}
        self._beside: dict[str, dict[str, Any]] = {}

    def of(self, variant: Variant, mode: str, draw: _Draw, tokens: list[int]) -> dict[str, Any] | None:
        """{tokens, first_divergence, margin}; a replay, which can show none, is checked by drawing beside it.

        transformers' own `generate` is compared where it is greedy as plain decoding is; None elsewhere.
        """
        if not variant.ours:
            return self._compare(mode, draw, tokens) if mode == "greedy" else None
        if mode != "replay":
            return self._compare(mode, draw, tokens)
        if variant.name not in self._beside:
            # In half precision only greedy draws have a margin to judge a divergence by.
            exact = self._state.target.dtype == torch.float32
            draw = _Draw(self._config.sampling("sampled" if exact else "greedy"), self._config.check_tokens, ())
            ours = self._state.decode(variant, draw.sampling, draw.limit)[0]
            self._beside[variant.name] = self._compare("beside replay", draw, ours)
        return self._beside[variant.name]

    def plain(self, kind: str, draw: _Draw) -> list[int]:
        """What plain decoding says, decoded once."""
        if kind not in self._plain:
            self._plain[kind] = self._state.decode(Variant.plain(), draw.sampling, draw.limit, draw.eos)[0]
        return self._plain[kind]

    def _compare(self, kind: str, draw: _Draw, ours: list[int]) -> dict[str, Any]:
        theirs = self.plain(kind, draw)
        at = first_divergence(ours, theirs)
        near = at is not None and draw.sampling.temperature == 0
        return {"tokens": len(theirs), "first_divergence": at,
                "margin": self._state.margin(theirs[:at]) if near else None}


def _recording(example: Any, session: Session) -> list[int]:
    """What is replayed, in the target's tokens."""
    text = example.recording
    return session.tokenizer(text, add_special_tokens=False)["input_ids"] if text else []


def _missing(config: SweepConfig, suite: str, length: int, fitted: Fitted,
             done: Done) -> set[tuple[str, str, int]]:
    """(mode, method, repeat) of a prompt, in this turn, that no row has yet."""
    example = fitted.example
    return {(mode, variant.name, repeat) for mode in config.modes for variant in config.variants
            for repeat in range(config.repeats)
            if (mode != "replay" or example.continuations)
            and (mode != "sampled" or variant.ours)     # its random numbers are others
            and (suite, length, example.id, mode, variant.name, repeat) not in done}


def _about(suite: str, length: int, fitted: Fitted) -> dict[str, Any]:
    return {"suite": suite, "bucket": length, "prompt_id": fitted.example.id, "turn": fitted.example.turn,
            "cut_tokens": fitted.cut_tokens}


def turns_of(config: SweepConfig, fitted: Fitted) -> list[Fitted]:
    """A prompt and, where prompts are taken whole, its later turns, of which the answers before them are not known."""
    turns = [fitted]
    while not config.lengths and turns[-1].example.follow_ups:
        turns.append(replace(turns[-1], example=turns[-1].example.next_turn("")))
    return turns


def count_missing(config: SweepConfig, job: Job) -> int:
    """Rows of a prompt, all turns together, that are not there yet."""
    return sum(len(_missing(config, job.suite, job.length, turn, job.done)) for turn in turns_of(config, job.fitted))


def run_prompt(config: SweepConfig, bench: Bench, suite: str, length: int, fitted: Fitted,
               done: Done) -> Iterator[dict[str, Any]]:
    """All missing rows of one prompt and of its later turns; what fails becomes rows that say why, and hold no number.

    A later turn follows what plain decoding answered in the same mode: every method is measured on one conversation.
    """
    made, session = dict(done), bench.session
    yield from _run_turn(config, bench, suite, length, fitted, made)
    for mode in config.modes if not config.lengths else ():
        alone, turn = replace(config, modes=(mode,)), fitted
        while turn.example.follow_ups:
            said = made.get((suite, length, turn.example.id, mode, PLAIN, 0))
            if not said:
                yield from failures(alone, suite, length, turn, made, f"turn {turn.example.turn} has no answer to go "
                                                                      "on from: its own rows say why")
                break
            # As a chat would keep it: without the token that ended it.
            answer = session.tokenizer.decode([t for t in said if t not in session.eos], skip_special_tokens=True)
            turn = as_it_is(turn.example.next_turn(answer), session.tokenizer)
            yield from _run_turn(alone, bench, suite, length, turn, made)


def _run_turn(config: SweepConfig, bench: Bench, suite: str, length: int, fitted: Fitted,
              made: Done) -> Iterator[dict[str, Any]]:
    """All missing rows of one turn, which are added to `made`."""
    wanted, about = _missing(config, suite, length, fitted, made), _about(suite, length, fitted)
    if not wanted:
        return
    try:
        for row in measure_prompt(config, bench, fitted, wanted):
            made[key(about | row)] = row.get("token_ids", [])
            yield about | row
    except FAILURES as error:
        for row in _failed(config, suite, length, fitted, made, f"{type(error).__name__}: {error}"):
            made[key(row)] = []
            yield row


def failures(config: SweepConfig, suite: str, length: int, fitted: Fitted, done: Done,
             why: str) -> Iterator[dict[str, Any]]:
    """A row without numbers for everything of this prompt and its later turns that is missing."""
    for turn in turns_of(config, fitted):
        yield from _failed(config, suite, length, turn, done, why)


def _failed(config: SweepConfig, suite: str, length: int, fitted: Fitted, done: Done,
            why: str) -> Iterator[dict[str, Any]]:
    for mode, method, repeat in sorted(_missing(config, suite, length, fitted, done)):
        yield _about(suite, length, fitted) | {"mode": mode, "method": method, "repeat": repeat, "error": why}


def warm_up(config: SweepConfig, bench: Bench, fitted: Fitted) -> None:
    """Every method runs a few steps on a short prompt, untimed: kernels are chosen, memory is allocated."""
    state = Prefilled(bench.session.target, bench.stock, config.variants, fitted.ids[-256:], 8, budget=config.budget)
    for variant in config.variants:
        with suppress(*FAILURES):       # its own rows will say it
            state.decode(variant, Sampling(), 8)

"""Cells: the figures of one method on one suite and length.

A failure enters no figure.  An answer that ended at once counts neither as a prompt nor as a failure, because nothing
was decoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

import numpy as np

from longgraft.comparison.levels import Check, first_divergence
from longgraft.config.method_roles import PLAIN
from longgraft.eval.runs.rows import Failure, Key, Result, Row
from longgraft.eval.statistics import Mean

ALL = "all"
LOSSY = "lossy"

Pair = tuple[Row, Row]      # a row, and plain decoding's of the same prompt and repeat


@dataclass(frozen=True)
class TableCell:
    """One method on one suite and length in one mode; all figures but counts are None if nothing was measured.

    Attributes:
        prompts: Number of measured prompts.
        loops: Number of them whose answer loops.
        failures: Number of failed decodings.
        checks: One per prompt; none for a lossy method, which promises nothing.
        lengths: Tokens of each checked answer.
        mat: Accepted tokens per step, the mean over prompts.
        mat_pooled: Accepted tokens per step over all steps, in which long answers count for more.
        rate: Tokens per second: first quartile, median and third quartile over prompts.
        speedup: Decoding speed over plain decoding's of the same prompt and repeat, the geometric mean over prompts.
        speedups: The speed-up of each prompt, ascending.
        end_to_end: The same of prefill and decoding together, for answers of plain decoding's length.
        prefill_seconds: Seconds of the prefill, the mean over prompts.
        answer_seconds: Seconds of decoding, the mean over prompts.
        tokens_per_step: Over all repeats, which differ if costs are measured while running.
        kinds: Number of steps by the kind of proposal, over all repeats.
        forwards: Forwards per step besides the verification, by network.
        step_cost: Seconds of a step relative to plain decoding's on the same prompt and repeat, median over prompts.
    """

    mode: str
    suite: str
    bucket: int
    method: str
    promise: str
    prompts: int
    loops: int
    failures: int
    checks: tuple[Check, ...]
    lengths: tuple[int, ...] = ()
    mat: Mean | None = None
    mat_pooled: float | None = None
    rate: tuple[float, float, float] | None = None
    speedup: Mean | None = None
    speedups: tuple[float, ...] = ()
    end_to_end: Mean | None = None
    prefill_seconds: float | None = None
    answer_seconds: float | None = None
    tokens_per_step: float | None = None
    kinds: Mapping[str, int] = field(default_factory=dict)
    forwards: Mapping[str, float] = field(default_factory=dict)
    step_cost: float | None = None


def measured(rows: Iterable[Result]) -> list[Row]:
    """Returns the rows in which anything was decoded: no failures, and no answers that ended at once."""
    return [row for row in rows if isinstance(row, Row) and row.steps > 0]


def first_repeats(rows: Iterable[Row]) -> list[Row]:
    """Returns one row of each decoding: repeats have the same tokens, and only their times differ."""
    found: dict[Key, Row] = {}
    for row in sorted(rows, key=lambda row: row.key.repeat):
        found.setdefault(row.key._replace(repeat=0), row)
    return list(found.values())


def cells(rows: Sequence[Result], with_loops: bool = True) -> list[TableCell]:
    """Returns the cells of every mode x suite (and all suites together) x length x method, in the order of the rows."""
    promises: dict[str, str] = {}
    # Rows override failures, because failures of older versions have no promise.
    for row in sorted(rows, key=lambda row: isinstance(row, Row)):
        promises[row.key.method] = row.promise
    methods = list(dict.fromkeys(row.key.method for row in rows))
    suites = list(dict.fromkeys(row.key.suite for row in rows))
    if len(suites) > 1:
        suites.append(ALL)
    found = []
    for mode in dict.fromkeys(row.key.mode for row in rows):
        for suite in suites:
            here = [row for row in rows if row.key.mode == mode and suite in (row.key.suite, ALL)]
            for bucket in sorted({row.key.bucket for row in rows}):
                mine = [row for row in here if row.key.bucket == bucket]
                plain = plain_rows(mine)
                for method in methods:
                    own = [row for row in mine if row.key.method == method]
                    about = mode, suite, bucket, method, promises[method]
                    found.append(_cell(about, own, plain, with_loops))
    return found


def plain_rows(rows: Iterable[Result]) -> dict[Key, Row]:
    """Returns plain decoding's rows by their keys."""
    return {row.key: row for row in rows if isinstance(row, Row) and row.key.method == PLAIN}


def by_prompt(rows: Iterable[Row]) -> list[list[Row]]:
    """Returns the repeats of each prompt."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.key.suite, row.key.prompt_id), []).append(row)
    return list(found.values())


def _cell(about: tuple[str, str, int, str, str], own: Sequence[Result], plain: Mapping[Key, Row], with_loops: bool
          ) -> TableCell:
    failures = sum(isinstance(row, Failure) for row in own)
    prompts = by_prompt(row for row in own if isinstance(row, Row))
    loops = sum(repeats[0].loop and repeats[0].steps > 0 for repeats in prompts)
    if not with_loops:
        prompts = [repeats for repeats in prompts if not (repeats[0].loop and repeats[0].steps)]
        loops = 0
    checks, lengths = _checks(prompts, plain) if about[-1] != LOSSY else ((), ())
    kept = [repeats for repeats in prompts if repeats[0].steps]
    if not kept:
        return TableCell(*about, 0, loops, failures, checks, lengths)
    rows = [row for repeats in kept for row in repeats]
    firsts = first_repeats(rows)
    steps = sum(row.steps for row in rows)
    pairs = [paired(repeats, plain) for repeats in kept]
    speedups = ratios(pairs, speed_ratio)
    costs = ratios(pairs, _step_ratio)
    end_to_end = ratios(pairs, _end_to_end_ratio)
    return TableCell(
        *about, len(kept), loops, failures, checks, lengths,
        mat=Mean.of([row.mat for row in firsts]),
        mat_pooled=sum(sum(row.accepted_per_step) for row in firsts) / sum(row.steps for row in firsts),
        rate=_quartiles([median(row.decode_tokens_per_second for row in repeats) for repeats in kept]),
        speedup=Mean.geometric(speedups) if speedups else None,
        speedups=tuple(sorted(speedups)),
        end_to_end=Mean.geometric(end_to_end) if end_to_end else None,
        prefill_seconds=mean(row.prefill_seconds for row in firsts),
        answer_seconds=mean(median(row.decode_seconds for row in repeats) for repeats in kept),
        tokens_per_step=mean(row.tokens_per_step for row in rows),
        kinds=summed(row.kinds for row in rows),
        forwards={network: times / steps for network, times in summed(row.forwards for row in rows).items()},
        step_cost=median(costs) if costs else None)


def summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Adds up several counts by name, in the order in which names occur."""
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    first, middle, third = np.quantile(values, [0.25, 0.5, 0.75])
    return float(first), float(middle), float(third)


def paired(repeats: Sequence[Row], plain: Mapping[Key, Row]) -> list[Pair]:
    """Returns the repeats of a prompt that plain decoding has, too, with plain decoding's rows."""
    found = []
    for row in repeats:
        theirs = plain.get(row.key._replace(method=PLAIN))
        if theirs is not None and row.steps and theirs.decode_tokens_per_second > 0:
            found.append((row, theirs))
    return found


def ratios(pairs: Sequence[Sequence[Pair]], ratio: Callable[[Row, Row], float]) -> list[float]:
    """Returns the ratio of each prompt that has pairs: the median over its repeats."""
    return [median(ratio(row, plain) for row, plain in repeats) for repeats in pairs if repeats]


def speed_ratio(row: Row, plain: Row) -> float:
    """Returns the decoding speed over plain decoding's."""
    return row.decode_tokens_per_second / plain.decode_tokens_per_second


def _step_ratio(row: Row, plain: Row) -> float:
    return (row.decode_seconds / row.steps) / (plain.decode_seconds / plain.steps)


def _end_to_end_ratio(row: Row, plain: Row) -> float:
    """Returns plain decoding's seconds from the prompt to the answer's end over those of the method.

    An answer of other tokens counts as if it were as long as plain decoding's.
    """
    speed = speed_ratio(row, plain)
    if speed == 0:
        return 0.0
    return (plain.prefill_seconds + plain.decode_seconds) / (row.prefill_seconds + plain.decode_seconds / speed)


def _checks(prompts: Sequence[Sequence[Row]], plain: Mapping[Key, Row]
            ) -> tuple[tuple[Check, ...], tuple[int, ...]]:
    """Returns the check of each prompt that has one, and the tokens of these answers."""
    checks, lengths = [], []
    for repeats in prompts:
        check = _check_of_prompt(repeats, plain)
        if check is not None:
            checks.append(check)
            lengths.append(len(repeats[0].token_ids))
    return tuple(checks), tuple(lengths)


def _check_of_prompt(repeats: Sequence[Row], plain: Mapping[Key, Row]) -> Check | None:
    """Returns the check of the first repeat that differs, else of the first repeat.

    An answer that ended at once counts only if it differs.
    """
    first = None
    for row in repeats:
        check = check_of(row, plain)
        if check is not None and check.first_divergence is not None:
            return check
        if first is None:
            first = check
    return first if repeats[0].steps else None


def check_of(row: Row, plain: Mapping[Key, Row]) -> Check | None:
    """Compares an answer's ids with those of plain decoding, as far as both were to go.

    For a replay, whose ids are given, it returns the comparison that was drawn beside it.
    """
    theirs = plain.get(row.key._replace(method=PLAIN, repeat=0)) or plain.get(row.key._replace(method=PLAIN))
    if row.key.mode == "replay" or theirs is None:
        return row.lossless
    common = min((limit for limit in (row.limit, theirs.limit) if limit is not None), default=None)
    expected, noted = theirs.token_ids[:common], row.lossless
    at = first_divergence(row.token_ids[:common], expected)
    if noted is None or noted.first_divergence != at:
        return Check(len(expected), at)
    return Check(len(expected), at, noted.margin, noted.at)

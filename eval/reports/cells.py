"""Cells: the figures of one method on one suite and length.

A failure enters no figure.  An answer that ended at once counts neither as a prompt nor as a failure, because nothing
was decoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from longgraft.comparison.levels import Check, first_divergence
from longgraft.config.method_roles import PLAIN
from longgraft.eval.runs.rows import Failure, Key, Result, Row
from longgraft.eval.statistics import Mean

ALL = "all"
LOSSY = "lossy"


@dataclass(frozen=True)
class TableCell:
    """One method on one suite and length in one mode.

    prompts, loops: numbers of measured prompts, and of prompts whose answer loops
    failures:       failed decodings
    mat, speedup:   means over prompts; the speedup is paired with plain decoding on the same prompt and repeat
    mat_pooled:     MAT over all steps, in which long answers count for more
    rate:           tokens per second: (first quartile, median, third quartile) over prompts
    checks:         one per prompt; none for a lossy method, which promises nothing
    lengths:        tokens of each checked answer
    speedups:       speedup of each prompt, ascending
    tokens_per_step: over all repeats, which differ if costs are measured while running
    kinds:          number of steps by the kind of proposal, over all repeats
    forwards:       forwards per step besides the verification, by network
    step_cost:      seconds of a step relative to plain decoding's on the same prompt and repeat, median over prompts
    """

    mode: str
    suite: str
    bucket: int
    method: str
    promise: str
    prompts: int
    loops: int
    failures: int
    mat: Mean | None
    mat_pooled: float | None
    rate: tuple[float, float, float] | None
    speedup: Mean | None
    prefill_seconds: float | None
    checks: tuple[Check, ...]
    lengths: tuple[int, ...] = ()
    speedups: tuple[float, ...] = ()
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
    # Rows override failures, because failures of older versions have no promise.
    promises = {row.key.method: row.promise for row in sorted(rows, key=lambda row: isinstance(row, Row))}
    suites = [*dict.fromkeys(row.key.suite for row in rows)]
    found = []
    for mode in dict.fromkeys(row.key.mode for row in rows):
        for suite in suites + ([ALL] if len(suites) > 1 else []):
            here = [row for row in rows if row.key.mode == mode and suite in (row.key.suite, ALL)]
            for bucket in sorted({row.key.bucket for row in rows}):
                mine = [row for row in here if row.key.bucket == bucket]
                plain = {row.key: row for row in mine if isinstance(row, Row) and row.key.method == PLAIN}
                for method in dict.fromkeys(row.key.method for row in rows):
                    own = [row for row in mine if row.key.method == method]
                    found.append(_cell((mode, suite, bucket, method), own, plain, promises.get(method, "exact"),
                                       with_loops))
    return found


def _cell(about: tuple[str, str, int, str], own: Sequence[Result], plain: Mapping[Key, Row], promise: str,
          with_loops: bool) -> TableCell:
    failures = sum(isinstance(row, Failure) for row in own)
    answers = [row for row in own if isinstance(row, Row)]
    by_prompt: dict[tuple, list[Row]] = {}
    for row in answers:
        by_prompt.setdefault((row.key.suite, row.key.prompt_id), []).append(row)
    looping = {prompt for prompt, mine in by_prompt.items() if mine[0].loop and mine[0].steps}
    by_prompt = {prompt: mine for prompt, mine in by_prompt.items() if with_loops or prompt not in looping}
    checked = [] if promise == LOSSY else [(check, len(mine[0].token_ids)) for mine in by_prompt.values()
                                           if (check := _check_of_prompt(mine, plain)) is not None]
    kept = [mine for mine in by_prompt.values() if mine[0].steps]
    found, lengths = tuple(check for check, _ in checked), tuple(length for _, length in checked)
    loops = len(looping) if with_loops else 0
    if not kept:
        return TableCell(*about, promise, 0, loops, failures, None, None, None, None, None, found, lengths)
    every = [row for mine in kept for row in mine]
    firsts = first_repeats(every)
    speedups = [ratio for mine in kept if (ratio := _ratio(mine, plain, _rate)) is not None]
    costs = [ratio for mine in kept if (ratio := _ratio(mine, plain, _step)) is not None]
    forwards, steps = summed(row.forwards for row in every), sum(row.steps for row in every)
    rates = [median(row.decode_tokens_per_second for row in mine) for mine in kept]
    q1, middle, q3 = (float(q) for q in np.quantile(rates, [0.25, 0.5, 0.75]))
    return TableCell(*about, promise, len(kept), loops, failures, Mean.of([row.mat for row in firsts]),
                pooled(firsts), (q1, middle, q3), Mean.of(speedups) if speedups else None,
                median(row.prefill_seconds for row in firsts), found, lengths, tuple(sorted(speedups)),
                sum(row.tokens_per_step for row in every) / len(every), summed(row.kinds for row in every),
                {network: times / steps for network, times in forwards.items()}, median(costs) if costs else None)


def summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Adds up several counts by name, in the order in which names occur."""
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def pooled(rows: Sequence[Row]) -> float:
    """Returns accepted tokens per step, over the steps of all these rows."""
    return sum(sum(row.accepted_per_step) for row in rows) / sum(row.steps for row in rows)


def _ratio(repeats: Sequence[Row], plain: Mapping[Key, Row], figure: Callable[[Row], float]) -> float | None:
    """Returns one prompt's figure relative to plain decoding's: the median over repeats that plain decoding has."""
    ratios = [figure(row) / figure(theirs) for row in repeats
              if (theirs := plain.get(row.key._replace(method=PLAIN))) and figure(theirs) > 0]
    return median(ratios) if ratios else None


def _rate(row: Row) -> float:
    return row.decode_tokens_per_second


def _step(row: Row) -> float:
    return row.decode_seconds / row.steps if row.steps else 0.0


def _check_of_prompt(repeats: Sequence[Row], plain: Mapping[Key, Row]) -> Check | None:
    """Returns the check of the first repeat that differs, else of the first repeat.

    An answer that ended at once counts only if it differs.
    """
    checks = [check for row in repeats if (check := check_of(row, plain)) is not None]
    parted = next((check for check in checks if check.first_divergence is not None), None)
    return parted or (checks[0] if checks and repeats[0].steps else None)


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


def acceptance_by_depth(rows: Sequence[Row], deepest: int = 8) -> list[float]:
    """Returns, for d = 1, 2, ..., the share of steps accepting a token at depth d among those that accepted d - 1."""
    counts = Counter(accepted for row in rows for accepted in row.accepted_per_step)
    shares = []
    for depth in range(1, deepest + 1):
        came = sum(n for accepted, n in counts.items() if accepted >= depth - 1)
        if not came:
            break
        shares.append(sum(n for accepted, n in counts.items() if accepted >= depth) / came)
    return shares

"""Cells: the figures of one method on one suite and length.

A failure enters no figure.  An answer that ended at once counts neither as a prompt nor as a failure, because
nothing was decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from statistics import mean, median

import numpy as np

from longgraft.comparison.levels import Check, first_divergence
from longgraft.config.method_roles import PLAIN
from longgraft.eval.reports import groups
from longgraft.eval.runs.rows import Key, Result, Row
from longgraft.eval.statistics import Mean

ALL = "all"
LOSSY = "lossy"

Pair = tuple[Row, Row]  # a row, and plain decoding's of the same prompt and repeat


@dataclass(frozen=True)
class TableCell:
    """One method on one suite and length in one mode; figures are None if nothing was measured."""

    mode: str
    suite: str
    bucket: int
    method: str
    promise: str
    prompts: int = 0  # number of measured prompts
    loops: int = 0  # number of them whose answer loops
    failures: int = 0  # number of failed decodings
    checks: tuple[Check, ...] = ()  # one per prompt; none for a lossy method, which promises nothing
    lengths: tuple[int, ...] = ()  # tokens of each checked answer
    mat: Mean | None = None  # accepted tokens per step, the mean over prompts
    mat_pooled: float | None = None  # accepted tokens per step over all steps, in which long answers count for more
    # Tokens per second: first quartile, median and third quartile over prompts.
    rate: tuple[float, float, float] | None = None
    # Decoding speed over plain decoding's of the same prompt and repeat, the geometric mean.
    speedup: Mean | None = None
    speedups: tuple[float, ...] = ()  # the speed-up of each prompt, ascending
    end_to_end: Mean | None = None  # the same of prefill and decoding together, for answers of plain decoding's length
    prefill_seconds: float | None = None  # seconds of the prefill, the mean over prompts
    answer_seconds: float | None = None  # seconds of decoding, the mean over prompts
    reading_rate: float | None = None  # prompt tokens per second of the prefill, the median over prompts
    tokens_per_step: float | None = None  # over all repeats, which differ if costs are measured while running
    kinds: Mapping[str, int] = field(default_factory=dict)  # number of steps by the kind of proposal, over all repeats
    # Forwards per step besides the verification, by network.
    forwards: Mapping[str, float] = field(default_factory=dict)
    # Seconds of a step over plain decoding's on the same prompt and repeat, median over prompts.
    step_cost: float | None = None

    @property
    def label(self) -> str:
        """The method's name in tables; a lossy one is marked."""
        if self.promise == LOSSY:
            return f"{self.method} (LOSSY)"
        return self.method

    @property
    def parted(self) -> list[Check]:
        """The checks of answers that differ from plain decoding's."""
        return [check for check in self.checks if check.first_divergence is not None]

    @property
    def speed(self) -> float:
        """The mean speed-up; 0 if it was not compared with plain decoding."""
        if self.speedup is None:
            return 0.0
        return self.speedup.value

    @property
    def competes(self) -> bool:
        """True for a lossless method that was compared with plain decoding."""
        return self.speedup is not None and self.promise != LOSSY and self.method != PLAIN


def cells(rows: Sequence[Result], with_loops: bool = True) -> list[TableCell]:
    """Returns the cells of every mode x suite (and all together) x length x method, in the rows' order."""
    promises: dict[str, str] = {}
    # Rows override failures, because failures of older versions have no promise.
    for row in sorted(rows, key=lambda row: isinstance(row, Row)):
        promises[row.key.method] = row.promise
    modes = list(groups.by_mode(rows))
    methods = list(groups.by_method(rows))
    suites = list(groups.grouped(rows, lambda row: row.key.suite))
    rows_of_cell = groups.grouped(rows, _place_of)
    if len(suites) > 1:
        suites.append(ALL)
        rows_of_cell |= groups.grouped(rows, lambda row: _place_of(row, ALL))
    table_cells = []
    for mode, suite, length in product(modes, suites, groups.by_length(rows)):
        plain = groups.plain_rows(rows_of_cell.get((mode, suite, length, PLAIN), ()))
        for method in methods:
            rows_of_method = rows_of_cell.get((mode, suite, length, method), ())
            empty = TableCell(mode, suite, length, method, promises[method])
            table_cells.append(_filled(empty, rows_of_method, plain, with_loops))
    return table_cells


def _place_of(row: Result, suite: str | None = None) -> tuple[str, str, int, str]:
    return row.key.mode, suite or row.key.suite, row.key.bucket, row.key.method


def _filled(cell: TableCell, rows: Sequence[Result], plain: Mapping[Key, Row], with_loops: bool) -> TableCell:
    """Returns the cell with the figures of its rows."""
    prompts = []
    loops = 0
    for repeats in groups.by_prompt(groups.decodings(rows)):
        if repeats[0].loop and repeats[0].steps:
            if not with_loops:
                continue
            loops += 1
        prompts.append(repeats)
    cell = replace(cell, loops=loops, failures=len(groups.failures(rows)))
    if cell.promise != LOSSY:
        cell = _checked(cell, prompts, plain)
    answered = [repeats for repeats in prompts if repeats[0].steps]
    if answered:
        cell = _compared(_measured(cell, answered), answered, plain)
    return cell


def _checked(cell: TableCell, prompts: Sequence[Sequence[Row]], plain: Mapping[Key, Row]) -> TableCell:
    """Returns the cell with the check of each prompt that has one, and the tokens of these answers."""
    checks = []
    lengths = []
    for repeats in prompts:
        check = _check_of_prompt(repeats, plain)
        if check is not None:
            checks.append(check)
            lengths.append(len(repeats[0].token_ids))
    return replace(cell, checks=tuple(checks), lengths=tuple(lengths))


def _measured(cell: TableCell, prompts: Sequence[Sequence[Row]]) -> TableCell:
    """Returns the cell with the figures that need no plain decoding."""
    rows = list(chain.from_iterable(prompts))
    firsts = groups.first_repeats(rows)
    rates = []
    seconds = []
    for repeats in prompts:
        rates.append(median(row.decode_tokens_per_second for row in repeats))
        seconds.append(median(row.decode_seconds for row in repeats))
    first, middle, third = np.quantile(rates, [0.25, 0.5, 0.75])
    read_rates = []
    for row in firsts:
        if row.prefill_seconds > 0:
            read_rates.append((row.prompt_tokens - row.reused_tokens) / row.prefill_seconds)
    forwards: dict[str, float] = {}
    for network, count in groups.summed(rows, lambda row: row.forwards).items():
        forwards[network] = count / groups.total_steps(rows)
    return replace(
        cell,
        prompts=len(prompts),
        mat=Mean.of([row.mat for row in firsts]),
        mat_pooled=sum(sum(row.accepted_per_step) for row in firsts) / groups.total_steps(firsts),
        rate=(float(first), float(middle), float(third)),
        prefill_seconds=mean(row.prefill_seconds for row in firsts),
        answer_seconds=mean(seconds),
        reading_rate=median(read_rates) if read_rates else None,
        tokens_per_step=mean(row.tokens_per_step for row in rows),
        kinds=groups.summed(rows, lambda row: row.kinds),
        forwards=forwards,
    )


def _compared(cell: TableCell, prompts: Sequence[Sequence[Row]], plain: Mapping[Key, Row]) -> TableCell:
    """Returns the cell with the figures relative to plain decoding, if any prompt has both."""
    speedups = []
    end_to_end = []
    step_costs = []
    for repeats in prompts:
        pairs = paired(repeats, plain)
        if pairs:
            speedups.append(median_ratio(pairs, speed_ratio))
            end_to_end.append(median_ratio(pairs, _end_to_end_ratio))
            step_costs.append(median_ratio(pairs, _step_ratio))
    if not speedups:
        return cell
    return replace(
        cell,
        speedup=Mean.geometric(speedups),
        speedups=tuple(sorted(speedups)),
        end_to_end=Mean.geometric(end_to_end),
        step_cost=median(step_costs),
    )


def paired(repeats: Sequence[Row], plain: Mapping[Key, Row]) -> list[Pair]:
    """Returns the repeats of a prompt that plain decoding has, too, with plain decoding's rows."""
    pairs = []
    for row in repeats:
        plain_row = plain.get(row.key._replace(method=PLAIN))
        if plain_row is not None and row.steps and plain_row.decode_tokens_per_second > 0:
            pairs.append((row, plain_row))
    return pairs


def median_ratio(pairs: Sequence[Pair], ratio: Callable[[Row, Row], float]) -> float:
    """Returns the ratio of a prompt: the median over its repeats."""
    return median(ratio(row, plain) for row, plain in pairs)


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
    plain_seconds = plain.prefill_seconds + plain.decode_seconds
    return plain_seconds / (row.prefill_seconds + plain.decode_seconds / speed)


def _check_of_prompt(repeats: Sequence[Row], plain: Mapping[Key, Row]) -> Check | None:
    """Returns the check of the first repeat that differs, else of the first repeat.

    An answer that ended at once counts only if it differs.
    """
    checks = []
    for row in repeats:
        check = check_of(row, plain)
        if check is not None:
            if check.first_divergence is not None:
                return check
            checks.append(check)
    if checks and repeats[0].steps:
        return checks[0]
    return None


def check_of(row: Row, plain: Mapping[Key, Row]) -> Check | None:
    """Compares an answer's ids with those of plain decoding, as far as both were to go.

    For a replay, whose ids are given, it returns the comparison that was drawn beside it.
    """
    plain_key = row.key._replace(method=PLAIN)
    plain_row = plain.get(plain_key._replace(repeat=0)) or plain.get(plain_key)
    if row.key.mode == "replay" or plain_row is None:
        return row.lossless
    limits = [limit for limit in (row.limit, plain_row.limit) if limit is not None]
    common = min(limits, default=None)
    expected = plain_row.token_ids[:common]
    at = first_divergence(row.token_ids[:common], expected)
    noted = row.lossless
    if noted is None or noted.first_divergence != at:
        return Check(len(expected), at)
    return Check(len(expected), at, noted.margin, noted.at)

"""A run's report: summary.md for people, CSV files for programs."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from longgraft.eval.prompts.buckets import WHOLE
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports import groups
from longgraft.eval.reports.cells import TableCell, cells, check_of
from longgraft.eval.reports.concurrency import concurrency_table
from longgraft.eval.reports.estimates import COLUMNS as ESTIMATE_COLUMNS
from longgraft.eval.reports.estimates import lines_of, match_table
from longgraft.eval.reports.oracle import oracle_tables
from longgraft.eval.reports.overview import disturbances, lead, main_table, suite_overview
from longgraft.eval.reports.steps import STEP_COLUMNS, acceptance_table, lines_of_steps, time_table
from longgraft.eval.reports.tables import KINDS, length_name, listed, lossless_level, spread, suite_table
from longgraft.eval.runs.folder import Run, numbers
from longgraft.eval.runs.rows import Failure, Key, Result, Row
from longgraft.eval.statistics import Mean
from longgraft.files.whole_files import write_whole, written_whole

# Heads of the CSV files.
COLUMNS = (
    "mode,suite,bucket,method,prompts,loops,failures,mat,mat_low,mat_high,mat_pooled,tokens_per_second_q1,"
    "tokens_per_second,tokens_per_second_q3,speedup,speedup_low,speedup_high,prefill_seconds,answer_seconds,"
    "end_to_end,end_to_end_low,end_to_end_high,promise,lossless,speedup_median,speedup_worst,speedup_best,"
    f"tokens_per_step,{','.join(f'{kind}_steps' for kind in KINDS)},step_cost,draft_forwards,own_passes,answers"
)
SCORE_COLUMNS = "mode,suite,bucket,metric,method,mean,prompts"

DEFINITIONS = """
- Speed-up: tokens per second over plain decoding's of the same prompt and repeat, decoding alone, after one shared
  prefill; the geometric mean over prompts. All means over prompts have a 95 % bootstrap interval in parentheses, from
  five prompts on.
- Slower: prompts on which a method has less than 0.97 of plain decoding's speed.
- Reading and answer: seconds of the prefill and of decoding, the mean over prompts. End to end: both together, plain
  decoding's over the method's, for answers of the same length; the geometric mean over prompts.
- Losslessness: answers whose tokens are plain decoding's, and how many tokens of each were compared.
- MAT: accepted draft tokens per verification step, without the bonus token: the mean over prompts. Over all steps, long
  answers count for more.
- Steps: plain ones propose nothing, those from memory draft nothing. Step: its seconds in units of plain decoding's
  step on the same prompt. Draft forwards are of a drafting network, own passes of the target itself beside the
  verification; both per step.
- Answers that ended at once are left out.
- Beside this file: summary.csv, steps.csv, estimates.csv and scores.csv."""

TURNS = """
- Each turn of a conversation counts as a prompt, measured from a prefill of its own; it follows plain decoding's
  answers to the turns before, for all methods."""

MODE_NOTES = {
    "replay": "Recorded continuations take the place of the target's draws; all forwards and costs are real. "
    "A replay cannot diverge: losslessness is checked on a second answer, which is drawn.",
    "sampled": "The target's own draws. Decoders that are not ours draw other random numbers: they are "
    "measured greedily alone.",
    "greedy": "Small models loop when decoded greedily, and in a loop every guess is right: see the answers that loop.",
}


def write(folder: Path) -> None:
    """Writes the report into a sweep's folder."""
    run = Run.read(folder)
    good = groups.measured(run.rows)
    write_whole(folder / "summary.md", summary(run))
    _csv(folder / "summary.csv", COLUMNS, _lines_of_cells(run))
    _csv(folder / "steps.csv", STEP_COLUMNS, lines_of_steps(good, run))
    estimates = list(lines_of(good))
    if estimates:
        _csv(folder / "estimates.csv", ESTIMATE_COLUMNS, estimates)
    scores = list(_lines_of_scores(good))
    if scores:
        _csv(folder / "scores.csv", SCORE_COLUMNS, scores)


def _csv(path: Path, columns: str, lines: Iterable[Sequence[Any]]) -> None:
    with written_whole(path) as part, open(part, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns.split(","))
        writer.writerows(lines)


def summary(run: Run) -> str:
    """Returns the text of summary.md: the answer, then how it was measured, then the details."""
    out = [f"# {run.environment['target']}: speed-up over plain decoding"]
    details: list[str] = []
    rows_by_mode: dict[str, list[Result]] = groups.by_mode(run.rows)
    for mode in run.config.get("modes", ()):
        rows_by_mode.setdefault(mode, [])
    for mode, rows in rows_by_mode.items():
        out += _first_tables(run, mode, rows)
        if rows:
            details += _details(run, mode, rows)
    failed = groups.failures(run.rows)
    if failed:
        out += ["\n## Failures\n", *listed(_by_error(failed), "- ")]
    out += ["\n## How it was measured\n", " ".join([_provenance(run), *disturbances(run.rows)]), DEFINITIONS]
    if any(row.turn > 1 for row in run.rows):
        out.append(TURNS)
    return "\n".join([*out, *_learned(run.rows), *details]) + "\n"


def _first_tables(run: Run, mode: str, rows: Sequence[Result]) -> Iterator[str]:
    yield f"\n## Mode: {mode}\n"
    if rows:
        table_cells = cells(rows)
        yield from lead(table_cells, cells(rows, with_loops=False), run.default)
        yield main_table(table_cells, run.environment["dtype"])
        yield from suite_overview(table_cells, run.default)
    gaps = _gaps(run.config, rows)
    if gaps:
        yield f"\nNo prompt measured: {gaps}."


def _details(run: Run, mode: str, rows: Sequence[Result]) -> Iterator[str]:
    yield f"\n## Details: {mode}\n\n{MODE_NOTES.get(mode, '')}"
    table_cells = cells(rows)
    if any(cell.loops for cell in table_cells):
        without = cells(rows, with_loops=False)
        yield f"\n### Without answers that loop\n\n{main_table(without, run.environment['dtype'])}"
    yield from suite_table(table_cells)
    good = groups.measured(rows)
    yield from acceptance_table(good)
    yield from time_table(good, run.times_parts)
    yield from oracle_tables(run, good)
    yield from match_table(good)
    yield from _divergences(rows)
    yield from concurrency_table([batch for batch in run.batches if batch.key.mode == mode])


def _provenance(run: Run) -> str:
    environment = run.environment
    config = run.config
    repeats = Counter(row.key._replace(repeat=0) for row in run.rows)
    fewest = min(repeats.values(), default=0)
    most = max(repeats.values(), default=0)
    times = f"{fewest} to {most}"
    if fewest == most:
        times = str(most)
    git = environment["git"][:12]
    if environment.get("changed"):
        git += ", with uncommitted changes"
    return (
        f"{environment['target']}, {numbers(environment)}, attention {environment['attention']}, on "
        f"{environment['device']} with {environment['threads']} threads; torch {environment['torch']}, transformers "
        f"{environment['transformers']}; git {git}. At most {config['max_new_tokens']} new tokens, {times} repeats, "
        f"seed {config['seed']}, temperature {config['temperature']} where sampled."
    )


def _learned(rows: Sequence[Result]) -> Iterator[str]:
    """Yields notes on methods that keep what they learnt on earlier prompts."""
    for method, rows_of_method in groups.by_method(rows).items():
        learners = [row for row in groups.decodings(rows_of_method) if row.learned_from is not None]
        if learners:
            before = [row.learned_from or 0 for row in learners]
            others = "their mode, suite and length" if _learned_within_cells(learners) else "the run"
            yield (
                f"- `{method}` learns over the run: its prompts began with what it had learnt from {min(before)} to "
                f"{max(before)} others of {others}. A prompt's repeats began alike."
            )


def _learned_within_cells(rows: Sequence[Row]) -> bool:
    """True if each prompt began with at most the others of its mode, suite and length; older runs learnt from more."""
    cells = groups.grouped(rows, lambda row: (row.key.mode, row.key.suite, row.key.bucket))
    for members in cells.values():
        prompts = {row.key.prompt_id for row in members}
        if any((row.learned_from or 0) >= len(prompts) for row in members):
            return False
    return True


def _gaps(config: Mapping[str, Any], rows: Sequence[Result]) -> str:
    """Returns the requested lengths and suites without any row, as "64K (lcc, qmsum)"."""
    if "lengths" not in config:
        return ""
    measured_at = groups.grouped(rows, lambda row: (row.key.suite, row.key.bucket))
    gaps = []
    for length in config["lengths"] or (WHOLE,):
        suites = [suite_name(suite) for suite in config["suites"] if (suite, length) not in measured_at]
        if suites:
            gaps.append(f"{length_name(length)} ({', '.join(suites)})")
    return ", ".join(gaps)


def _divergences(rows: Sequence[Result]) -> list[str]:
    """Lists answers of methods that promise plain decoding's tokens and have other tokens."""
    lines = []
    plain = groups.plain_rows(rows)
    for row in groups.first_repeats(groups.decodings(rows)):
        check = check_of(row, plain)
        if check is None or check.first_divergence is None or not check.held(row.promise, row.key.mode):
            continue
        line = f"{_named(row.key)}: differs from token {check.first_divergence} on"
        if check.margin is not None:
            line += f", margin {check.margin:.4f}"
        lines.append(line)
    if not lines:
        return []
    return ["", *listed(lines, "- ")]


def _by_error(failed: Sequence[Failure]) -> list[str]:
    """Returns a line for each error of a method, with its decoding, or the number of decodings."""
    lines = []
    for (method, error), alike in groups.grouped(failed, lambda row: (row.key.method, row.error)).items():
        where = f"{method}, {len(alike)} decodings"
        if len(alike) == 1:
            where = _named(alike[0].key)
        lines.append(f"{where}: {error}")
    return lines


def _named(key: Key) -> str:
    return f"{suite_name(key.suite)} {length_name(key.bucket)} {key.prompt_id}, {key.method}, {key.mode}"


def _lines_of_cells(run: Run) -> Iterator[list[Any]]:
    """Yields the rows of summary.csv."""
    dtype = run.environment["dtype"]
    table_cells = cells(run.rows)
    for cell in table_cells:
        yield [*_line(cell, dtype), "all"]
    if any(cell.loops for cell in table_cells):
        for cell in cells(run.rows, with_loops=False):
            yield [*_line(cell, dtype), "without those that loop"]


def _line(cell: TableCell, dtype: str) -> list[Any]:
    return [
        cell.mode,
        cell.suite,
        cell.bucket,
        cell.method,
        cell.prompts,
        cell.loops,
        cell.failures,
        *_ends(cell.mat),
        cell.mat_pooled,
        *(cell.rate or (None,) * 3),
        *_ends(cell.speedup),
        cell.prefill_seconds,
        cell.answer_seconds,
        *_ends(cell.end_to_end),
        cell.promise,
        lossless_level(cell, dtype),
        *spread(cell),
        cell.tokens_per_step,
        *map(cell.kinds.get, KINDS),
        cell.step_cost,
        cell.forwards.get("draft"),
        cell.forwards.get("own"),
    ]


def _ends(mean: Mean | None) -> tuple[float | None, float | None, float | None]:
    """Returns a mean and the ends of its interval."""
    if mean is None:
        return None, None, None
    low, high = mean.interval or (None, None)
    return mean.value, low, high


def _lines_of_scores(rows: Sequence[Row]) -> Iterator[list[Any]]:
    """Yields LongBench's scores per method; those of a lossless method are plain decoding's."""
    values: dict[tuple, list[float]] = {}
    for row in rows:
        if row.score:
            metric, score = row.score
            about = (row.key.mode, row.key.suite, row.key.bucket, metric, row.key.method)
            values.setdefault(about, []).append(score)
    for about, scores in values.items():
        yield [*about, sum(scores) / len(scores), len(scores)]

"""A run's report: summary.md for people, CSV files for programs."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from longgraft.eval.prompts.buckets import WHOLE
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.cells import TableCell, acceptance_by_depth, cells, check_of, first_repeats, measured
from longgraft.eval.reports.concurrency import concurrency_table
from longgraft.eval.reports.estimates import COLUMNS as ESTIMATE_COLUMNS
from longgraft.eval.reports.estimates import lines_of, match_table
from longgraft.eval.reports.field_of_methods import COLUMNS as FIELD_COLUMNS
from longgraft.eval.reports.field_of_methods import field
from longgraft.eval.reports.field_of_methods import lines as lines_of_field
from longgraft.eval.reports.overview import disturbances, overview
from longgraft.eval.reports.tables import KINDS, length_name, lossless_level, lossless_table, tables
from longgraft.eval.runs.folder import Run, numbers
from longgraft.eval.runs.rows import Failure, Key, Result, Row
from longgraft.eval.statistics import Mean

PARTS = ("draft", "retrieve", "merge", "verify", "accept", "update", "host")
ORIGINS = ("draft", "retrieved", "both")
COLUMNS = ("mode", "suite", "bucket", "method", "prompts", "loops", "failures", "mat", "mat_low", "mat_high",
           "mat_pooled", "tokens_per_second_q1", "tokens_per_second", "tokens_per_second_q3", "speedup", "speedup_low",
           "speedup_high", "prefill_seconds", "promise", "lossless", "speedup_median", "speedup_worst", "speedup_best",
           "tokens_per_step", *(f"{kind}_steps" for kind in KINDS), "answers")
STEP_COLUMNS = ("mode", "bucket", "method", *(f"{part}_ms" for part in PARTS),
                *(f"accepted_{origin}" for origin in ORIGINS), "acceptance_by_depth", "stages", "first_token_seconds",
                "peak_memory_mib")
SCORE_COLUMNS = ("mode", "suite", "bucket", "metric", "method", "mean", "prompts")
LISTED = 20     # most divergences, and most failures, that are listed

DEFINITIONS = """
- Speed-up: tokens per second over plain decoding's of the same prompt and repeat, decoding alone, after one shared
  prefill; the geometric mean over prompts. In parentheses: tokens per step.
- Losslessness: answers whose tokens are plain decoding's, and how many tokens of each were compared.
- MAT: accepted draft tokens per verification step, without the bonus token: the mean over prompts (with a 95 %
  bootstrap interval from five prompts on); after the semicolon over all steps, where long answers count for more.
- Steps: plain ones propose nothing, those from memory draft nothing.
- Answers that ended at once are left out.
- Beside this file: methods.md (each method's step cost and draft forwards), summary.csv, steps.csv, estimates.csv and
  scores.csv."""

TURNS = """
- Each turn of a conversation counts as a prompt, measured from a prefill of its own; it follows plain decoding's
  answers to the turns before, for all methods."""

MODE_NOTES = {
    "replay": "Recorded continuations take the place of the target's draws; all forwards and costs are real. "
              "A replay cannot diverge: losslessness is checked on a second answer, which is drawn.",
    "sampled": "The target's own draws. Decoders that are not ours draw other random numbers: they are measured "
               "greedily alone.",
    "greedy": "Small models loop when decoded greedily, and in a loop every guess is right: see the answers that loop."}


def write(folder: Path) -> None:
    """Writes the report into a sweep's folder."""
    run = Run.read(folder)
    found, good, dtype = cells(run.rows), measured(run.rows), run.environment["dtype"]
    (folder / "summary.md").write_text(summary(run), encoding="utf-8")
    _csv(folder / "summary.csv", COLUMNS, [
        [*_line(cell, dtype), answers] for answers, mine in (
            ("all", found), ("without those that loop", cells(run.rows, with_loops=False) if any(
                cell.loops for cell in found) else [])) for cell in mine])
    (folder / "methods.md").write_text(field(found), encoding="utf-8")
    _csv(folder / "methods.csv", FIELD_COLUMNS, lines_of_field(found))
    _csv(folder / "steps.csv", STEP_COLUMNS, _steps(good, run.environment["device"].startswith("CPU")))
    if estimates := list(lines_of(good)):
        _csv(folder / "estimates.csv", ESTIMATE_COLUMNS, estimates)
    if any(row.score for row in good):
        _csv(folder / "scores.csv", SCORE_COLUMNS, _scores(good))


def _csv(path: Path, columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(lines)


def summary(run: Run) -> str:
    """Returns the text of summary.md: the tables of speed-ups, how they were measured, and the details."""
    rows, dtype = run.rows, run.environment["dtype"]
    out, details = [f"# {run.environment['target']}: speed-up over plain decoding"], list[str]()
    for mode in dict.fromkeys([*(row.key.mode for row in rows), *run.config.get("modes", ())]):
        own = [row for row in rows if row.key.mode == mode]
        out.append(f"\n## Mode: {mode}")
        if gaps := _gaps(run.config, own):
            out.append(f"\nNo prompt measured: {gaps}.")
        if not own:
            continue
        found = cells(own)
        out += overview(found, dtype)
        details.append(f"\n## Details: {mode}\n\n{MODE_NOTES.get(mode, '')}")
        details += tables(found)
        if any(cell.loops for cell in found):
            details += tables(cells(own, with_loops=False), ", without answers that loop")
        details += [*match_table(measured(own)), lossless_table(found, dtype), *_divergences(own)]
        details += concurrency_table([batch for batch in run.batches if batch.key.mode == mode])
    if failed := [row for row in rows if isinstance(row, Failure)]:
        out += ["\n## Failures\n", *_listed(_by_error(failed))]
    out += ["\n## How it was measured\n", " ".join([_provenance(run), *disturbances(rows)]), DEFINITIONS]
    if any(row.turn > 1 for row in rows):
        out.append(TURNS)
    return "\n".join([*out, *_learned(rows), *details]) + "\n"


def _provenance(run: Run) -> str:
    e, c = run.environment, run.config
    changed = ", with uncommitted changes" if e.get("changed") else ""
    return (f"{e['target']}, {numbers(e)}, attention {e['attention']}, on {e['device']} with {e['threads']} threads; "
            f"torch {e['torch']}, transformers {e['transformers']}; git {e['git'][:12]}{changed}. "
            f"At most {c['max_new_tokens']} new tokens, {c['repeats']} repeats, seed {c['seed']}, temperature "
            f"{c['temperature']} where sampled.")


def _learned(rows: Sequence[Result]) -> Iterator[str]:
    """Yields notes on methods that keep what they learnt on earlier prompts."""
    for method in dict.fromkeys(row.key.method for row in rows):
        before = [row.learned_from for row in rows if isinstance(row, Row) and row.key.method == method
                  and row.learned_from is not None]
        if before:
            yield (f"- `{method}` learns over the run: its prompts began with what it had learnt from {min(before)} to "
                   f"{max(before)} others of their mode. A prompt's repeats began alike.")


def _gaps(config: Mapping[str, Any], rows: Sequence[Result]) -> str:
    """Returns the requested lengths and suites without any row, as "64K (lcc, qmsum)"."""
    if "lengths" not in config:
        return ""
    there = {(row.key.suite, row.key.bucket) for row in rows}
    gaps = {length: [suite_name(suite) for suite in config["suites"] if (suite, length) not in there]
            for length in config["lengths"] or (WHOLE,)}
    return ", ".join(f"{length_name(length)} ({', '.join(suites)})" for length, suites in gaps.items() if suites)


def _divergences(rows: Sequence[Result]) -> list[str]:
    """Lists answers of methods that promise plain decoding's tokens and have other tokens."""
    answers = {row.key: row for row in rows if isinstance(row, Row)}
    found = []
    for row in first_repeats(answers.values()):
        check = check_of(row, answers)
        if check is not None and check.first_divergence is not None and check.held(row.promise, row.key.mode):
            margin = "" if check.margin is None else f", margin {check.margin:.4f}"
            found.append(f"{_named(row.key)}: differs from token {check.first_divergence} on{margin}")
    return ["", *_listed(found)] if found else []


def _by_error(failed: Sequence[Failure]) -> list[str]:
    """Returns a line for each error of a method, with its decoding, or the number of decodings."""
    found: dict[tuple[str, str], list[Key]] = {}
    for row in failed:
        found.setdefault((row.key.method, row.error), []).append(row.key)
    return [f"{_named(keys[0]) if len(keys) == 1 else f'{method}, {len(keys)} decodings'}: {error}"
            for (method, error), keys in found.items()]


def _named(key: Key) -> str:
    return f"{suite_name(key.suite)} {length_name(key.bucket)} {key.prompt_id}, {key.method}, {key.mode}"


def _listed(lines: Sequence[str]) -> list[str]:
    more = [f"- and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    return [f"- {line}" for line in lines[:LISTED]] + more


def _line(cell: TableCell, dtype: str) -> list[Any]:
    """Returns a row of summary.csv."""
    return [cell.mode, cell.suite, cell.bucket, cell.method, cell.prompts, cell.loops, cell.failures, *_ends(cell.mat),
            cell.mat_pooled, *(cell.rate or (None,) * 3), *_ends(cell.speedup), cell.prefill_seconds, cell.promise,
            lossless_level([cell], dtype),
            *((median(cell.speedups), cell.speedups[0], cell.speedups[-1]) if cell.speedups else (None,) * 3),
            cell.tokens_per_step, *(cell.kinds.get(kind) for kind in KINDS)]


def _ends(mean: Mean | None) -> tuple[float | None, ...]:
    return (None,) * 3 if mean is None else (mean.value, *(mean.interval or (None, None)))


def _steps(rows: Sequence[Row], on_cpu: bool) -> Iterator[list[Any]]:
    """Yields where steps and milliseconds went, per mode, length and method over all suites.

    Times are over all repeats; acceptance is that of one repeat of each prompt, because all repeats are alike.
    """
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault((row.key.mode, row.key.bucket, row.key.method), []).append(row)
    for about, mine in groups.items():
        steps, once = sum(row.steps for row in mine), first_repeats(mine)
        seconds, origins, stages = Counter[str](), Counter[str](), Counter[str]()
        for row in mine:
            seconds.update(row.seconds_by_part)
        for row in once:
            origins.update(row.accepted_by_origin)
            stages.update(row.stages)
        # On a CPU the peak is the whole process's, which includes what all methods need, so it is left out.
        peak = None if on_cpu else round(max(row.peak_memory_bytes for row in mine) / 2 ** 20)
        yield [*about, *(round(1e3 * seconds[part] / steps, 4) for part in PARTS),
               *(origins[origin] for origin in ORIGINS),
               " ".join(f"{share:.3f}" for share in acceptance_by_depth(once)),
               " ".join(f"{stage}:{count}" for stage, count in sorted(stages.items())),
               median(row.prefill_seconds for row in mine), peak]


def _scores(rows: Sequence[Row]) -> Iterator[list[Any]]:
    """Yields LongBench's scores per method; those of a lossless method are plain decoding's."""
    values: dict[tuple, list[float]] = {}
    for row in rows:
        if row.score:
            about = row.key.mode, row.key.suite, row.key.bucket, row.score[0], row.key.method
            values.setdefault(about, []).append(row.score[1])
    for about, mine in values.items():
        yield [*about, sum(mine) / len(mine), len(mine)]

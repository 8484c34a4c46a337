"""Tables of a sweep's rows: markdown for people, CSV for programs.

Knows rows; knows no model.  A row with an error counts as a failure and enters no figure; an answer that ended at once
is neither a prompt nor a failure, for nothing was decoded.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from longgraft.eval.checks.losslessness import EPSILON, level
from longgraft.eval.prompts.buckets import WHOLE
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.statistics import bootstrap
from longgraft.roles import PLAIN

Row = Mapping[str, Any]
ALL = "all"
COLUMNS = ("mode", "suite", "bucket", "method", "prompts", "loops", "failures", "mat", "mat_low", "mat_high",
           "tokens_per_second_q1", "tokens_per_second", "tokens_per_second_q3", "speedup", "speedup_low",
           "speedup_high", "prefill_seconds", "lossless")
PARTS = ("draft", "retrieve", "merge", "verify", "accept", "update", "host")


@dataclass(frozen=True)
class Cell:
    """One method on one suite and length in one mode.

    prompts: measured; loops: of them; failures: rows that hold an error.  mat, speedup: mean over prompts and its
    95 % bootstrap interval, speedup paired with plain decoding on the same prompt and repeat.  rate: tokens a second,
    (first quartile, median, third quartile) over prompts.
    """

    mode: str
    suite: str
    bucket: int
    method: str
    prompts: int
    loops: int
    failures: int
    mat: tuple[float, float, float] | None
    rate: tuple[float, float, float] | None
    speedup: tuple[float, float, float] | None
    prefill_seconds: float | None
    lossless: str


def cells(rows: Sequence[Row], with_loops: bool = True, dtype: str | None = None) -> list[Cell]:
    """Every mode x suite (and all together) x length x method, in the order of the rows.

    dtype: the target's, for the level of losslessness; None: it is not named.
    """
    suites = [*dict.fromkeys(row["suite"] for row in rows)]
    found = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        for suite in suites + ([ALL] if len(suites) > 1 else []):
            here = [r for r in rows if r["mode"] == mode and suite in (r["suite"], ALL)]
            for bucket in sorted({r["bucket"] for r in rows}):
                for method in dict.fromkeys(r["method"] for r in rows):
                    mine = [r for r in here if r["bucket"] == bucket]
                    found.append(_cell((mode, suite, bucket, method), mine, with_loops, dtype))
    return found


def _cell(about: tuple[str, str, int, str], rows: Sequence[Row], with_loops: bool, dtype: str | None) -> Cell:
    method = about[3]
    failures = sum("error" in r for r in rows if r["method"] == method)
    good = [r for r in rows if measured(r)]
    plain = {(r["suite"], r["prompt_id"], r["repeat"]): r for r in good if r["method"] == PLAIN}
    by_prompt: dict[tuple, list[Row]] = {}
    for row in good:
        if row["method"] == method:
            by_prompt.setdefault((row["suite"], row["prompt_id"]), []).append(row)
    looping = {prompt for prompt, own in by_prompt.items() if own[0]["loop"]}
    kept = [own for prompt, own in by_prompt.items() if with_loops or prompt not in looping]
    # An answer that ended at once where plain decoding went on is a divergence all the same.
    ended = {(r["suite"], r["prompt_id"]): r for r in rows if r["method"] == method and "error" not in r
             and not measured(r) and (r.get("lossless") or {}).get("first_divergence") is not None}
    lossless = lossless_level([own[0] for own in kept] + [*ended.values()], dtype)
    if not kept:
        return Cell(*about, 0, len(looping), failures, None, None, None, None, lossless)
    speedups = []
    for own in kept:
        ratios = [r["decode_tokens_per_second"] / p["decode_tokens_per_second"] for r in own
                  if (p := plain.get((r["suite"], r["prompt_id"], r["repeat"])))
                  and p["decode_tokens_per_second"] > 0]
        if ratios:
            speedups.append(median(ratios))
    rates = [median(r["decode_tokens_per_second"] for r in own) for own in kept]
    quartiles = tuple(float(q) for q in np.quantile(rates, [0.25, 0.5, 0.75]))
    return Cell(*about, len(kept), len(looping), failures, bootstrap([own[0]["mat"] for own in kept]),
                quartiles, bootstrap(speedups) if speedups else None,       # type: ignore[arg-type]
                median(own[0]["prefill_seconds"] for own in kept), lossless)


def measured(row: Row) -> bool:
    """Whether anything was decoded: the row is no failure and no answer that ended at once."""
    return "error" not in row and row["steps"] > 0


def lossless_level(rows: Sequence[Row], dtype: str | None = None) -> str:
    """The level that `longgraft verify` would name, and what plain decoding's tokens say of this method's."""
    checks = [row["lossless"] for row in rows if row.get("lossless")]
    if not checks:
        return "-"
    parted = [check for check in checks if check["first_divergence"] is not None]
    margins = [check["margin"] for check in parted]
    greedy = None not in margins        # of draws, a margin says nothing, and is None
    reached = "" if dtype is None else f"{level(checks, dtype, greedy)}: "
    if not parted:
        return f"{reached}identical ({len(checks)}/{len(checks)}, {min(check['tokens'] for check in checks)} tokens)"
    differ = f"{reached}{len(parted)}/{len(checks)} differ"
    if not greedy:
        return differ
    return differ + (f", margins below {EPSILON}" if max(margins) < EPSILON else f", margin up to {max(margins):.2f}")


def summary(rows: Sequence[Row], config: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """summary.md: tables by length, time by part, acceptance by depth and origin, losslessness, failures."""
    out = ["# Sweep\n", _provenance(config, environment), DEFINITIONS]
    if any(row.get("turn", 1) > 1 for row in rows):
        out.append(TURNS)
    found, on_cpu = cells(rows, dtype=environment["dtype"]), environment["device"].startswith("CPU")
    for mode in dict.fromkeys([*(cell.mode for cell in found), *config.get("modes", ())]):
        own = [r for r in rows if r["mode"] == mode]
        out.append(f"\n## Mode: {mode}\n\n{MODE_NOTES.get(mode, '')}")
        if gaps := _gaps(config, own):
            out.append(f"\nNo prompt measured: {gaps}.")
        if not own:
            continue
        out += _tables(mode, [cell for cell in found if cell.mode == mode])
        if any(cell.loops for cell in found if cell.mode == mode):
            without = cells(own, with_loops=False, dtype=environment["dtype"])
            out.append("\nWithout answers that loop:\n" + _tables(mode, without)[-1])
        out.append(_work_table([r for r in own if measured(r)], on_cpu))
    if scored := [r for r in rows if r.get("score")]:
        out.append(_score_table(scored))
    if failed := [r for r in rows if "error" in r]:
        out.append("\n## Failures\n\n" + "\n".join(
            f"- {r['suite']} {length_name(r['bucket'])} {r['prompt_id']}, {r['method']}, {r['mode']}: {r['error']}"
            for r in failed))
    return "\n".join(out) + "\n"


DEFINITIONS = """
MAT: accepted draft tokens per verification step, without the bonus token; tokens per step = MAT + 1. Speedup: decoding
alone, tokens per second over plain decoding's on the same prompt and repeat, after one shared prefill. Values are means
over prompts with a 95 % bootstrap interval; tok/s are medians over prompts (quartiles); the mean speedup is over the
columns that plain decoding has, for methods that have all of them. First token: the target's prefill and that of the
method's own drafter and matrix. Lossless: prompts whose tokens are plain decoding's, and how many tokens were compared
at the least. Answers that ended at once are left out."""

TURNS = """
Each turn of a conversation counts as a prompt, measured from a prefill of its own; it follows plain decoding's answers
to the turns before, for all methods."""

MODE_NOTES = {
    "replay": "Recorded continuations take the place of the target's draws; all forwards and costs are real. "
              "Losslessness is checked by sampling beside it.",
    "sampled": "The target's own draws.",
    "greedy": "Small models loop when decoded greedily, and in a loop every guess is right: see the loops column."}


def _provenance(config: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    changed = ", with uncommitted changes" if environment.get("changed") else ""
    e, c = environment, config
    return (f"{e['target']}, {e['dtype']}, attention {e['attention']}, on {e['device']} with {e['threads']} threads; "
            f"torch {e['torch']}, transformers {e['transformers']}; git {e['git'][:12]}{changed}. "
            f"At most {c['max_new_tokens']} new tokens, {c['repeats']} repeats, seed {c['seed']}, temperature "
            f"{c['temperature']} where sampled.")


def _gaps(config: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Requested lengths and suites without any row, as "64K (lcc, qmsum)"."""
    if "lengths" not in config:
        return ""
    there = {(row["suite"], row["bucket"]) for row in rows}
    gaps = {length: [suite_name(suite) for suite in config["suites"] if (suite, length) not in there]
            for length in config["lengths"] or (WHOLE,)}
    return ", ".join(f"{length_name(length)} ({', '.join(suites)})" for length, suites in gaps.items() if suites)


def _tables(mode: str, here: Sequence[Cell]) -> list[str]:
    """A table per suite, lengths across (the paper's Table 3); of prompts as they are one, suites across (Table 1)."""
    suites = dict.fromkeys(cell.suite for cell in here)
    if {cell.bucket for cell in here} == {WHOLE}:
        apart = [suite for suite in suites if suite != ALL]
        return [_table(f"whole prompts, {mode}", {suite_name(s): [c for c in here if c.suite == s] for s in apart})]
    buckets = sorted({cell.bucket for cell in here})
    return [_table(f"{suite}, {mode}", {length_name(bucket): [c for c in here if (c.suite, c.bucket) == (suite, bucket)]
                                        for bucket in buckets}) for suite in suites]


def _table(title: str, columns: Mapping[str, Sequence[Cell]]) -> str:
    """Methods down; across, MAT, tokens a second and speedup of each column."""
    head = " | ".join(f"{name} MAT | tok/s | speedup" for name in columns)
    lines = [f"\n### {title}\n", f"| method | {head} | mean speedup | lossless | prompts (loops, failures) |",
             "|---|" + "---|" * (3 * len(columns) + 3)]
    paired = [any(c.method == PLAIN and c.speedup for c in column) for column in columns.values()]
    for method in dict.fromkeys(cell.method for column in columns.values() for cell in column):
        row = [cell for column in columns.values() for cell in column if cell.method == method]
        parts = []
        for cell in row:
            if cell.mat is None or cell.rate is None:
                parts.append("- | - | -")
                continue
            speedup = "-" if cell.speedup is None else "{:.2f} ({:.2f}-{:.2f})".format(*cell.speedup)
            rate = f"{cell.rate[1]:.1f} ({cell.rate[0]:.0f}-{cell.rate[2]:.0f})"
            parts.append("{:.2f} ({:.2f}-{:.2f})".format(*cell.mat) + f" | {rate} | {speedup}")
        speedups = [cell.speedup for cell, plain in zip(row, paired, strict=True) if plain]
        means = [speedup[0] for speedup in speedups if speedup]
        # Without a column that others have, a mean could not be compared with theirs.
        mean = f"{sum(means) / len(means):.2f}" if means and len(means) == len(speedups) else "-"
        levels = "; ".join(dict.fromkeys(cell.lossless for cell in row if cell.lossless != "-")) or "-"
        counts = ", ".join(f"{c.prompts} ({c.loops}, {c.failures})" for c in row)
        lines.append(f"| {method} | {' | '.join(parts)} | {mean} | {levels} | {counts} |")
    return "\n".join(lines)


def _work_table(rows: Sequence[Row], on_cpu: bool) -> str:
    """Where steps and milliseconds went, per length and method over all suites."""
    names = " | ".join(PARTS)
    lines = ["\n### Where time and acceptance come from\n",
             f"| length | method | ms per step: {names} | accepted: draft / retrieved / both | acceptance by depth | "
             "stages | first token, s | peak memory, MiB |", "|---|---|" + "---|" * (len(PARTS) + 5)]
    for bucket, method in dict.fromkeys((r["bucket"], r["method"]) for r in sorted(rows, key=lambda r: r["bucket"])):
        mine = [r for r in rows if (r["bucket"], r["method"]) == (bucket, method)]
        steps = max(1, sum(r["steps"] for r in mine))
        seconds, origin, stages = Counter[str](), Counter[str](), Counter[str]()
        for row in mine:
            seconds.update(row["seconds_by_part"])
            origin.update(row["accepted_by_origin"])
            stages.update(row["stages"])
        ms = " | ".join(f"{1e3 * seconds[part] / steps:.1f}" for part in PARTS)
        depths = " ".join(f"{share:.2f}" for share in acceptance_by_depth(mine))
        # On a CPU it is the highest that the process ever had: the same for all methods.
        peak = 0 if on_cpu else max(r["peak_memory_bytes"] for r in mine)
        shares = ", ".join(f"{name} {count / sum(stages.values()):.0%}" for name, count in sorted(stages.items()))
        lines.append(f"| {length_name(bucket)} | {method} | {ms} "
                     f"| {origin['draft']} / {origin['retrieved']} / {origin['both']} "
                     f"| {depths} | {shares or '-'} | {median(r['prefill_seconds'] for r in mine):.2f} "
                     f"| {f'{peak / 2 ** 20:,.0f}' if peak else '-'} |")
    return "\n".join(lines)


def acceptance_by_depth(rows: Sequence[Row], deepest: int = 8) -> list[float]:
    """Share of the steps that came to depth d - 1 which accepted a token at depth d, d = 1, 2, ..."""
    counts = Counter(accepted for row in rows for accepted in row["accepted_per_step"])
    shares = []
    for depth in range(1, deepest + 1):
        came = sum(n for accepted, n in counts.items() if accepted >= depth - 1)
        if not came:
            break
        shares.append(sum(n for accepted, n in counts.items() if accepted >= depth) / came)
    return shares


def _score_table(rows: Sequence[Row]) -> str:
    """LongBench's scores per method: those of a lossless method are plain decoding's."""
    lines = ["\n## Quality of the answers\n", "| mode | suite | length | metric | method | mean | prompts |",
             "|---|---|---|---|---|---|---|"]
    keys = dict.fromkeys((r["mode"], r["suite"], r["bucket"], r["score"][0], r["method"]) for r in rows)
    for mode, suite, bucket, metric, method in keys:
        values = [r["score"][1] for r in rows
                  if (r["mode"], r["suite"], r["bucket"], r["method"]) == (mode, suite, bucket, method)]
        lines.append(f"| {mode} | {suite} | {length_name(bucket)} | {metric} | {method} "
                     f"| {sum(values) / len(values):.3f} | {len(values)} |")
    return "\n".join(lines)


def write(out: Path) -> None:
    """summary.md and summary.csv of a sweep's folder."""
    rows = read_rows(out)
    config, environment = (json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
                           for name in ("config", "environment"))
    (out / "summary.md").write_text(summary(rows, config, environment), encoding="utf-8")
    with open(out / "summary.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for c in cells(rows, dtype=environment["dtype"]):
            blank = (None, None, None)
            writer.writerow([c.mode, c.suite, c.bucket, c.method, c.prompts, c.loops, c.failures, *(c.mat or blank),
                             *(c.rate or blank), *(c.speedup or blank), c.prefill_seconds, c.lossless])


def key(row: Row) -> tuple:
    """What a row is about."""
    return tuple(row[name] for name in ("suite", "bucket", "prompt_id", "mode", "method", "repeat"))


def read_rows(out: Path) -> list[dict[str, Any]]:
    """The rows of a sweep's folder; ValueError where there are none or one is broken.

    A last line without its end is a row that is being written: it is left out.
    """
    path = out / "per_prompt.jsonl"
    if not path.exists():
        raise ValueError(f"{out} holds no per_prompt.jsonl. Give the --out folder of a sweep.")
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}, is no JSON: {error}. Remove the line and give the sweep "
                             "--resume, which measures it again.") from error
        if not isinstance(rows[-1], dict):
            raise ValueError(f"{path}, line {number}, is no row but {line[:40]!r}. Remove the line.")
    if not rows:
        raise ValueError(f"{path} holds no row. Nothing was measured, or not yet.")
    return rows


def length_name(length: int) -> str:
    """As tables name it: 4K, whole."""
    return "whole" if length == WHOLE else f"{length // 1024}K" if length % 1024 == 0 else str(length)

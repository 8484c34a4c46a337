"""A table of engines: medians over prompts, and how far their answers agree with longgraft's plain decoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.json_rows import read_objects
from benchmarks.tables import middle
from longgraft.comparison.levels import first_divergence
from longgraft.eval.reports.groups import grouped
from longgraft.eval.reports.tables import markdown

Row = Mapping[str, Any]
Key = tuple[Any, ...]

ABOUT = ("engine", "version", "file", "processor", "threads", "method", "suite", "length", "prompt")
HEADER = (
    "engine",
    "method",
    "prompts",
    "reads, tokens/s",
    "decodes, tokens/s",
    "tokens a step",
    "seconds",
    "same tokens",
)


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """Reads rows of one or several files.

    Raises:
        ValueError: a file has other rows, or they come from different processors or numbers of threads.
    """
    rows: list[Row] = []
    for path in paths:
        rows += read_objects(path, ABOUT, "Give files that the command measure has written.")
    for field in ("processor", "threads"):
        found = sorted({str(row[field]) for row in rows})
        if len(found) > 1:
            raise ValueError(
                f"The rows have more than one value of {field}: {'; '.join(found)}. A table compares rows "
                "of one; give only their files."
            )
    return rows


def lines(rows: Sequence[Row], by_suite: bool = False) -> list[str]:
    """Returns a table in Markdown for each length (and suite), the failures, and what was run."""
    answered = [row for row in rows if "error" not in row]
    plain = {prompt_of(row): row["ids"] for row in answered if method_of(row) == ("longgraft", "ar")}
    found: list[str] = []
    for heading, group in grouped(rows, heading_by_suite if by_suite else heading_by_length).items():
        by_method = grouped([row for row in group if "error" not in row], method_of)
        table = [cells(method, own, plain) for method, own in by_method.items()]
        found += [f"### {heading}", "", *markdown(HEADER, table).split("\n"), ""]
    for row in rows:
        if "error" in row:
            found.append(f"- {row['engine']}, {row['method']}, {row['suite']} {row['prompt']}: {row['error']}")
    for engine, version, file in dict.fromkeys((row["engine"], row["version"], row["file"]) for row in rows):
        found.append(f"- {engine} {version}: {file}")
    for row in rows[:1]:
        found.append(f"- {row['processor']}; threads: {row['threads']}")
    return found


def prompt_of(row: Row) -> Key:
    return row["suite"], row["length"], row["prompt"]


def method_of(row: Row) -> Key:
    return row["engine"], row["method"]


def heading_by_length(row: Row) -> str:
    return str(row["length"] or "whole")


def heading_by_suite(row: Row) -> str:
    return f"{heading_by_length(row)}, {row['suite']}"


def cells(method: Key, rows: Sequence[Row], plain: Mapping[Key, Sequence[int]]) -> list[str]:
    """Returns the cells of one engine's method."""
    steps = [row["tokens_per_step"] for row in rows if row["tokens_per_step"] is not None]
    return [
        *method,
        str(len({prompt_of(row) for row in rows})),
        middle([row["read"] for row in rows], ".0f"),
        middle([row["decode"] for row in rows], ".1f"),
        middle(steps) or "-",
        middle([row["seconds"] for row in rows], ".1f"),
        agreement(rows, plain),
    ]


def agreement(rows: Sequence[Row], plain: Mapping[Key, Sequence[int]]) -> str:
    """Returns how many first tokens are longgraft's: all, or the fewest and the most over the prompts."""
    compared = [row for row in rows if prompt_of(row) in plain]
    if not compared:
        return "-"
    about = " (text encoded again)" if any(row["encoded_again"] for row in rows) else ""
    same = []
    whole = True
    for row in compared:
        reference = plain[prompt_of(row)]
        parted = first_divergence(row["ids"], reference)
        same.append(len(reference) if parted is None else parted)
        whole = whole and parted is None
    if whole:
        return f"all{about}"
    if min(same) < max(same):
        return f"{min(same)} to {max(same)}{about}"
    return f"{same[0]}{about}"

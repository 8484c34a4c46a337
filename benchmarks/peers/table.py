"""A table of engines: medians over prompts, and how far their answers agree with longgraft's plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.answers import read_objects

Row = dict[str, Any]
Key = tuple[Any, ...]

ABOUT = "engine", "version", "file", "processor", "threads", "method", "suite", "length", "prompt"
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
    rows = [
        row for path in paths for row in read_objects(path, ABOUT, "Give files that the command measure has written.")
    ]
    for field in ("processor", "threads"):
        if len(found := sorted({str(row[field]) for row in rows})) > 1:
            raise ValueError(
                f"The rows have more than one value of {field}: {'; '.join(found)}. A table compares rows "
                "of one; give only their files."
            )
    return rows


def lines(rows: Sequence[Row], by_suite: bool = False) -> list[str]:
    """Returns a table in Markdown for each length (and suite), the failures, and what was run."""
    plain = {
        prompt_of(row): row["ids"]
        for row in rows
        if (row["engine"], row["method"]) == ("longgraft", "ar") and "ids" in row
    }
    out: list[str] = []
    for about, group in grouped(rows, group_by_suite if by_suite else group_by_length):
        out += [f"### {', '.join(map(str, about))}", ""]
        out += markdown(
            HEADER,
            [
                cells(who, theirs, plain)
                for who, theirs in grouped(
                    [row for row in group if "error" not in row], lambda row: (row["engine"], row["method"])
                )
            ],
        )
        out += [""]
    out += [
        f"- {row['engine']}, {row['method']}, {row['suite']} {row['prompt']}: {row['error']}"
        for row in rows
        if "error" in row
    ]
    used = grouped(rows, lambda row: (row["engine"], row["version"], row["file"]))
    out += [f"- {engine} {version}: {file}" for (engine, version, file), _ in used]
    return [*out, *(f"- {row['processor']}; threads: {row['threads']}" for row in rows[:1])]


def prompt_of(row: Row) -> Key:
    return row["suite"], row["length"], row["prompt"]


def group_by_length(row: Row) -> Key:
    return (row["length"] or "whole",)


def group_by_suite(row: Row) -> Key:
    return row["length"] or "whole", row["suite"]


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> Iterator[tuple[Key, list[Row]]]:
    """Yields groups of rows in the order of their first row."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    yield from groups.items()


def cells(who: Key, rows: Sequence[Row], plain: dict[Key, Sequence[int]]) -> list[str]:
    """Returns the cells of one engine's method."""
    steps = [row["tokens_per_step"] for row in rows if row["tokens_per_step"] is not None]
    return [
        *who,
        str(len({prompt_of(row) for row in rows})),
        f"{median(row['read'] for row in rows):.0f}",
        f"{median(row['decode'] for row in rows):.1f}",
        f"{median(steps):.2f}" if steps else "-",
        f"{median(row['seconds'] for row in rows):.1f}",
        agreement(rows, plain),
    ]


def agreement(rows: Sequence[Row], plain: dict[Key, Sequence[int]]) -> str:
    """Returns how many first tokens are longgraft's: all, or the fewest and the most over the prompts."""
    same = [common(row["ids"], plain[prompt_of(row)]) for row in rows if prompt_of(row) in plain]
    if not same:
        return "-"
    about = " (text encoded again)" if any(row["encoded_again"] for row in rows) else ""
    if all(count == len(plain[prompt_of(row)]) for count, row in zip(same, rows, strict=False)):
        return "all" + about
    return (f"{min(same)} to {max(same)}" if min(same) < max(same) else f"{same[0]}") + about


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """Returns how many first tokens two answers share."""
    return next(
        (n for n, (one, other) in enumerate(zip(left, right, strict=False)) if one != other), min(len(left), len(right))
    )


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table."""
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]

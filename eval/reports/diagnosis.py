"""Rows, table and figure of `longgraft diagnose`."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from longgraft.eval.checks.chains import OWN, ROWS, TARGET, Depth
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.groups import grouped
from longgraft.eval.reports.panels import pyplot, save, style_of
from longgraft.eval.reports.tables import length_name, markdown, number
from longgraft.files.whole_files import write_whole, written_whole

LINES = {OWN: "-", ROWS: ":", TARGET: "--"}
ENOUGH = 30  # fewest starts that must have come to a depth: a share of fewer means little
LABELS = {OWN: "its own", ROWS: "the target's keys and values", TARGET: "its features, too"}


def write(folder: Path, depths: Sequence[Depth], about: str) -> list[Path]:
    """Writes diagnosis.csv, summary.md and, with matplotlib, diagnosis.svg.

    about: target, dtype and device, in words
    """
    rows_file = folder / "diagnosis.csv"
    summary_file = folder / "summary.md"
    with written_whole(rows_file) as part, open(part, "w", encoding="utf-8", newline="") as file:
        rows = csv.DictWriter(file, [field.name for field in fields(Depth)], lineterminator="\n")
        rows.writeheader()
        rows.writerows(asdict(depth) for depth in depths)
    summary = ["# What a drafter still knows, by depth", "", about, "", *table(depths)]
    write_whole(summary_file, "\n".join(summary) + "\n")
    paths = [rows_file, summary_file]
    with suppress(ImportError):  # figures are an extra
        paths.append(draw(folder / "diagnosis.svg", depths, about))
    return paths


def table(depths: Sequence[Depth]) -> list[str]:
    """Returns Markdown: acceptance and agreement by depth, and what the target's states would bring."""
    lines = []
    for (drafter, suite, length), depths_of_drafter in _by_drafter_suite_and_length(depths).items():
        conditions = grouped(depths_of_drafter, _condition_of)
        start = [drafter, suite_name(suite), length_name(length), str(conditions[OWN][0].starts)]
        for name, share in (("acceptance", acceptance), ("agreement", agreement)):
            shares = {}
            for condition, of_condition in conditions.items():
                shares[condition] = list(map(share, of_condition))
            shares["gap"] = _gaps(shares[OWN], shares[TARGET])
            for condition, values in shares.items():
                lines.append([*start, name, condition, *map(number, values)])
    most = max(depth.depth for depth in depths)
    head = ["drafter", "suite", "prompt", "starts", "", "condition", *map(str, range(1, most + 1))]
    return [
        "Acceptance: right, of the starts that were right at all depths before.  "
        "Agreement: right, of all starts, the text's tokens being fed.  Gap: target less own.",
        "",
        *markdown(head, lines).splitlines(),
    ]


def _gaps(drafters: Sequence[float | None], targets: Sequence[float | None]) -> list[float | None]:
    """Returns by how much the target's shares are above the drafter's own; None where one is not known."""
    gaps = []
    for before, after in zip(drafters, targets, strict=True):
        gap = None
        if before is not None and after is not None:
            gap = after - before
        gaps.append(gap)
    return gaps


def acceptance(depth: Depth) -> float | None:
    """Returns the acceptance; None if too few starts came to this depth."""
    if depth.reached < ENOUGH:
        return None
    return depth.accepted / depth.reached


def agreement(depth: Depth) -> float | None:
    return depth.agreed / depth.starts


def draw(path: Path, depths: Sequence[Depth], about: str) -> Path:
    """Draws acceptance above and agreement below; acceptances of fewer than ENOUGH starts are left out.

    Each suite and length has a column, each drafter a colour, and each condition a line.
    """
    plt = pyplot()
    places = list(grouped(depths, lambda depth: (depth.suite, depth.bucket)))
    drafters = list(grouped(depths, lambda depth: depth.drafter))
    width = 1.2 + 3.2 * len(places)
    figure, axes = plt.subplots(2, len(places), figsize=(width, 6.4), sharex=True, sharey=True, squeeze=False)
    for (drafter, suite, length), depths_of_drafter in _by_drafter_suite_and_length(depths).items():
        above, below = axes[:, places.index((suite, length))]
        style = style_of(drafters.index(drafter)) | {"markersize": 3, "linewidth": 1.4}
        for condition, of_condition in grouped(depths_of_drafter, _condition_of).items():
            style |= {"label": f"{drafter}: {LABELS[condition]}", "linestyle": LINES[condition]}
            _draw_line(above, of_condition, acceptance, style)
            _draw_line(below, of_condition, agreement, style)
    for (suite, length), (above, below) in zip(places, axes.T, strict=True):
        above.set_title(f"{suite_name(suite)}, {length_name(length)}")
        below.set_xlabel("depth")
    axes[0, 0].set_ylabel("acceptance: right,\nwhere all before was right")
    axes[1, 0].set_ylabel("agreement: right,\nwhatever was before")
    axes[0, 0].set_ylim(0, 1)
    handles, labels = axes[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=len(drafters))
    save(plt, figure, about, path)
    return path


def _draw_line(
    panel: Any, depths: Sequence[Depth], share: Callable[[Depth], float | None], style: dict[str, Any]
) -> None:
    """Draws the shares that are known, by depth."""
    known = [depth for depth in depths if share(depth) is not None]
    if known:
        panel.plot([depth.depth for depth in known], list(map(share, known)), **style)


def _by_drafter_suite_and_length(depths: Sequence[Depth]) -> dict[tuple[str, str, int], list[Depth]]:
    return grouped(depths, lambda depth: (depth.drafter, depth.suite, depth.bucket))


def _condition_of(depth: Depth) -> str:
    return depth.condition

"""Rows, table and figure of `longgraft diagnose`."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from longgraft.eval.checks.chains import OWN, ROWS, TARGET, Depth
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.panels import pyplot, style_of
from longgraft.eval.reports.tables import length_name, markdown, number

LINES = {OWN: "-", ROWS: ":", TARGET: "--"}
ENOUGH = 30     # fewest starts that must have come to a depth: a share of fewer means little
LABELS = {OWN: "its own", ROWS: "the target's keys and values", TARGET: "its features, too"}


def write(folder: Path, depths: Sequence[Depth], about: str) -> list[Path]:
    """Writes diagnosis.csv, summary.md and, with matplotlib, diagnosis.svg; about: target, dtype and device, in
    words."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "diagnosis.csv", folder / "summary.md"]
    with open(paths[0], "w", encoding="utf-8", newline="") as file:
        rows = csv.DictWriter(file, [field.name for field in fields(Depth)], lineterminator="\n")
        rows.writeheader()
        rows.writerows(asdict(depth) for depth in depths)
    paths[1].write_text("\n".join(["# What a drafter still knows, by depth", "", about, "", *table(depths)]) + "\n",
                        encoding="utf-8")
    with suppress(ImportError):     # figures are an extra
        paths.append(draw(folder / "diagnosis.svg", depths, about))
    return paths


def table(depths: Sequence[Depth]) -> list[str]:
    """Returns Markdown: acceptance and agreement by depth, and what the target's rows and features would bring."""
    most = max(depth.depth for depth in depths)
    lines = []
    for (drafter, suite, bucket), mine in _groups(depths):
        conditions: dict[str, list[Depth]] = {}
        for depth in mine:
            conditions.setdefault(depth.condition, []).append(depth)
        start = [drafter, suite_name(suite), length_name(bucket), str(conditions[OWN][0].starts)]
        for what, share in (("acceptance", acceptance), ("agreement", agreement)):
            shares = {condition: [share(depth) for depth in own] for condition, own in conditions.items()}
            shares["gap"] = _gaps(shares[OWN], shares[TARGET])
            lines += [[*start, what, condition, *map(number, values)] for condition, values in shares.items()]
    head = ["drafter", "suite", "prompt", "starts", "", "condition", *map(str, range(1, most + 1))]
    return ["Acceptance: right, of the starts that were right at all depths before.  Agreement: right, of all starts, "
            "the text's tokens being fed.  Gap: target less own.", "", *markdown(head, lines).splitlines()]


def _gaps(own: Sequence[float | None], target: Sequence[float | None]) -> list[float | None]:
    """Returns by how much the target's shares are above the drafter's own; None where one of them is not known."""
    gaps: list[float | None] = []
    for before, after in zip(own, target, strict=True):
        gaps.append(None if before is None or after is None else after - before)
    return gaps


def acceptance(depth: Depth) -> float | None:
    """Returns the acceptance; None if too few starts came to this depth."""
    return depth.accepted / depth.reached if depth.reached >= ENOUGH else None


def agreement(depth: Depth) -> float | None:
    return depth.agreed / depth.starts


def draw(path: Path, depths: Sequence[Depth], about: str) -> Path:
    """Draws acceptance above and agreement below: a column per suite and length, a colour per drafter, a line per
    condition; acceptances of fewer than ENOUGH starts are left out."""
    plt = pyplot()
    places = list(dict.fromkeys((depth.suite, depth.bucket) for depth in depths))
    drafters = list(dict.fromkeys(depth.drafter for depth in depths))
    figure, axes = plt.subplots(2, len(places), figsize=(1.2 + 3.2 * len(places), 6.4), sharex=True, sharey=True,
                                squeeze=False)
    for (drafter, *place), mine in _groups(depths):
        column = axes[:, places.index(tuple(place))]        # type: ignore[arg-type]
        for condition, one in groupby(mine, lambda depth: depth.condition):
            points = list(one)
            for panel, share in zip(column, (acceptance, agreement), strict=True):
                shown = [depth for depth in points if share(depth) is not None]
                if shown:
                    panel.plot([depth.depth for depth in shown], [share(depth) for depth in shown], LINES[condition],
                               linewidth=1.4, label=f"{drafter}: {LABELS[condition]}",
                               **style_of(drafters.index(drafter)) | {"markersize": 3})
    for (suite, bucket), (above, below) in zip(places, axes.T, strict=True):
        above.set_title(f"{suite_name(suite)}, {length_name(bucket)}")
        below.set_xlabel("depth")
    axes[0, 0].set_ylabel("acceptance: right,\nwhere all before was right")
    axes[1, 0].set_ylabel("agreement: right,\nwhatever was before")
    axes[0, 0].set_ylim(0, 1)
    handles, labels = axes[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=len(drafters))
    figure.suptitle(about, fontsize=9, color="#444444")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None}, dpi=150, bbox_inches="tight")
    plt.close(figure)
    return path


def _groups(depths: Sequence[Depth]) -> Iterator[tuple[tuple[str, str, int], list[Depth]]]:
    """Groups depths by drafter, suite and length."""
    found: dict[tuple[str, str, int], Any] = {}
    for depth in depths:
        found.setdefault((depth.drafter, depth.suite, depth.bucket), []).append(depth)
    yield from found.items()

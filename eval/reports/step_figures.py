"""Figures of steps: their seconds by part, acceptance by position, and estimates beside what was accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from longgraft.eval.reports.estimates import FEWEST, judged
from longgraft.eval.reports.groups import by_method, by_mode_and_method
from longgraft.eval.reports.panels import COLOURS, finish, legend, series, side_by_side
from longgraft.eval.reports.steps import PARTS, acceptance_by_position, drafts, milliseconds_by_part
from longgraft.eval.runs.rows import Row


def time_figure(plt: Any, rows: Sequence[Row], shown: Mapping[str, str]) -> Any:
    """Draws the milliseconds of a step by what they were spent on: a stacked bar for each method."""
    figure, (panel,) = side_by_side(plt, ["time of a step"], height=0.5 * len(shown) + 1.6)
    rows_by_method = by_method(rows)
    of_methods = [milliseconds_by_part(rows_by_method[method]) for method in shown]
    recorded = set[str]().union(*of_methods)
    parts = [part for part in PARTS if part in recorded]
    left = np.zeros(len(shown))
    for index, part in enumerate(parts):
        widths = [milliseconds.get(part, 0.0) for milliseconds in of_methods]
        panel.barh(list(shown.values()), widths, left=left, color=COLOURS[index % len(COLOURS)], label=part)
        left = left + widths
    panel.invert_yaxis()
    panel.grid(axis="y", visible=False)
    panel.set_xlabel("milliseconds per verification step")
    panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def acceptance_figure(plt: Any, rows: Sequence[Row], shown: Mapping[str, str], modes: Sequence[str]) -> Any:
    """Draws the share of drafts that were accepted up to each position, from FEWEST drafts on."""
    figure, panels = side_by_side(plt, modes)
    groups = by_mode_and_method(rows)
    for panel, mode in zip(panels, modes, strict=True):
        for name, style, rows_of_method in series(groups, shown, mode):
            if (drafts(rows_of_method) or 0) < FEWEST:
                continue
            shares = [position.raw for position in acceptance_by_position(rows_of_method)]
            panel.plot(range(1, len(shares) + 1), shares, label=name, **style)
        panel.set_xlabel("position in the draft")
    finish(panels, "accepted share of drafts", 1)
    return figure


def estimates_figure(plt: Any, rows: Sequence[Row], shown: Mapping[str, str], modes: Sequence[str]) -> Any:
    """Draws accepted share against mean estimate of the nodes in each tenth of it, and their number below."""
    figure, axes = plt.subplots(
        2, len(modes), figsize=(5.2 * len(modes), 5.4), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 1)
    )
    groups = by_mode_and_method(rows)
    for (panel, below), mode in zip(axes.T, modes, strict=True):
        panel.plot([0, 1], [0, 1], color="#000000", linewidth=0.8, linestyle=":")
        for name, style, rows_of_method in series(groups, shown, mode):
            bins = judged(rows_of_method, "probability")
            if not bins:
                continue
            nodes, expected, accepted = np.array(list(bins.values())).T
            below.plot(expected / nodes, nodes, **style)
            enough = nodes >= FEWEST
            if enough.any():
                panel.plot((expected / nodes)[enough], (accepted / nodes)[enough], label=name, **style)
        panel.set_title(mode)
        below.set_yscale("log")
        below.set_xlabel("estimated probability of the path")
    axes[0, 0].set_ylabel("accepted share of nodes")
    axes[1, 0].set_ylabel("nodes")
    legend(list(axes[0]))
    return figure

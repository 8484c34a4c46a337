"""Figures of a sweep's rows; needs matplotlib (the extra `plot`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

from longgraft.config.method_roles import PLAIN
from longgraft.eval.prompts.buckets import WHOLE
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.cells import ALL, LOSSY, TableCell, cells
from longgraft.eval.reports.groups import by_method, by_mode, failures, grouped, measured
from longgraft.eval.reports.length_figure import speedup_by_length
from longgraft.eval.reports.panels import bars, finish, places, pyplot, save, series, side_by_side
from longgraft.eval.reports.step_figures import acceptance_figure, estimates_figure, time_figure
from longgraft.eval.reports.tables import length_name, prompt_count
from longgraft.eval.runs.folder import Run, numbers
from longgraft.eval.runs.rows import Result, Row

SUFFIXES = (".svg", ".png", ".pdf")
LABELS = {"mat": "MAT: accepted tokens per step", "speedup": "decoding speedup"}  # by field of a cell


def draw(run: Run, labels: Mapping[str, str] | None = None, suffix: str = ".svg") -> list[Path]:
    """Draws all figures of a run into its folder; labels: method -> legend, methods without one are left out.

    Raises:
        ValueError: nothing can be drawn, a label names a method without rows, or the suffix is not supported.
    """
    suffix = checked_suffix(suffix)
    good = measured(run.rows)
    shown = _shown(run.rows, good, labels)
    plt = pyplot()
    modes = list(by_mode(good))
    every_cell = cells(run.rows)
    pooled = every_cell
    if len(grouped(good, lambda row: row.key.suite)) > 1:
        pooled = [cell for cell in every_cell if cell.suite == ALL]
    figures = {}
    of_lengths = [cell for cell in pooled if cell.bucket != WHOLE]
    if of_lengths:
        figures["mat_by_length"] = _mat_by_length(plt, of_lengths, shown, modes)
        figures["speedup_by_length"] = speedup_by_length(plt, of_lengths, shown, modes, run.default)
    of_whole_prompts = [cell for cell in every_cell if cell.bucket == WHOLE]
    if of_whole_prompts:
        for field in LABELS:
            figures[f"{field}_by_suite"] = _by_suite(plt, of_whole_prompts, shown, modes, field)
    figures["frontier"] = _frontier(plt, pooled, shown, modes)
    figures["time_by_part"] = time_figure(plt, good, shown)
    figures["acceptance_by_position"] = acceptance_figure(plt, good, shown, modes)
    if any(row.by_probability and row.key.method in shown for row in good):
        figures["expected_and_accepted"] = estimates_figure(plt, good, shown, modes)
    paths = []
    for name, figure in figures.items():
        caption = _caption(run, pooled, "length")
        if name.endswith("_by_suite"):
            caption = _caption(run, every_cell, "suite")
        paths.append(run.folder / f"{name}{suffix}")
        save(plt, figure, caption, paths[-1])
    return paths


def checked_suffix(suffix: str) -> str:
    """Returns ".png" for "png" and ".png"; raises ValueError for a suffix that is not supported."""
    dotted = f".{suffix.removeprefix('.')}"
    if dotted not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise ValueError(f"Figures with the suffix {suffix!r} cannot be written. Known: {known}.")
    return dotted


def _shown(rows: Sequence[Result], good: Sequence[Row], labels: Mapping[str, str] | None) -> dict[str, str]:
    """Returns method -> its name in the legend; a lossy method is marked there."""
    rows_by_method = by_method(rows)
    unknown = [name for name in labels or () if name not in rows_by_method]
    if unknown:
        present = ", ".join(rows_by_method) or "none"
        raise ValueError(f"No row is of {', '.join(unknown)}. There are: {present}.")
    names: dict[str, str] = {}
    for row in good:
        names[row.key.method] = row.key.method
        if row.promise == LOSSY:
            names[row.key.method] += f" ({LOSSY})"
    shown = {method: name for method, name in (labels or names).items() if method in names}
    if shown:
        return shown
    if not labels:
        raise ValueError(_why_nothing(rows, "rows"))
    labelled = [row for row in rows if row.key.method in labels]
    raise ValueError(_why_nothing(labelled, f"rows of {', '.join(labels)}"))


def _why_nothing(rows: Sequence[Result], description: str) -> str:
    """Explains why none of these rows can be drawn."""
    failed = failures(rows)
    if not rows:
        return f"There are no {description} to draw."
    if len(failed) < len(rows):
        return (
            f"There is nothing to draw: of the {description} ({len(rows)}), {len(failed)} are failures and "
            "the others ended at once."
        )
    return f"All {description} ({len(rows)}) are failures. The first: {failed[0].error}"


def _caption(run: Run, of_figure: Sequence[TableCell], each: str) -> str:
    """Returns the model, where it ran, and the number of prompts per suite or length."""
    counts = [cell.prompts for cell in of_figure if cell.mat]
    prompts = f"{min(counts)}-{max(counts)} prompts"
    if min(counts) == max(counts):
        prompts = prompt_count(counts[0])
    environment = run.environment
    return f"{environment['target']}, {numbers(environment)}, {environment['device']}; {prompts} a {each}"


def _mat_by_length(plt: Any, of_lengths: Sequence[TableCell], shown: Mapping[str, str], modes: Sequence[str]) -> Any:
    """Draws MAT, the mean over prompts and its 95 % interval, against prompt length, one panel per mode."""
    figure, panels = side_by_side(plt, modes)
    ticks = sorted(grouped(of_lengths, lambda cell: cell.bucket))
    drawn = [cell for cell in of_lengths if cell.method != PLAIN and cell.mat is not None]
    by_mode_and_method = grouped(drawn, lambda cell: (cell.mode, cell.method))
    for panel, mode in zip(panels, modes, strict=True):
        for name, style, cells_of_method in series(by_mode_and_method, shown, mode):
            lengths = []
            values = []
            lows = []
            highs = []
            for cell in cells_of_method:
                if cell.mat is not None:
                    low, high = cell.mat.interval or (nan, nan)  # not a number: no band is drawn
                    lengths.append(cell.bucket)
                    values.append(cell.mat.value)
                    lows.append(low)
                    highs.append(high)
            panel.plot(lengths, values, label=name, **style)
            panel.fill_between(lengths, lows, highs, color=style["color"], alpha=0.12, linewidth=0)
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks, list(map(length_name, ticks)))
        panel.minorticks_off()
        panel.set_xlabel("prompt tokens")
    finish(panels, LABELS["mat"])
    return figure


def _by_suite(
    plt: Any, of_suites: Sequence[TableCell], shown: Mapping[str, str], modes: Sequence[str], field: str
) -> Any:
    """Draws the mean over uncut prompts and its interval: a group of bars per suite, a panel per mode."""
    suites = list(grouped(of_suites, lambda cell: cell.suite))
    methods = [method for method in shown if method != PLAIN]
    width = 1 / (len(methods) + 1)
    figure, panels = side_by_side(plt, modes, width=2.6 + 0.26 * len(suites) * (len(methods) + 1))
    by_mode_and_method = grouped(of_suites, lambda cell: (cell.mode, cell.method))
    for panel, mode in zip(panels, modes, strict=True):
        for place, method in enumerate(methods):
            offset = (place - (len(methods) - 1) / 2) * width
            centres = []
            means = []
            for cell in by_mode_and_method[mode, method]:
                mean = getattr(cell, field)
                if mean is not None:
                    centres.append(suites.index(cell.suite) + offset)
                    means.append(mean)
            bars(
                panel,
                centres,
                means,
                places(shown)[method],
                width=0.9 * width,
                label=shown[method],
                error_kw={"linewidth": 0.8, "capsize": 2},
            )
        if field == "speedup":
            panel.axhline(1.0, color="#000000", linewidth=0.8, linestyle=":")
        panel.set_axisbelow(True)
        panel.set_xticks(range(len(suites)), list(map(suite_name, suites)), rotation=20, ha="right")
    finish(panels, LABELS[field])
    return figure


def _frontier(plt: Any, pooled: Sequence[TableCell], shown: Mapping[str, str], modes: Sequence[str]) -> Any:
    """Draws speed against MAT, a point per method, averaged over lengths (the paper's Figure 1).

    The lengths are those that plain decoding has; a method that lacks one of them is left out.
    """
    figure, panels = side_by_side(plt, modes)
    highest = 1.0
    drawn = [cell for cell in pooled if cell.prompts]
    cells_by_mode = grouped(drawn, lambda cell: cell.mode)
    by_mode_and_method = grouped(drawn, lambda cell: (cell.mode, cell.method))
    for panel, mode in zip(panels, modes, strict=True):
        lengths = _frontier_lengths(cells_by_mode.get(mode, ()))
        for name, style, cells_of_method in series(by_mode_and_method, shown, mode):
            mats = []
            rates = []
            for cell in cells_of_method:
                if cell.bucket in lengths and cell.mat is not None and cell.rate is not None:
                    mats.append(cell.mat.value)
                    rates.append(cell.rate[1])
            if len(mats) == len(lengths):
                rate = sum(rates) / len(rates)
                highest = max(highest, rate)
                style["markersize"] = 8
                panel.plot(sum(mats) / len(mats), rate, linestyle="none", label=name, **style)
        panel.set_xlabel(LABELS["mat"])
    finish(panels, "tokens per second", 1.1 * highest)
    return figure


def _frontier_lengths(of_mode: Sequence[TableCell]) -> set[int]:
    """Returns the lengths that plain decoding has, or all lengths if it was not measured."""
    cells_by_method = grouped(of_mode, lambda cell: cell.method)
    return {cell.bucket for cell in cells_by_method.get(PLAIN, of_mode)}

"""Figures of a sweep's rows; needs matplotlib (the extra `plot`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longgraft.config.method_roles import PLAIN
from longgraft.eval.prompts.buckets import WHOLE
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.cells import ALL, LOSSY, TableCell, cells
from longgraft.eval.reports.estimates import FEWEST, judged
from longgraft.eval.reports.groups import measured
from longgraft.eval.reports.length_figure import errors, speedup_by_length
from longgraft.eval.reports.panels import COLOURS, HATCHES, legend, pyplot, side_by_side, style_of
from longgraft.eval.reports.steps import PARTS, acceptance_by_position, drafts, summed_seconds
from longgraft.eval.reports.tables import length_name
from longgraft.eval.runs.folder import Run, numbers
from longgraft.eval.runs.rows import Failure, Result, Row
from longgraft.eval.statistics import Mean

SUFFIXES = (".svg", ".png", ".pdf")
LABELS = {"mat": "MAT: accepted tokens per step", "speedup": "decoding speedup"}


def draw(run: Run, labels: Mapping[str, str] | None = None, suffix: str = ".svg") -> list[Path]:
    """Draws all figures of a run into its folder; labels: method -> legend, methods without one are left out.

    Raises:
        ValueError: nothing can be drawn, a label names a method that no row has, or the suffix is not supported.
    """
    suffix = checked_suffix(suffix)
    good = measured(run.rows)
    shown = _shown(run.rows, good, labels)
    plt = pyplot()
    modes = list(dict.fromkeys(row.key.mode for row in good))
    every = cells(run.rows)
    found = every
    if len({row.key.suite for row in good}) > 1:
        found = [cell for cell in every if cell.suite == ALL]
    figures = {}
    by_length = [cell for cell in found if cell.bucket != WHOLE]
    if by_length:
        figures["mat_by_length"] = _mat_by_length(plt, by_length, shown, modes)
        figures["speedup_by_length"] = speedup_by_length(plt, by_length, shown, modes, run.default)
    by_suite = [cell for cell in every if cell.bucket == WHOLE]
    if by_suite:
        for what in LABELS:
            figures[f"{what}_by_suite"] = _by_suite(plt, by_suite, shown, modes, what)
    figures["frontier"] = _frontier(plt, found, shown, modes)
    figures["time_by_part"] = _time_by_part(plt, good, shown)
    figures["acceptance_by_position"] = _by_position(plt, good, shown, modes)
    if any(row.by_probability for row in good if row.key.method in shown):
        figures["expected_and_accepted"] = _by_estimate(plt, good, shown, modes)
    paths = []
    for name, figure in figures.items():
        caption = _caption(run, found, "length")
        if name.endswith("_by_suite"):
            caption = _caption(run, every, "suite")
        figure.suptitle(caption, fontsize=9, color="#444444")
        figure.tight_layout()
        paths.append(run.folder / f"{name}{suffix}")
        metadata = {"Date": None} if suffix == ".svg" else None
        figure.savefig(paths[-1], metadata=metadata, dpi=150, bbox_inches="tight")
        plt.close(figure)
    return paths


def checked_suffix(suffix: str) -> str:
    """Returns ".png" for "png" and ".png"; raises ValueError for a suffix that is not supported."""
    dotted = suffix if suffix.startswith(".") else f".{suffix}"
    if dotted not in SUFFIXES:
        raise ValueError(f"Figures with the suffix {suffix!r} cannot be written. Known: {', '.join(SUFFIXES)}.")
    return dotted


def _shown(rows: Sequence[Result], good: Sequence[Row], labels: Mapping[str, str] | None) -> dict[str, str]:
    """Returns method -> its name in the legend; a lossy method is marked there."""
    every = list(dict.fromkeys(row.key.method for row in rows))
    unknown = [name for name in labels or () if name not in every]
    if unknown:
        raise ValueError(f"No row is of {', '.join(unknown)}. There are: {', '.join(every) or 'none'}.")
    names: dict[str, str] = {}
    for row in good:
        method = row.key.method
        names[method] = f"{method} ({LOSSY})" if row.promise == LOSSY else method
    shown = {method: name for method, name in (labels or names).items() if method in names}
    if shown:
        return shown
    mine = [row for row in rows if not labels or row.key.method in labels]
    raise ValueError(_nothing(mine, f" of {', '.join(labels)}" if labels else ""))


def _nothing(rows: Sequence[Result], of: str) -> str:
    """Explains why none of these rows can be drawn."""
    errors = [row.error for row in rows if isinstance(row, Failure)]
    if not rows:
        return f"There are no rows{of} to draw."
    if len(errors) < len(rows):
        return (f"There is nothing to draw: of the rows{of} ({len(rows)}), {len(errors)} are failures and the "
                "others ended at once.")
    return f"All rows{of} ({len(rows)}) are failures. The first: {errors[0]}"


def _caption(run: Run, found: Sequence[TableCell], each: str) -> str:
    """Returns the model, where it ran, and the number of prompts per suite or length."""
    counts = sorted({cell.prompts for cell in found if cell.mat})
    count = "-".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    e = run.environment
    return f"{e['target']}, {numbers(e)}, {e['device']}; {count} prompt{'s' * (counts != [1])} a {each}"


def _mat_by_length(plt: Any, found: Sequence[TableCell], shown: Mapping[str, str], modes: Sequence[str]) -> Any:
    """Draws MAT, the mean over prompts and its 95 % interval, against prompt length, one panel per mode."""
    figure, panels = side_by_side(plt, modes)
    ticks = sorted({cell.bucket for cell in found})
    for panel, mode in zip(panels, modes, strict=True):
        for index, (method, name) in enumerate(shown.items()):
            mine = [cell for cell in found if (cell.mode, cell.method) == (mode, method) and cell.mat is not None]
            if method == PLAIN or not mine:
                continue
            lengths, style = [cell.bucket for cell in mine], style_of(index)
            means = [cell.mat for cell in mine if cell.mat is not None]
            intervals = [mean.interval or (mean.value, mean.value) for mean in means]
            panel.plot(lengths, [mean.value for mean in means], label=name, **style)
            panel.fill_between(lengths, [low for low, _ in intervals], [high for _, high in intervals],
                               color=style["color"], alpha=0.12, linewidth=0)
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks, [length_name(length) for length in ticks])
        panel.minorticks_off()
        panel.set_xlabel("prompt tokens")
    _finish(panels, "mat")
    return figure


def _by_suite(plt: Any, found: Sequence[TableCell], shown: Mapping[str, str], modes: Sequence[str], what: str) -> Any:
    """Draws the mean over uncut prompts and its 95 % interval: a group of bars per suite, a panel per mode."""
    suites = list(dict.fromkeys(cell.suite for cell in found))
    methods = [method for method in shown if method != PLAIN]
    width = 1 / (len(methods) + 1)
    figure, panels = side_by_side(plt, modes, width=2.6 + 0.26 * len(suites) * (len(methods) + 1))
    for panel, mode in zip(panels, modes, strict=True):
        for place, method in enumerate(methods):
            centres: list[float] = []
            means: list[Mean] = []
            for cell in found:
                mean = cell.mat if what == "mat" else cell.speedup
                if (cell.mode, cell.method) == (mode, method) and mean is not None:
                    centres.append(suites.index(cell.suite) + (place - (len(methods) - 1) / 2) * width)
                    means.append(mean)
            index = list(shown).index(method)
            panel.bar(centres, [mean.value for mean in means], 0.9 * width, yerr=errors(means),
                      color=style_of(index)["color"], label=shown[method],
                      hatch=HATCHES[index // len(COLOURS) % len(HATCHES)], edgecolor="white", linewidth=0,
                      error_kw={"linewidth": 0.8, "capsize": 2})
        panel.set_axisbelow(True)
        panel.set_xticks(range(len(suites)), [suite_name(suite) for suite in suites], rotation=20, ha="right")
    _finish(panels, what)
    return figure


def _finish(panels: Sequence[Any], what: str) -> None:
    if what == "speedup":
        for panel in panels:
            panel.axhline(1.0, color="#000000", linewidth=0.8, linestyle=":")
    panels[0].set_ylabel(LABELS[what])
    panels[0].set_ylim(bottom=0)
    legend(panels)


def _frontier(plt: Any, found: Sequence[TableCell], shown: Mapping[str, str], modes: Sequence[str]) -> Any:
    """Draws speed against MAT, a point per method, averaged over lengths (the paper's Figure 1).

    The lengths are those that plain decoding has; a method that lacks one of them is left out.
    """
    figure, panels = side_by_side(plt, modes)
    highest = 1.0
    for panel, mode in zip(panels, modes, strict=True):
        here = [cell for cell in found if cell.mode == mode and cell.prompts]
        wanted = {cell.bucket for cell in here if cell.method == PLAIN} or {cell.bucket for cell in here}
        for index, (method, name) in enumerate(shown.items()):
            mine = [cell for cell in here if cell.method == method and cell.bucket in wanted]
            if len(mine) != len(wanted):
                continue
            mats = [cell.mat.value for cell in mine if cell.mat is not None]
            rates = [cell.rate[1] for cell in mine if cell.rate is not None]
            rate = sum(rates) / len(rates)
            highest = max(highest, rate)
            panel.plot(sum(mats) / len(mats), rate, linestyle="none", label=name,
                       **(style_of(index) | {"markersize": 8}))
        panel.set_xlabel(LABELS["mat"])
    panels[0].set_ylabel("tokens per second")
    panels[0].set_ylim(0, 1.1 * highest)
    legend(panels)
    return figure


def _time_by_part(plt: Any, rows: Sequence[Row], shown: Mapping[str, str]) -> Any:
    """Draws the milliseconds of a step by what they were spent on, stacked, one bar per method, over all rows."""
    figure, (panel,) = side_by_side(plt, ["time of a step"], height=0.5 * len(shown) + 1.6)
    seconds, steps = {}, {}
    for method in shown:
        mine = [row for row in rows if row.key.method == method]
        seconds[method] = summed_seconds(mine)
        steps[method] = sum(row.steps for row in mine)
    parts = [part for part in PARTS if any(part in spent for spent in seconds.values())]
    left = [0.0] * len(shown)
    for index, part in enumerate(parts):
        widths = [1e3 * seconds[method].get(part, 0.0) / steps[method] for method in shown]
        panel.barh(list(shown.values()), widths, left=left, color=COLOURS[index % len(COLOURS)], label=part)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    panel.invert_yaxis()
    panel.grid(axis="y", visible=False)
    panel.set_xlabel("milliseconds per verification step")
    panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _by_position(plt: Any, rows: Sequence[Row], shown: Mapping[str, str], modes: Sequence[str]) -> Any:
    """Draws the share of drafts that were accepted up to each position, from FEWEST drafts on."""
    figure, panels = side_by_side(plt, modes)
    for panel, mode in zip(panels, modes, strict=True):
        for index, (method, name) in enumerate(shown.items()):
            mine = [row for row in rows if (row.key.mode, row.key.method) == (mode, method)]
            if (drafts(mine) or 0) < FEWEST:
                continue
            shares = [position.raw for position in acceptance_by_position(mine)]
            panel.plot(range(1, len(shares) + 1), shares, label=name, **style_of(index))
        panel.set_xlabel("position in the draft")
    panels[0].set_ylabel("accepted share of drafts")
    panels[0].set_ylim(0, 1)
    legend(panels)
    return figure


def _by_estimate(plt: Any, rows: Sequence[Row], shown: Mapping[str, str], modes: Sequence[str]) -> Any:
    """Draws accepted share against mean estimate of the nodes in each tenth of it, with the number of nodes below."""
    figure, axes = plt.subplots(2, len(modes), figsize=(5.2 * len(modes), 5.4), sharex=True, sharey="row",
                                squeeze=False, height_ratios=(3, 1))
    for (panel, below), mode in zip(axes.T, modes, strict=True):
        panel.plot([0, 1], [0, 1], color="#000000", linewidth=0.8, linestyle=":")
        for index, (method, name) in enumerate(shown.items()):
            mine = [row for row in rows if (row.key.mode, row.key.method) == (mode, method)]
            bins = list(judged(mine, "probability").values())
            if not bins:
                continue
            below.plot([expected / nodes for nodes, expected, _ in bins], [nodes for nodes, _, _ in bins],
                       **style_of(index))
            enough = [judgement for judgement in bins if judgement[0] >= FEWEST]
            if enough:
                panel.plot([expected / nodes for nodes, expected, _ in enough],
                           [accepted / nodes for nodes, _, accepted in enough], label=name, **style_of(index))
        panel.set_title(mode)
        below.set_yscale("log")
        below.set_xlabel("estimated probability of the path")
    axes[0, 0].set_ylabel("accepted share of nodes")
    axes[1, 0].set_ylabel("nodes")
    legend(list(axes[0]))
    return figure

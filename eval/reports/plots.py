"""Figures of a sweep's rows; needs matplotlib (the extra `plot`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longgraft.config.method_roles import PLAIN
from longgraft.eval.prompts.buckets import WHOLE
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.cells import ALL, LOSSY, TableCell, acceptance_by_depth, cells, first_repeats, measured
from longgraft.eval.reports.estimates import FEWEST, judged
from longgraft.eval.reports.panels import COLOURS, HATCHES, legend, pyplot, side_by_side, style_of
from longgraft.eval.reports.report import PARTS
from longgraft.eval.reports.tables import length_name
from longgraft.eval.runs.folder import Run, numbers
from longgraft.eval.runs.rows import Failure, Result, Row
from longgraft.eval.statistics import Mean

SUFFIXES = (".svg", ".png", ".pdf")


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
    pooled = len({row.key.suite for row in good}) > 1
    found = [cell for cell in every if cell.suite == (ALL if pooled else cell.suite)]
    figures = {}
    for what, label in (("mat", "MAT: accepted tokens per step"), ("speedup", "decoding speedup")):
        if by_length := [cell for cell in found if cell.bucket != WHOLE]:
            figures[f"{what}_by_length"] = _by_length(plt, by_length, shown, modes, what, label)
        if by_suite := [cell for cell in every if cell.bucket == WHOLE]:
            figures[f"{what}_by_suite"] = _by_suite(plt, by_suite, shown, modes, what, label)
    figures |= {
        "frontier": _frontier(plt, found, shown, modes),
        "time_by_part": _time_by_part(plt, good, shown),
        "acceptance_by_depth": _by_depth(plt, good, shown, modes)}
    if any(row.by_probability for row in good if row.key.method in shown):
        figures["expected_and_accepted"] = _by_estimate(plt, good, shown, modes)
    paths = []
    for name, figure in figures.items():
        suites = name.endswith("_by_suite")
        figure.suptitle(_caption(run, every if suites else found, "suite" if suites else "length"), fontsize=9,
                        color="#444444")
        figure.tight_layout()
        paths.append(run.folder / f"{name}{suffix}")
        figure.savefig(paths[-1], metadata={"Date": None} if suffix == ".svg" else None, dpi=150, bbox_inches="tight")
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
    every = dict.fromkeys(row.key.method for row in rows)
    if labels and (unknown := [name for name in labels if name not in every]):
        raise ValueError(f"No row is of {', '.join(unknown)}. There are: {', '.join(every) or 'none'}.")
    lossy = {row.key.method: f"{row.key.method} ({LOSSY})" if row.promise == LOSSY else row.key.method for row in good}
    if shown := {name: label for name, label in (labels or lossy).items() if name in lossy}:
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


def _by_length(plt: Any, found: Sequence[TableCell], shown: Mapping[str, str], modes: Sequence[str], what: str,
               label: str) -> Any:
    """Draws the mean over prompts and its 95 % interval against prompt length, one panel per mode."""
    figure, panels = side_by_side(plt, modes)
    for panel, mode in zip(panels, modes, strict=True):
        for index, (variant, name) in enumerate(shown.items()):
            points = {c.bucket: getattr(c, what) for c in found
                      if c.mode == mode and c.method == variant and getattr(c, what)}
            if variant == PLAIN or not points:
                continue
            style = style_of(index)
            panel.plot(list(points), [mean.value for mean in points.values()], label=name, **style)
            ends = [mean.interval or (mean.value, mean.value) for mean in points.values()]
            panel.fill_between(list(points), [low for low, _ in ends], [high for _, high in ends],
                               color=style["color"], alpha=0.12, linewidth=0)
        ticks = sorted({c.bucket for c in found})
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks, [length_name(n) for n in ticks])
        panel.minorticks_off()
        panel.set_xlabel("prompt tokens")
    _finish(panels, what, label)
    return figure


def _by_suite(plt: Any, found: Sequence[TableCell], shown: Mapping[str, str], modes: Sequence[str], what: str,
              label: str) -> Any:
    """Draws the mean over uncut prompts and its 95 % interval: a group of bars per suite, a panel per mode."""
    suites = list(dict.fromkeys(cell.suite for cell in found))
    others = [(index, variant, name) for index, (variant, name) in enumerate(shown.items()) if variant != PLAIN]
    figure, panels = side_by_side(plt, modes, width=2.6 + 0.26 * len(suites) * (len(others) + 1))
    for panel, mode in zip(panels, modes, strict=True):
        for place, (index, variant, name) in enumerate(others):
            points = {suites.index(c.suite) + (place - (len(others) - 1) / 2) / (len(others) + 1): getattr(c, what)
                      for c in found if c.mode == mode and c.method == variant and getattr(c, what)}
            panel.bar(list(points), [mean.value for mean in points.values()], 0.9 / (len(others) + 1),
                      yerr=_errors(list(points.values())), color=style_of(index)["color"], label=name,
                      hatch=HATCHES[index // len(COLOURS) % len(HATCHES)], edgecolor="white", linewidth=0,
                      error_kw={"linewidth": 0.8, "capsize": 2})
        panel.set_axisbelow(True)
        panel.set_xticks(range(len(suites)), [suite_name(suite) for suite in suites], rotation=20, ha="right")
    _finish(panels, what, label)
    return figure


def _errors(means: Sequence[Mean]) -> list[list[float]]:
    """Returns how far each interval extends below and above its mean; 0 if there is none."""
    ends = [(mean.value, *(mean.interval or (mean.value, mean.value))) for mean in means]
    return [[value - low for value, low, _ in ends], [high - value for value, _, high in ends]]


def _finish(panels: Sequence[Any], what: str, label: str) -> None:
    if what == "speedup":
        for panel in panels:
            panel.axhline(1.0, color="#000000", linewidth=0.8, linestyle=":")
    panels[0].set_ylabel(label)
    panels[0].set_ylim(bottom=0)
    legend(panels)


def _frontier(plt: Any, found: Sequence[TableCell], shown: Mapping[str, str], modes: Sequence[str]) -> Any:
    """Draws speed against MAT, a point per method, averaged over lengths (the paper's Figure 1).

    The lengths are those that plain decoding has; a method that lacks one of them is left out.
    """
    figure, panels = side_by_side(plt, modes)
    for panel, mode in zip(panels, modes, strict=True):
        here = [c for c in found if c.mode == mode and c.mat and c.rate]
        wanted = {c.bucket for c in here if c.method == PLAIN} or {c.bucket for c in here}
        for index, (variant, name) in enumerate(shown.items()):
            mine = [c for c in here if c.method == variant and c.bucket in wanted]
            if len(mine) == len(wanted):
                mats, rates = [c.mat.value for c in mine if c.mat], [c.rate[1] for c in mine if c.rate]
                panel.plot(sum(mats) / len(mats), sum(rates) / len(rates), linestyle="none", label=name,
                           **(style_of(index) | {"markersize": 8}))
        panel.set_xlabel("MAT: accepted tokens per step")
    panels[0].set_ylabel("tokens per second")
    panels[0].set_ylim(0, 1.1 * max((c.rate[1] for c in found if c.rate), default=1.0))
    legend(panels)
    return figure


def _time_by_part(plt: Any, rows: Sequence[Row], shown: Mapping[str, str]) -> Any:
    """Draws the milliseconds of a step by what they were spent on, stacked, one bar per method, over all rows."""
    figure, (panel,) = side_by_side(plt, ["time of a step"], height=0.5 * len(shown) + 1.6)
    bottoms = dict.fromkeys(shown, 0.0)
    for index, part in enumerate(PARTS):
        widths = []
        for variant in shown:
            mine = [row for row in rows if row.key.method == variant]
            steps = sum(row.steps for row in mine)
            widths.append(1e3 * sum(row.seconds_by_part.get(part, 0.0) for row in mine) / steps)
        panel.barh(list(shown.values()), widths, left=list(bottoms.values()), color=COLOURS[index], label=part)
        bottoms = {variant: left + width for (variant, left), width in zip(bottoms.items(), widths, strict=True)}
    panel.invert_yaxis()
    panel.grid(axis="y", visible=False)
    panel.set_xlabel("milliseconds per verification step")
    panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _by_depth(plt: Any, rows: Sequence[Row], shown: Mapping[str, str], modes: Sequence[str]) -> Any:
    """Draws the share of the steps that reached a depth and accepted there."""
    figure, panels = side_by_side(plt, modes)
    for panel, mode in zip(panels, modes, strict=True):
        for index, (variant, name) in enumerate(shown.items()):
            mine = [row for row in first_repeats(rows) if (row.key.mode, row.key.method) == (mode, variant)]
            shares = acceptance_by_depth(mine) if variant != PLAIN else []
            counts = Counter(a for row in mine for a in row.accepted_per_step)
            # A share of fewer than thirty steps means little.
            shares = [s for d, s in enumerate(shares) if sum(n for a, n in counts.items() if a >= d) >= 30]
            if shares:
                panel.plot(range(1, len(shares) + 1), shares, label=name, **style_of(index))
        panel.set_xlabel("depth in the tree")
    panels[0].set_ylabel("accepted, of those that came so far")
    panels[0].set_ylim(0, 1)
    legend(panels)
    return figure


def _by_estimate(plt: Any, rows: Sequence[Row], shown: Mapping[str, str], modes: Sequence[str]) -> Any:
    """Draws accepted share against mean estimate of the nodes in each tenth of it, with the number of nodes below."""
    figure, axes = plt.subplots(2, len(modes), figsize=(5.2 * len(modes), 5.4), sharex=True, sharey="row",
                                squeeze=False, height_ratios=(3, 1))
    for (panel, below), mode in zip(axes.T, modes, strict=True):
        panel.plot([0, 1], [0, 1], color="#000000", linewidth=0.8, linestyle=":")
        for index, (variant, name) in enumerate(shown.items()):
            found = judged([row for row in rows if (row.key.mode, row.key.method) == (mode, variant)], "probability")
            means = [(expected / nodes, accepted / nodes, nodes) for nodes, expected, accepted in found.values()]
            if means:
                below.plot([mean for mean, _, _ in means], [nodes for _, _, nodes in means], **style_of(index))
            if enough := [(mean, share) for mean, share, nodes in means if nodes >= FEWEST]:
                panel.plot(*zip(*enough, strict=True), label=name, **style_of(index))
        panel.set_title(mode)
        below.set_yscale("log")
        below.set_xlabel("estimated probability of the path")
    axes[0, 0].set_ylabel("accepted share of nodes")
    axes[1, 0].set_ylabel("nodes")
    legend(list(axes[0]))
    return figure

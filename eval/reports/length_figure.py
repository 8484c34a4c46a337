"""The figure that answers first: speed-up by prompt length with intervals, and beside it what reading costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

from longgraft.config.method_roles import PLAIN
from longgraft.eval.reports.cells import TableCell
from longgraft.eval.reports.overview import fastest
from longgraft.eval.reports.panels import COLOURS, HATCHES, legend, style_of
from longgraft.eval.reports.tables import length_name
from longgraft.eval.statistics import Mean

GROUP = 0.84                    # width of a length's group of bars; the groups are one apart
READING, ANSWER = "#DDDDDD", "#555555"      # reading, and plain decoding's answer: grey, because no method changes them


def speedup_by_length(plt: Any, found: Sequence[TableCell], shown: Mapping[str, str], modes: Sequence[str],
                      default: str) -> Any:
    """Draws a panel of speed-ups for each mode, and the seconds of a request in the first one.

    Args:
        plt: matplotlib's pyplot.
        found: The cells of all suites together.
        shown: Method -> its name in the legend.
        modes: The modes, in order.
        default: The method whose answers are timed beside plain decoding's; the fastest one if it was not measured.
    """
    widths = [5.6] * len(modes) + [4.2]
    figure, axes = plt.subplots(1, len(widths), figsize=(sum(widths), 4.0), width_ratios=widths, squeeze=False)
    *panels, seconds = axes[0]
    for panel, mode in zip(panels, modes, strict=True):
        title = "Decoding speed, with 95 % intervals over prompts"
        panel.set_title(title if len(modes) == 1 else mode)
        _speeds(panel, [cell for cell in found if cell.mode == mode], shown, default)
    panels[0].set_ylabel("times plain decoding")
    first = [cell for cell in found if cell.mode == modes[0]]
    _seconds(seconds, first, shown, _timed(first, shown, default))
    legend([*panels, seconds])
    return figure


def _speeds(panel: Any, found: Sequence[TableCell], shown: Mapping[str, str], default: str) -> None:
    """Draws a group of bars for each length, the fastest method first; they begin at plain decoding's speed."""
    cells = [cell for cell in found if cell.method in shown and cell.method != PLAIN and cell.speedup is not None]
    lengths = sorted({cell.bucket for cell in cells})
    methods = _fastest_first(cells)
    names, width = list(shown), GROUP / max(1, len(methods))
    for place, method in enumerate(methods):
        index = names.index(method)
        label = f"{shown[method]} (default)" if method == default else shown[method]
        centres, means = [], []
        for cell in cells:
            if cell.method == method and cell.speedup is not None:
                centres.append(lengths.index(cell.bucket) + (place - (len(methods) - 1) / 2) * width)
                means.append(cell.speedup)
                if cell is fastest([other for other in cells if other.bucket == cell.bucket]):
                    _write_above(panel, centres[-1], cell.speedup)
        panel.bar(centres, [mean.value - 1 for mean in means], 0.92 * width, bottom=1.0, yerr=errors(means),
                  color=style_of(index)["color"], hatch=HATCHES[index // len(COLOURS) % len(HATCHES)],
                  edgecolor="white", linewidth=0, label=label,
                  error_kw={"linewidth": 1.0, "capsize": 2.5, "ecolor": "#222222"})
    panel.axhline(1.0, color="#000000", linewidth=1.0)
    panel.annotate("plain\ndecoding", (1.0, 1.0), (3, 0), xycoords=("axes fraction", "data"),
                   textcoords="offset points", fontsize=8, va="center")
    panel.set_axisbelow(True)
    panel.margins(y=0.12)
    panel.set_ylim(bottom=0)
    panel.set_xticks(range(len(lengths)), [_tick(cells, length) for length in lengths])
    panel.set_xlabel("prompt tokens")


def _write_above(panel: Any, centre: float, mean: Mean) -> None:
    top = mean.value if mean.interval is None else mean.interval[1]
    panel.annotate(f"{mean.value:.2f}", (centre, max(1.0, top)), (0, 3), textcoords="offset points", fontsize=9,
                   ha="center", fontweight="bold")


def _fastest_first(cells: Sequence[TableCell]) -> list[str]:
    """Returns the methods by their speed-up at the shortest length that they have."""
    order = sorted(cells, key=lambda cell: (cell.bucket, -cell.speedup.value if cell.speedup else 0.0))
    return list(dict.fromkeys(cell.method for cell in order))


def _tick(cells: Sequence[TableCell], length: int) -> str:
    prompts = max(cell.prompts for cell in cells if cell.bucket == length)
    return f"{length_name(length)}\n{prompts} prompt{'s' * (prompts != 1)}"


def errors(means: Sequence[Mean]) -> list[list[float]]:
    """Returns how far each interval extends below and above its mean; not a number, so no bar, if there is none."""
    below, above = [], []
    for mean in means:
        low, high = mean.interval or (nan, nan)
        below.append(mean.value - low)
        above.append(high - mean.value)
    return [below, above]


def _timed(found: Sequence[TableCell], shown: Mapping[str, str], default: str) -> str | None:
    """Returns the method whose seconds are drawn; None if none was compared with plain decoding."""
    here = [cell for cell in found if cell.method in shown]
    if any(cell.method == default and cell.speedup is not None for cell in here):
        return default
    best = fastest(here)
    return None if best is None else best.method


def _seconds(panel: Any, found: Sequence[TableCell], shown: Mapping[str, str], timed: str | None) -> None:
    """Draws two bars for each length, plain decoding's and one method's: reading the prompt, then the answer."""
    cells = [cell for cell in found if cell.method in (PLAIN, timed) and cell.answer_seconds is not None]
    cells.sort(key=lambda cell: (cell.bucket, cell.method != PLAIN))
    names, labels = list(shown), {PLAIN: "plain", timed: shown.get(timed or "", "")}
    for place, cell in enumerate(cells):
        reading, answer = cell.prefill_seconds or 0.0, cell.answer_seconds or 0.0
        colour = ANSWER if cell.method == PLAIN else style_of(names.index(cell.method))["color"]
        panel.barh(place, reading, color=READING)
        panel.barh(place, answer, left=reading, color=colour)
        panel.annotate(f"{reading:.1f} + {answer:.1f}", (reading + answer, place), (4, 0), textcoords="offset points",
                       va="center", fontsize=8)
    panel.set_title("Seconds: reading (grey) + answer")
    panel.set_yticks(range(len(cells)), [f"{length_name(cell.bucket)} {labels[cell.method]}" for cell in cells])
    panel.invert_yaxis()
    panel.grid(axis="y", visible=False)
    panel.grid(axis="x", visible=True)
    panel.margins(x=0.32)
    panel.set_xlim(left=0)
    panel.set_xlabel("seconds of a request")

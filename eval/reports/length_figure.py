"""The figure that answers first: speed-up by prompt length, and beside it what reading costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longgraft.config.method_roles import PLAIN
from longgraft.eval.reports.cells import TableCell
from longgraft.eval.reports.groups import grouped
from longgraft.eval.reports.overview import fastest, most_prompts
from longgraft.eval.reports.panels import bars, legend, places, style_of
from longgraft.eval.reports.tables import length_name, prompt_count
from longgraft.eval.statistics import Mean

GROUP = 0.84  # width of a length's group of bars; the groups are one apart
READING = "#DDDDDD"  # light grey, because no method changes it


def speedup_by_length(
    plt: Any, cells: Sequence[TableCell], shown: Mapping[str, str], modes: Sequence[str], default: str
) -> Any:
    """Draws a panel of speed-ups for each mode, and the seconds of a request in the first one.

    Args:
        cells: The cells of all suites together.
        shown: Method -> its name in the legend.
        default: The method whose answers are timed beside plain decoding's; the fastest if it was not measured.
    """
    widths = [5.6] * len(modes) + [4.2]
    figure, axes = plt.subplots(1, len(widths), figsize=(sum(widths), 4.0), width_ratios=widths, squeeze=False)
    *panels, seconds = axes[0]
    cells_by_mode = grouped(cells, lambda cell: cell.mode)
    for panel, mode in zip(panels, modes, strict=True):
        title = "Decoding speed" if len(modes) == 1 else mode
        panel.set_title(title + _intervals(cells_by_mode[mode], shown))
        _speeds(panel, cells_by_mode[mode], shown, default)
    panels[0].set_ylabel("times plain decoding")
    first = cells_by_mode[modes[0]]
    _seconds(seconds, first, shown, _timed(first, shown, default))
    legend([*panels, seconds])
    return figure


def _intervals(cells: Sequence[TableCell], shown: Mapping[str, str]) -> str:
    """Returns the words on the intervals, or "" if there are too few prompts for any."""
    drawn = [cell.speedup for cell in cells if cell.method in shown and cell.method != PLAIN]
    if any(mean is not None and mean.interval is not None for mean in drawn):
        return ", with 95 % intervals over prompts"
    return ""


def _speeds(panel: Any, cells: Sequence[TableCell], shown: Mapping[str, str], default: str) -> None:
    """Draws a group of bars for each length, the fastest method first, from plain decoding's speed on."""
    compared = [cell for cell in cells if cell.speedup is not None and cell.method != PLAIN]
    drawn = [cell for cell in compared if cell.method in shown]
    cells_by_length = grouped(drawn, lambda cell: cell.bucket)
    lengths = sorted(cells_by_length)
    drawn.sort(key=lambda cell: (cell.bucket, -cell.speed))
    cells_by_method = grouped(drawn, lambda cell: cell.method)
    width = GROUP / max(1, len(cells_by_method))
    for place, (method, cells_of_method) in enumerate(cells_by_method.items()):
        offset = (place - (len(cells_by_method) - 1) / 2) * width
        centres = []
        means = []
        for cell in cells_of_method:
            if cell.speedup is not None:
                centre = lengths.index(cell.bucket) + offset
                centres.append(centre)
                means.append(cell.speedup)
                if cell is fastest(cells_by_length[cell.bucket]):
                    _write_above(panel, centre, cell.speedup)
        label = shown[method]
        if method == default:
            label += " (default)"
        bars(
            panel,
            centres,
            means,
            places(shown)[method],
            width=0.92 * width,
            bottom=1.0,
            label=label,
            error_kw={"linewidth": 1.0, "capsize": 2.5, "ecolor": "#222222"},
        )
    panel.axhline(1.0, color="#000000", linewidth=1.0)
    panel.annotate(
        "plain\ndecoding",
        (1.0, 1.0),
        (3, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        fontsize=8,
        va="center",
    )
    panel.set_axisbelow(True)
    panel.margins(y=0.12)
    panel.set_ylim(bottom=0)
    ticks = []
    for length in lengths:
        prompts = prompt_count(most_prompts(cells_by_length[length]))
        ticks.append(f"{length_name(length)}\n{prompts}")
    panel.set_xticks(range(len(lengths)), ticks)
    panel.set_xlabel("prompt tokens")


def _write_above(panel: Any, centre: float, mean: Mean) -> None:
    top = mean.value
    if mean.interval is not None:
        top = mean.interval[1]
    panel.annotate(
        f"{mean.value:.2f}",
        (centre, max(1.0, top)),
        (0, 3),
        textcoords="offset points",
        fontsize=9,
        ha="center",
        fontweight="bold",
    )


def _timed(cells: Sequence[TableCell], shown: Mapping[str, str], default: str) -> str | None:
    """Returns the method whose seconds are drawn; None if none was compared with plain decoding."""
    candidates = []
    for cell in cells:
        if cell.method == default and cell.speedup is not None and default in shown:
            return default
        if cell.method in shown:
            candidates.append(cell)
    best = fastest(candidates)
    if best is None:
        return None
    return best.method


def _seconds(panel: Any, cells: Sequence[TableCell], shown: Mapping[str, str], timed: str | None) -> None:
    """Draws two bars for each length, plain decoding's and a method's: reading, then the answer."""
    drawn = [cell for cell in cells if cell.method in (PLAIN, timed) and cell.answer_seconds is not None]
    drawn.sort(key=lambda cell: (cell.bucket, cell.method != PLAIN))
    numbers = places(shown) | places([PLAIN])
    ticks = []
    for place, cell in enumerate(drawn):
        name = "plain"
        if cell.method != PLAIN:
            name = shown[cell.method]
        colour = style_of(numbers[cell.method])["color"]
        reading = cell.prefill_seconds or 0.0
        answer = cell.answer_seconds or 0.0
        panel.barh(place, reading, color=READING)
        panel.barh(place, answer, left=reading, color=colour)
        panel.annotate(
            f"{reading:.1f} + {answer:.1f}",
            (reading + answer, place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
        ticks.append(f"{length_name(cell.bucket)} {name}")
    panel.set_title("Seconds: reading (grey) + answer")
    panel.set_yticks(range(len(drawn)), ticks)
    panel.invert_yaxis()
    panel.grid(axis="y", visible=False)
    panel.grid(axis="x", visible=True)
    panel.margins(x=0.32)
    panel.set_xlim(left=0)
    panel.set_xlabel("seconds of a request")

"""Panels, colours and legends that a run's figures share; needs matplotlib (the extra `plot`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from longgraft.eval.statistics import Mean
from longgraft.files.whole_files import written_whole

# Okabe and Ito's palette: distinct for colour-blind readers and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = "osD^vPX*"
HATCHES = ("", "///", "...", "xxx", "---", "+++", "ooo", "|||")
# The number of a method's style is its place here, so it looks the same in every figure. The first eight, which are
# most often compared, have a colour each; later ones share it, with another marker and hatch.
# fmt: off
METHODS = (
    "graft-x", "suffix", "graft-x-text", "eagle3", "graft", "pld", "ar", "samd",
    "retrieval", "token-recycling", "rest", "lookahead", "graft-hb", "pld+", "adapld", "logitspec",
    "samd-recycling", "samd-eagle3", "suffix-eagle3", "sps", "sps-gumbel", "ddd", "svip", "echo",
    "talon", "mtp", "medusa", "medusa-typical", "dflash", "dflash-tree", "graft-dflash", "magicdec",
    "triforce", "tokenswift", "specpv", "specpv-exact", "longspec",
)
# fmt: on
STYLES = len(COLOURS) * len(MARKERS)  # number of styles that differ

Item = TypeVar("Item")


def pyplot() -> Any:
    """Returns matplotlib's pyplot, without a screen; an ImportError names the extra."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("Plots need matplotlib. Install it: pip install 'longgraft[plot]'.") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams |= {
        "svg.hashsalt": "longgraft",
        "font.size": 10,
        "legend.frameon": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.linewidth": 0.4,
    }
    return plt


def side_by_side(plt: Any, titles: Sequence[str], height: float = 3.8, width: float = 5.2) -> tuple[Any, list[Any]]:
    """Returns a figure and its panels, which share a vertical axis; height, width: inches of each panel."""
    size = (width * len(titles), height)
    figure, axes = plt.subplots(1, len(titles), figsize=size, sharey=True, squeeze=False)
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title)
    return figure, list(axes[0])


def style_of(index: int) -> dict[str, Any]:
    """Returns one of 64 combinations: the markers move on by one after every eight methods."""
    marker = (index + index // len(COLOURS)) % len(MARKERS)
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[marker], "markersize": 5}


def places(methods: Iterable[str]) -> dict[str, int]:
    """Returns the number of each method's style, the same in all figures of these methods.

    A name that is not in METHODS, such as a variant, begins at a number made from it, and moves on to the colour
    that is used least.
    """
    methods = list(methods)
    taken = {method: METHODS.index(method) for method in methods if method in METHODS}
    for method in methods:
        if method not in taken:
            start = crc32(method.encode())
            colours = Counter(place % len(COLOURS) for place in taken.values())
            used = set(taken.values())
            taken[method] = min(
                ((start + step) % STYLES for step in range(STYLES)),
                key=lambda place: (place in used, colours[place % len(COLOURS)]),
            )
    return taken


def bars(panel: Any, centres: Sequence[float], means: Sequence[Mean], index: int, **style: Any) -> None:
    """Draws a bar for each mean, with its interval.

    index: the number of the method's style; style: more options of matplotlib's `bar`
    """
    bottom = style.get("bottom", 0.0)
    heights = []
    below = []
    above = []
    for mean in means:
        low, high = mean.interval or (nan, nan)  # not a number: no interval is drawn
        heights.append(mean.value - bottom)
        below.append(mean.value - low)
        above.append(high - mean.value)
    panel.bar(
        centres,
        heights,
        yerr=[below, above],
        color=COLOURS[index % len(COLOURS)],
        hatch=HATCHES[index // len(COLOURS) % len(HATCHES)],
        edgecolor="white",
        linewidth=0,
        **style,
    )


def series(
    items: Mapping[tuple[str, str], list[Item]], shown: Mapping[str, str], mode: str
) -> Iterator[tuple[str, dict[str, Any], list[Item]]]:
    """Yields the name in the legend, the style and the items of each method that has any in this mode.

    items: the cells or rows by mode and method
    """
    numbers = places(shown)
    for method, name in shown.items():
        if (mode, method) in items:
            yield name, style_of(numbers[method]), items[mode, method]


def finish(panels: Sequence[Any], label: str, top: float | None = None) -> None:
    """Labels and limits the vertical axis, and draws the legend."""
    panels[0].set_ylabel(label)
    panels[0].set_ylim(0, top)
    legend(panels)


def legend(panels: Sequence[Any]) -> None:
    """Draws one legend for all panels below them: eleven methods beside them would leave no room."""
    named: dict[str, Any] = {}
    for panel in panels:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    columns = 5
    if len(panels) == 1:
        columns = 3
    if named:
        panels[0].figure.legend(
            named.values(), named.keys(), loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=min(len(named), columns)
        )


def save(plt: Any, figure: Any, caption: str, path: Path) -> None:
    """Writes a figure under its caption, without a date, and closes it."""
    figure.suptitle(caption, fontsize=9, color="#444444")
    figure.tight_layout()
    metadata = None
    if path.suffix == ".svg":
        metadata = {"Date": None}
    with written_whole(path) as part:
        figure.savefig(part, format=path.suffix[1:], metadata=metadata, dpi=150, bbox_inches="tight")
    plt.close(figure)

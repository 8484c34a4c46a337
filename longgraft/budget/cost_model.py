"""The cost model: seconds of a decode step's parts: a target pass, a draft level, feeding the drafter, the rest.

The numbers are measured by `cost_measurement.py`, or come from a sweep's rows.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from longgraft.files.data_files import read_table
from longgraft.files.new_paths import new_file
from longgraft.files.whole_files import write_whole

Grid = Mapping[int, Mapping[int, float]]
"""prefix tokens -> rows -> seconds"""
Points = Sequence[tuple[int, float]]
"""(rows, seconds), ascending in both"""

FORM = (
    'It needs key, source, passes {"4096": {"1": ms, "16": ms}}, levels and feeds (likewise, {} without a '
    "drafter) "
    "and host (ms)."
)
TABLES = ("passes", "levels", "feeds")


@dataclass(frozen=True)
class Costs:
    """Seconds on one machine, by tokens of the prefix and rows of the pass."""

    # All that costs depend on: model, drafter, dtype, device, attention, threads; absent names do not matter.
    key: Mapping[str, str]
    source: str  # how they were measured, or from which rows they were taken
    passes: Grid  # a target pass, including draw and walk
    levels: Grid  # one draft level: forward, head, top-k, scores; empty without a drafter
    feeds: Grid  # feeding observed tokens into the drafter's cache and reading the root's candidates; empty without one
    host: float = 0.0  # the rest of a step: proposing and observing

    def verify(self, rows: int, prefix: int) -> float:
        """Returns the seconds of a target pass."""
        return along(curve(self.passes, prefix), rows)

    def level(self, rows: int, prefix: int) -> float:
        """Returns the seconds of a draft level that feeds `rows` nodes."""
        return along(curve(self.levels, prefix), rows)

    def feed(self, rows: int, prefix: int) -> float:
        """Returns the seconds of feeding `rows` observed tokens into the drafter's cache, up to the root's
        candidates."""
        return along(curve(self.feeds, prefix), rows)

    def fits(self, key: Mapping[str, str]) -> list[str]:
        """Describes in words how a session's key differs from these costs'; empty if it does not."""
        return [
            f"{name} {key.get(name, 'none')} instead of {value}"
            for name, value in self.key.items()
            if key.get(name, "none") != value
        ]

    def lines(self) -> list[str]:
        """Returns lines for people: the key, and one table of milliseconds per part."""
        lines = [", ".join(f"{name} {value}" for name, value in self.key.items()), f"source: {self.source}"]
        for name in TABLES:
            grid = getattr(self, name)
            if grid:
                lines += _table_of(f"{name}, ms", grid)
        return [*lines, f"{'host, ms':<16}{1e3 * self.host:>10.2f}"]

    def save(self, path: Path) -> None:
        """Writes the file that `load` reads, in milliseconds; raises ValueError if the file exists."""
        path = new_file(path)
        table: dict[str, Any] = {"unit": "ms", "key": dict(self.key), "source": self.source}
        for name in TABLES:
            grid = sorted(getattr(self, name).items())
            table[name] = {}
            for prefix, row in grid:
                table[name][str(prefix)] = {str(rows): round(1e3 * spent, 4) for rows, spent in sorted(row.items())}
        table["host"] = round(1e3 * self.host, 4)
        write_whole(path, json.dumps(table, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Costs:
        """Reads JSON as `save` writes it; raises ValueError with what is missing or impossible, and where."""
        table = read_table(
            path, {"key": dict, "source": str, "passes": dict, "levels": dict, "feeds": dict, "host": (int, float)}
        )
        unknown = sorted(table.keys() - {"unit", "key", "source", "host", *TABLES})
        if unknown:
            raise ValueError(f"{path} has {', '.join(unknown)}, which is unknown. {FORM}")
        unit = table.get("unit", "ms")
        if unit != "ms":
            raise ValueError(f"{path} is in {json.dumps(unit)[:20]}; milliseconds are needed. {FORM}")
        if not all(isinstance(text, str) for text in table["key"].values()):
            raise ValueError(f"{path}, key: {json.dumps(table['key'])[:60]} must be text by name. {FORM}")
        if not table["passes"]:
            raise ValueError(f"{path} has no passes. {FORM}")
        grids = {name: _grid(table[name], f"{path}, {name}") for name in TABLES}
        if any(seconds == 0.0 for row in grids["passes"].values() for seconds in row.values()):
            raise ValueError(f"{path}, passes: found 0 milliseconds; a pass takes some time. {FORM}")
        return cls(table["key"], table["source"], **grids, host=_seconds(table["host"], f"{path}, host"))


def _table_of(title: str, grid: Grid) -> list[str]:
    """Returns the lines of a table of milliseconds for people."""
    columns = sorted({rows for row in grid.values() for rows in row})
    lines = [f"{title:<16}" + "".join(f"{f'{rows} rows':>10}" for rows in columns)]
    for prefix, row in sorted(grid.items()):
        cells = [f"{1e3 * row[rows]:.2f}" if rows in row else "-" for rows in columns]
        lines.append(f"{f'{prefix:,} tokens':<16}" + "".join(f"{cell:>10}" for cell in cells))
    return lines


def _grid(table: dict[str, Any], where: str) -> Grid:
    grid: dict[int, dict[int, float]] = {}
    for prefix, row in table.items():
        if not prefix.isdecimal() or not isinstance(row, dict) or not row:
            raise ValueError(
                f"{where}: found {prefix!r}: {json.dumps(row)[:40]}; prefix tokens and an "
                f"object of rows are needed. {FORM}"
            )
        wrong = [rows for rows in row if not rows.isdecimal() or int(rows) < 1]
        if wrong:
            raise ValueError(f"{where} at {prefix}: {wrong[0]!r} is no number of rows. {FORM}")
        grid[int(prefix)] = {int(rows): _seconds(ms, f"{where} of {rows} rows at {prefix}") for rows, ms in row.items()}
    return grid


def _seconds(milliseconds: Any, where: str) -> float:
    if type(milliseconds) not in (int, float) or not 0 <= milliseconds < math.inf:
        raise ValueError(f"{where}: {json.dumps(milliseconds)[:40]} must be milliseconds, 0 or more.")
    return milliseconds / 1e3


def curve(grid: Grid, prefix: int) -> list[tuple[int, float]]:
    """Returns (rows, seconds) at this prefix for all rows of the table, never negative.

    Costs are linear between measured points and beyond them, with three rules.  Below the shortest prefix they are at
    least half of that prefix's costs, and below the fewest rows at least half of theirs, because extrapolation would
    reach zero.  They never fall with rows or prefix, because noise only adds time.  A slow machine has no time to
    measure all rows at each prefix: beyond the measured rows, costs grow as at the prefix with most rows.
    """
    lengths = sorted(grid)
    fullest = sorted(max(grid.values(), key=len).items())
    lines = [_extended(sorted(grid[length].items()), fullest) for length in lengths]
    points = []
    for rows in sorted({rows for line in lines for rows, _ in line}):
        spent = _rising([max(along(line, rows), line[0][1] / 2) for line in lines])
        points.append((rows, max(along(list(zip(lengths, spent, strict=True)), prefix), spent[0] / 2)))
    return _never_falling(points)


def _extended(line: Points, fullest: Points) -> Points:
    """Extends a line by further rows, whose cost grows as on the fullest line."""
    most, seconds = line[-1]
    return [
        *line,
        *((rows, seconds + along(fullest, rows) - along(fullest, most)) for rows, _ in fullest if rows > most),
    ]


def _never_falling(points: Points) -> list[tuple[int, float]]:
    return list(zip([rows for rows, _ in points], _rising([seconds for _, seconds in points]), strict=True))


def _rising(values: Sequence[float]) -> list[float]:
    """Lowers each value to the least of the values from it on."""
    return list(accumulate(reversed(values), min))[::-1]


def along(points: Points, at: int) -> float:
    """Returns seconds, piecewise linear through the points and extrapolated by the end pieces; never negative."""
    if len(points) == 1:
        return points[0][1]
    after = min(max(bisect_left(points, (at,)), 1), len(points) - 1)
    (left, low), (right, high) = points[after - 1], points[after]
    return max(0.0, low + (high - low) * (at - left) / (right - left))


# Bound of a logarithm: a pass that a busy machine made 5 times as slow counts as 1.28 times as slow.
OUTLIER = 0.25
OWN = 0.3  # share of a difference that corrects the costs of these rows, of drafts or of proposals
# Share of a difference that corrects all costs: mostly the whole machine became slower or faster.
SHARED = 0.05
KEPT_CURVES = 192  # curves after which all are dropped; a request needs three per 16 tokens
FARTHER = 2  # times as long as all measured ones: a prefix at which costs are measured anew


CostState = tuple[float, float, float | None, dict[int, float]]


class LiveCosts:
    """Costs that are corrected by timed steps; frozen costs stay fixed, so that decisions repeat."""

    def __init__(
        self, costs: Costs, frozen: bool = False, measure: Callable[[int, float], Costs] | None = None
    ) -> None:
        """measure: (prefix, seconds) -> the costs with those at one more prefix, measured in about so many seconds"""
        self.costs = costs
        self.frozen = frozen
        self.measure = measure
        self.reached = max(costs.passes)
        # Logarithms of the slowdown against `costs`: of everything, of drafts beyond that, and of passes by rows.
        self._machine = self._drafts = 0.0
        self._proposal: float | None = None  # seconds of a proposal
        self._by_rows = self._no_slowdown()
        self._measured: dict[tuple[str, int], Points] = {}  # uncorrected curves by name and prefix

    def _no_slowdown(self) -> dict[int, float]:
        """Returns 0 for each number of rows that was measured."""
        return dict.fromkeys({rows for row in self.costs.passes.values() for rows in row}, 0.0)

    def reach(self, prefix: int, seconds: float) -> None:
        """Measures the costs at this prefix if it is `FARTHER` times as long as any that was measured.

        Extrapolated that far, the noise of the measured ones would decide.

        Args:
            prefix: In tokens.
            seconds: Time that it may take.
        """
        if self.measure is None or self.frozen or prefix < FARTHER * self.reached:
            return
        self.costs = self.measure(prefix, seconds)
        self.reached = prefix
        self._by_rows = self._no_slowdown() | self._by_rows
        self._measured.clear()

    def state(self) -> CostState:
        """Returns a copy of all that was learnt from timed steps."""
        return self._machine, self._drafts, self._proposal, dict(self._by_rows)

    def restore(self, state: CostState) -> None:
        """Goes back to a `state`."""
        self._machine, self._drafts, self._proposal, by_rows = state
        self._by_rows = self._no_slowdown() | by_rows

    def copy(self) -> LiveCosts:
        """Returns an independent copy."""
        copied = LiveCosts(self.costs, self.frozen, self.measure)
        copied.reached = self.reached
        copied.restore(self.state())
        return copied

    def verify(self, rows: int, prefix: int) -> float:
        """Like `Costs.verify`, corrected; the next three methods correspond likewise."""
        return along(self._curve("passes", prefix), rows)

    def verify_up_to(self, rows: int, prefix: int) -> Sequence[float]:
        """Returns the seconds of passes of 0, 1, 2 .. rows."""
        points = self._curve("passes", prefix)
        measured = [count for count, _ in points if count <= rows]
        grid = sorted({0, rows, *measured})
        return np.interp(np.arange(rows + 1), grid, [along(points, count) for count in grid]).tolist()

    def level(self, rows: int, prefix: int) -> float:
        return along(self._curve("levels", prefix), rows)

    def feed(self, rows: int, prefix: int) -> float:
        return along(self._curve("feeds", prefix), rows)

    def timed(self, rows: int, prefix: int, seconds: float) -> None:
        """Learns that a target pass took this long."""
        slowdown = self._by_rows
        measured = sorted(slowdown)
        after = min(bisect_left(measured, rows), len(measured) - 1)
        left = measured[max(0, after - 1)]  # the measured rows around these
        right = measured[after]
        share = 1.0
        if left < right:
            share = min(1.0, math.log(rows / left) / math.log(right / left))
        corrected = self._machine + (1.0 - share) * slowdown[left] + share * slowdown[right]
        moved = self._moved(along(self._points("passes", prefix), rows) * math.exp(corrected), seconds)
        self._machine += SHARED * moved
        slowdown[left] += OWN * moved * (1.0 - share)
        slowdown[right] += OWN * moved * share

    def drafted(self, expected: float, seconds: float) -> None:
        """Learns that a draft, including feeding, took `seconds` where `expected` seconds were expected."""
        self._drafts += OWN * self._moved(expected, seconds)

    @property
    def proposal(self) -> float:
        """Seconds of a proposal by a source without levels, as timed; before the first, and if frozen, `host`."""
        if self._proposal is None:
            return self.costs.host
        return self._proposal

    def proposed(self, seconds: float) -> None:
        """Learns that such a proposal took this long."""
        if not self.frozen and seconds > 0.0:
            before = self._proposal or seconds
            self._proposal = before * math.exp(OWN * self._moved(before, seconds))

    def _moved(self, expected: float, seconds: float) -> float:
        """Returns the logarithm of the slowdown; 0 if costs are frozen or a time is 0.

        It is bounded, because noise only adds time.
        """
        if self.frozen or min(expected, seconds) <= 0.0:
            return 0.0
        return min(math.log(seconds / expected), OUTLIER)

    def _points(self, name: str, prefix: int) -> Points:
        """Returns the curve as it was measured."""
        if (name, prefix) not in self._measured:
            if len(self._measured) == KEPT_CURVES:
                self._measured.clear()
            self._measured[name, prefix] = curve(getattr(self.costs, name), prefix)
        return self._measured[name, prefix]

    def _curve(self, name: str, prefix: int) -> Points:
        """Returns the curve as corrected by timed steps."""
        points = []
        for rows, seconds in self._points(name, prefix):
            slowdown = self._by_rows[rows] if name == "passes" else self._drafts
            points.append((rows, seconds * math.exp(self._machine + slowdown)))
        return _never_falling(points)

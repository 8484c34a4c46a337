"""Upper bounds of the speed-up: the best method of each prompt in hindsight, and drafts without a mistake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from longgraft.budget.cost_model import Costs, Points, along, curve
from longgraft.config.method_roles import PLAIN
from longgraft.eval.reports.cells import LOSSY, median_ratio, paired, speed_ratio
from longgraft.eval.reports.groups import by_length, by_method, by_prompt, first_repeats, plain_rows
from longgraft.eval.reports.run_costs import costs_of_run
from longgraft.eval.reports.tables import length_name, number, section
from longgraft.eval.runs.folder import Run
from longgraft.eval.runs.rows import Row
from longgraft.eval.statistics import Mean

Prompt = tuple[str, str]  # suite, id
Speeds = Mapping[str, Mapping[Prompt, float]]  # method -> prompt -> speed-up

ABOUT = """
### Oracles: how much faster it could be

The first line of a length is the fastest lossless method, as measured. Hindsight takes the fastest of the measured
methods and plain decoding for each prompt: a perfect choice among them gains no more.
"""
BY_PRICE = """
The other two are arithmetic, not measured: only passes take time, at prices that are linear between the measured ones
({rows} rows). "Only accepted nodes" are this method's steps, had each verified the root and the nodes that were then
accepted: what a perfect choice of budgets gains from these drafts. "No mistake" is a drafter whose every token is
accepted, with as many rows a pass as are fastest, up to the most that were measured: the most that any drafter gains in
passes of one chain.  Lengths far beyond those of the prices have neither.
"""
BEYOND = 1.25  # times the longest measured prefix, up to which prices are used


def oracle_tables(run: Run, rows: Sequence[Row]) -> list[str]:
    """Returns the table of one mode: bounds for each length; nothing without plain decoding's rows.

    Args:
        run: The run, from which the prices of passes are taken.
        rows: The measured rows of the mode.
    """
    prices, missing = _prices(run)
    about = ABOUT + missing
    longest = -1.0  # no length is priced
    if prices is not None:
        about += BY_PRICE.format(rows=", ".join(map(str, _priced_widths(prices))))
        longest = BEYOND * max(prices.passes)
    lines = []
    lossless = [row for row in rows if row.promise != LOSSY]
    for length, rows_of_length in by_length(lossless).items():
        prices_of_length = prices
        if length > longest:
            prices_of_length = None
        for name, speeds in bounds(rows_of_length, prices_of_length):
            lines.append([length_name(length), name, str(len(speeds)), number(Mean.geometric(speeds))])
    return section(about, ["length", "bound", "prompts", "speed-up"], lines)


def _priced_widths(prices: Costs) -> list[int]:
    """Returns the numbers of rows of the measured passes, ascending."""
    widths = set[int]().union(*prices.passes.values())
    return sorted(widths)


def _prices(run: Run) -> tuple[Costs | None, str]:
    """Returns the prices in the run's file of costs, else those of its rows, else None and the reason."""
    file = run.config.get("costs")
    try:
        if file and Path(file).exists():
            return Costs.load(Path(file)), ""
        return costs_of_run(run), ""
    except ValueError as error:
        return None, f"\nBounds by the price of passes are missing. {error}\n"


def bounds(rows: Sequence[Row], prices: Costs | None) -> list[tuple[str, list[float]]]:
    """Returns (bound, speed-up of each prompt) for rows of lossless methods at one length."""
    speeds = speeds_by_method(rows)
    if not speeds:
        return []
    prompts = max(map(len, speeds.values()))
    compared = [method for method in speeds if len(speeds[method]) == prompts]
    fastest = max(compared, key=lambda method: Mean.geometric(list(speeds[method].values())).value)
    named = [
        (f"{fastest}, measured", list(speeds[fastest].values())),
        ("hindsight: the fastest method of each prompt", hindsight(speeds)),
    ]
    if prices is not None:
        rows_by_method = by_method(first_repeats(rows))
        efficient = [without_waste(row, prices) for row in rows_by_method[fastest]]
        named.append((f"only accepted nodes of {fastest}", efficient))
        width, faultless = fastest_width(rows_by_method[PLAIN], prices, _priced_widths(prices)[-1])
        named.append((f"no mistake, {width} rows a pass", faultless))
    return named


def speeds_by_method(rows: Sequence[Row]) -> dict[str, dict[Prompt, float]]:
    """Returns the speed-up of each prompt by each method other than plain decoding."""
    plain = plain_rows(rows)
    speeds: dict[str, dict[Prompt, float]] = {}
    for method, rows_of_method in by_method(rows).items():
        for repeats in by_prompt(rows_of_method):
            pairs = paired(repeats, plain)
            if pairs and method != PLAIN:
                key = repeats[0].key
                speeds.setdefault(method, {})[key.suite, key.prompt_id] = median_ratio(pairs, speed_ratio)
    return speeds


def hindsight(speeds: Speeds) -> list[float]:
    """Returns the speed-up of each prompt by its fastest method, which may be plain decoding."""
    best: dict[Prompt, float] = {}
    for prompts in speeds.values():
        for prompt, speed in prompts.items():
            best[prompt] = max(best.get(prompt, 1.0), speed)
    return list(best.values())


def without_waste(row: Row, prices: Costs) -> float:
    """Returns the speed-up if each step had verified only the root and the nodes that were accepted."""
    points = curve(prices.passes, row.prompt_tokens)
    seconds = sum(along(points, accepted + 1) for accepted in row.accepted_per_step)
    return (row.new_tokens - 1) * along(points, 1) / seconds


def fastest_width(plain: Sequence[Row], prices: Costs, most: int) -> tuple[int, list[float]]:
    """Returns the rows of a pass with which drafts without a mistake are fastest, and each prompt's speed-up.

    Args:
        plain: A row of plain decoding for each prompt.
        most: The most rows of a pass.
    """
    curves = [curve(prices.passes, row.prompt_tokens) for row in plain]
    best = 1
    fastest = [1.0] * len(plain)
    for width in range(2, most + 1):
        speeds = []
        for row, points in zip(plain, curves, strict=True):
            speeds.append(_without_mistake(row.new_tokens - 1, points, width))
        if Mean.geometric(speeds).value > Mean.geometric(fastest).value:
            best = width
            fastest = speeds
    return best, fastest


def _without_mistake(tokens: int, points: Points, width: int) -> float:
    """Returns the speed-up of an answer whose passes yield as many tokens as they have rows."""
    whole, rest = divmod(tokens, width)
    seconds = whole * along(points, width)
    if rest:
        seconds += along(points, rest)
    return tokens * along(points, 1) / seconds

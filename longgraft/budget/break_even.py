"""Break-even: how many tokens a step must decode to be faster than plain decoding, by the rows that it verifies."""

from __future__ import annotations

from collections.abc import Callable

from longgraft.budget.cost_model import Costs

ROWS = (2, 4, 8, 16, 32, 60)  # rows of the table
RIGHT = (0.5, 0.8, 0.95)  # probabilities of a proposed token, after right ones
MOST = 60  # rows of a pass, at most

PassSeconds = Callable[[int, int], float]
"""(rows, prefix tokens) -> seconds of a target pass"""


def needed(seconds: PassSeconds, rows: int, prefix: int, host: float = 0.0) -> float:
    """Returns the tokens that a step of so many rows must decode to be as fast as plain decoding.

    Args:
        seconds: Those of passes.
        rows: Verified rows, the root included.
        prefix: Tokens before them.
        host: Seconds of the rest of a step.
    """
    return (seconds(rows, prefix) + host) / seconds(1, prefix)


def fastest(seconds: PassSeconds, prefix: int, right: float, host: float = 0.0) -> int:
    """Returns the rows with which a chain decodes fastest, the root included; 1: no proposal pays.

    Args:
        right: Probability of each token of the chain, if those before it are right.
    """
    best = 1
    most = 1.0
    tokens = 1.0
    for rows in range(2, MOST + 1):
        tokens += right ** (rows - 1)
        gain = tokens / needed(seconds, rows, prefix, host)
        if gain > most:
            best = rows
            most = gain
    return best


def break_even_lines(costs: Costs) -> list[str]:
    """Returns two tables for people: the tokens that steps must decode, and the rows that pay."""
    prefixes = sorted(costs.passes)
    lines = ["", "tokens that a step must decode to gain, by its rows"]
    lines.append(f"{'':<16}" + "".join(f"{f'{rows} rows':>10}" for rows in ROWS))
    for prefix in prefixes:
        cells = (f"{needed(costs.verify, rows, prefix, costs.host):>10.2f}" for rows in ROWS)
        lines.append(f"{f'{prefix:,} tokens':<16}" + "".join(cells))
    lines += ["", "rows that decode fastest, if each proposed token is right so often after right ones (1: none pays)"]
    lines.append(f"{'':<16}" + "".join(f"{f'{right:.0%}':>10}" for right in RIGHT))
    for prefix in prefixes:
        cells = (f"{fastest(costs.verify, prefix, right, costs.host):>10}" for right in RIGHT)
        lines.append(f"{f'{prefix:,} tokens':<16}" + "".join(cells))
    return lines

"""A step pays if it decodes more tokens than plain decoding does in its time."""

from __future__ import annotations

import pytest

from longgraft.budget.break_even import break_even_lines, fastest, needed
from longgraft.budget.cost_model import Costs

COSTS = Costs({}, "made up", {0: {1: 2.0, 61: 8.0}, 100: {1: 4.0, 61: 40.0}}, {}, {}, host=0.5)


def test_needed_tokens_are_the_time_of_a_step_in_plain_passes():
    assert needed(COSTS.verify, 11, 0) == pytest.approx(1.5)
    assert needed(COSTS.verify, 11, 100, host=0.5) == pytest.approx((4.0 + 6.0 + 0.5) / 4.0)


@pytest.mark.parametrize(("right", "row"), [(0.05, 0.06), (0.8, 0.1), (0.95, 0.01)])
def test_the_fastest_chain_is_the_one_of_most_tokens_per_second(right, row):
    def seconds(rows: int, prefix: int) -> float:
        return 1.0 + row * (rows - 1)

    def speed(rows: int) -> float:
        return sum(right**n for n in range(rows)) / seconds(rows, 0)

    assert fastest(seconds, 0, right) == max(range(1, 61), key=speed)


def test_the_tables_have_a_line_for_each_prefix():
    lines = break_even_lines(COSTS)
    by_prefix = [line.split() for line in lines if "tokens  " in line]
    assert [line[:2] for line in by_prefix] == [["0", "tokens"], ["100", "tokens"]] * 2
    assert by_prefix[0][2:] == [f"{needed(COSTS.verify, rows, 0, 0.5):.2f}" for rows in (2, 4, 8, 16, 32, 60)]
    assert by_prefix[3][2:] == [str(fastest(COSTS.verify, 100, right, 0.5)) for right in (0.5, 0.8, 0.95)]

"""A choice of combinations for tests where all of them would take too long."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def covering(methods: Sequence[str], *columns: Collection) -> list[tuple]:
    """Returns rows (method, a value of each column) with every value for each method and every pair for some method.

    A method has as many combinations as the longest column has values.  From one method to the next, the second column
    moves on by one against the first, the third whenever the second has come round, and so on like an odometer.
    """
    values, rows = [tuple(column) for column in columns], max(map(len, columns))
    found = []
    for n, method in enumerate(methods):
        shifts, left = [0], n
        for column in values[1:]:
            shifts.append(left % len(column))
            left //= len(column)
        found += [
            (method, *(column[(row + shift) % len(column)] for column, shift in zip(values, shifts, strict=True)))
            for row in range(rows)
        ]
    return found


def named(value: object) -> str:
    """Returns the text of a value in a test's id."""
    return str(value)

"""Checks the names of keyword arguments, and suggests the nearest known one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def check_names(given: Iterable[str], known: Iterable[str], function: str) -> None:
    """Raises TypeError about the first name that is not known.

    Args:
        given: Names of keyword arguments.
        known: Those that the function takes.
        function: The function's name.
    """
    names = list(known)
    for name in given:
        if name in names:
            continue
        near = get_close_matches(name, names, n=1)
        hint = f" Perhaps {near[0]} is meant." if near else ""
        raise TypeError(f"{function} has no argument {name!r}.{hint}")

"""Prompts of sweeps, as token ids that every engine continues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from benchmarks.peers.answers import Prompt

if TYPE_CHECKING:
    from longgraft.eval.runs.config import SweepConfig


def prompts_of(
    config: SweepConfig, suites: Sequence[str] = (), lengths: Sequence[int] = (), count: int = 0
) -> Iterator[Prompt]:
    """Yields the prompts of a sweep with this configuration, cut as the sweep cuts them.

    Args:
        config: The configuration.
        suites: Only these suites; empty: all.
        lengths: Only these lengths; empty: all.
        count: Most prompts per suite and length; 0: all of the sweep.

    Raises:
        ValueError: the configuration has no such suite or length, or no prompt is long enough.
    """
    from longgraft.eval.runs.plan import Reader, check_plan, planned

    for what, wanted, known in (("suite", suites, config.suites), ("length", lengths, config.lengths)):
        for value in wanted:
            if value not in known:
                raise ValueError(f"The sweep has no {what} {value}; it has {', '.join(map(str, known)) or 'none'}.")
    for suite, by_length in planned(config, check_plan(config), Reader.open(config.model)).items():
        if suite in (suites or config.suites):
            for length, found in by_length.items():
                if length in (lengths or (length,)):
                    for fitted in found[: count or None]:
                        yield Prompt(fitted.example.suite, length, fitted.example.id, fitted.ids)

"""Work of several requests, side by side: where each waits for a pass of a target, one pass runs for all.

Knows targets and greenlets; knows no request.  All of it is in the caller's thread: one runs until it needs a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from longgraft.protocol.observation import Wants
from longgraft.target_model.model import SHARED, Report, Segment, Target

T = TypeVar("T")
Asked = tuple[Target, Sequence[Segment], Wants]


def together(actions: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """What each of them returns or raises, in order.  An error of one is none of the others'.

    A pass that an action runs with gradients switched off, such as a draft model's, it runs alone.
    """
    here = getcurrent()
    found: list[Any] = [None] * len(actions)

    def begin(index: int) -> None:
        SHARED.set(lambda *asked: here.switch(asked))
        try:
            found[index] = actions[index]()
        except Exception as error:
            found[index] = error

    lanes = [greenlet(begin, here) for _ in actions]
    try:
        waiting = {lane: asked for index, lane in enumerate(lanes) if (asked := lane.switch(index)) is not None}
        while waiting:
            # One target's at a time: a draft model's callers may come to wait for the model that the others wait for.
            target = next(iter(waiting.values()))[0]
            group = {lane: asked for lane, asked in waiting.items() if asked[0] is target}
            for lane, reports in zip(group, _passed(target, list(group.values())), strict=True):
                del waiting[lane]
                given = lane.throw(reports) if isinstance(reports, Exception) else lane.switch(reports)
                if given is not None:
                    waiting[lane] = given
    finally:
        for lane in lanes:      # after an interrupt: each leaves its blocks
            if not lane.dead:
                lane.throw()
    return found


def _passed(target: Target, asked: Sequence[Asked]) -> list[list[Report] | Exception]:
    """Of each caller the reports, or why there are none: where the common pass fails, each has one of its own."""
    union = Wants.union(wants for _, _, wants in asked)
    try:
        reports = iter(target.forward([segment for _, segments, _ in asked for segment in segments], union))
        return [[_of(next(reports), wants) for _ in segments] for _, segments, wants in asked]
    except Exception as error:
        if len(asked) == 1:
            return [error]
        return [_passed(target, [one])[0] for one in asked]


def _of(report: Report, wants: Wants) -> Report:
    """What was wanted of a report on more."""
    return replace(report, topk=report.topk[:, :wants.topk] if report.topk is not None and wants.topk else None,
                   hidden={layer: report.hidden[layer] for layer in wants.layers},
                   final=report.final if wants.final else None, queries=report.queries if wants.queries else {})

"""Runs the work of several requests side by side and merges their passes of one model.

Each action runs in the caller's thread until it needs a pass; then one pass runs for all that wait for the
same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from greenlet import getcurrent, greenlet

from longgraft.runtime.device_memory import out_of_memory
from longgraft.target_model.passes import SHARED, Runner

LOG = logging.getLogger(__name__)
T = TypeVar("T")
Mode = tuple[bool, bool]  # gradients, inference mode


def together(actions: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Runs several actions side by side; passes of one model that want the same reports become one pass.

    Passes of drafters run first, so that all verifications wait at the same time.  A target's passes are
    not shared if an action has switched gradients or inference mode: those are a draft model's, which would
    part the verifications.

    Returns:
        What each action returns or raises, in order.  An exception in one action does not affect the others.
    """
    caller = getcurrent()
    mode = _mode()

    def share(runner: Runner, segments: Sequence[Any], wants: Any) -> list[Any]:
        if _mode() == mode:
            return caller.switch((runner, segments, wants))
        if not runner.drafts:
            return runner.forward(segments, wants)
        with _in(mode):  # a switch in another mode would change that of the action that runs next
            return caller.switch((runner, segments, wants))

    def begin(action: Callable[[], T]) -> T | Exception:
        SHARED.set(share)
        try:
            return action()
        except Exception as error:
            return error

    lanes = [greenlet(begin, caller) for _ in actions]
    results: list[Any] = []  # for each lane the pass that it waits for or, when it has ended, its result
    try:
        results += map(greenlet.switch, lanes, actions)
        while waiting := [index for index, lane in enumerate(lanes) if not lane.dead]:
            runner, _, wants = min((results[index] for index in waiting), key=_turn)
            group = [index for index in waiting if results[index][0] is runner and results[index][2] == wants]
            passed = _passed(runner, [results[index][1] for index in group], wants)
            for index, reports in zip(group, passed, strict=True):
                resume = lanes[index].throw if isinstance(reports, Exception) else lanes[index].switch
                results[index] = resume(reports)
    finally:
        for lane in lanes:  # after an interrupt each lane leaves its blocks
            if not lane.dead:
                lane.throw()
    return results


def _turn(waiting: tuple[Runner, Any, Any]) -> tuple[bool, int]:
    """Returns the order of a pass (runner, segments, wants) that a lane waits for."""
    runner, _, wants = waiting
    return not runner.drafts, runner.turn(wants)


def _mode() -> Mode:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


@contextmanager
def _in(mode: Mode) -> Iterator[None]:
    gradients, inference = mode
    with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
        yield


def _passed(runner: Runner, callers: Sequence[Sequence[Any]], wants: Any) -> list[list[Any] | Exception]:
    """Returns for each caller its reports or the reason why there are none.

    If a shared pass fails, each caller gets its own pass.

    Args:
        runner: What runs the pass.
        callers: The segments of each caller.
        wants: The reports that all of them want.
    """
    if len(callers) == 1:
        try:
            return [runner.forward(callers[0], wants)]
        except Exception as error:
            return [error]
    failure: Exception | None = None
    if runner.packs:
        try:
            reports = iter(runner.forward([segment for segments in callers for segment in segments], wants))
            return [[next(reports) for _ in segments] for segments in callers]
        except Exception as error:
            # The traceback would keep the pass's activations alive.
            failure = error.with_traceback(None)
    results: list[list[Any] | Exception] = []
    for segments in callers:
        results += _passed(runner, [segments], wants)
    all_passed = not any(isinstance(result, Exception) for result in results)
    if failure is not None and not out_of_memory(failure) and all_passed:
        LOG.warning("%s cannot have several requests in one pass, so each has its own: %r", runner.name, failure)
        runner.packs = False
    return results

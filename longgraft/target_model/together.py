"""Runs the work of several requests side by side and merges their passes of one model.

Each action runs in the caller's thread until it needs a pass; then one pass runs for all that wait for the same.
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
Mode = tuple[bool, bool]    # gradients, inference mode


def together(actions: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Runs several actions side by side; passes of one model that want the same reports become one pass.

    Passes of drafters run first, so that all verifications wait at the same time.  A target's passes are not shared if
    an action has switched gradients or inference mode: those are a draft model's, which would part the verifications.

    Returns:
        What each action returns or raises, in order.  An exception in one action does not affect the others.
    """
    here, mode = getcurrent(), _mode()

    def share(runner: Runner, *asked: Any) -> list[Any]:
        if _mode() == mode:
            return here.switch((runner, *asked))
        if not runner.drafts:
            return runner.forward(*asked)
        with _in(mode):     # a switch in another mode would change that of the action that runs next
            return here.switch((runner, *asked))

    def begin(action: Callable[[], T]) -> T | Exception:
        SHARED.set(share)
        try:
            return action()
        except Exception as error:
            return error

    lanes = [greenlet(begin, here) for _ in actions]
    results: list[Any] = []     # for each lane the pass that it waits for or, when it has ended, its result
    try:
        results += map(greenlet.switch, lanes, actions)
        while waiting := [index for index, lane in enumerate(lanes) if not lane.dead]:
            runner, _, wants = min((results[index] for index in waiting), key=_turn)
            group = [index for index in waiting if results[index][0] is runner and results[index][2] == wants]
            for index, reports in zip(group, _passed(runner, [results[at][1] for at in group], wants), strict=True):
                resume = lanes[index].throw if isinstance(reports, Exception) else lanes[index].switch
                results[index] = resume(reports)
    finally:
        for lane in lanes:      # after an interrupt each lane leaves its blocks
            if not lane.dead:
                lane.throw()
    return results


def _turn(asked: tuple[Runner, Any, Any]) -> tuple[bool, int]:
    runner, _, wants = asked
    return not runner.drafts, runner.turn(wants)


def _mode() -> Mode:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


@contextmanager
def _in(mode: Mode) -> Iterator[None]:
    gradients, inference = mode
    with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
        yield


def _passed(runner: Runner, asked: Sequence[Sequence[Any]], wants: Any) -> list[list[Any] | Exception]:
    """Returns for each caller its reports or the reason why there are none; if a shared pass fails, each gets its
    own."""
    if len(asked) == 1:
        try:
            return [runner.forward(asked[0], wants)]
        except Exception as error:
            return [error]
    failure: Exception | None = None
    if runner.packs:
        try:
            reports = iter(runner.forward([segment for segments in asked for segment in segments], wants))
            return [[next(reports) for _ in segments] for segments in asked]
        except Exception as error:
            failure = error.with_traceback(None)        # the traceback would keep the pass's activations alive
    found = [result for one in asked for result in _passed(runner, [one], wants)]
    if failure is not None and not out_of_memory(failure) and not any(isinstance(one, Exception) for one in found):
        LOG.warning("%s cannot have several requests in one pass, so each has its own: %r", runner.name, failure)
        runner.packs = False
    return found

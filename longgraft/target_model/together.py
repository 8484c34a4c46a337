"""Runs the work of several requests side by side and merges their target passes.

Each action runs in the caller's thread until it needs a pass of a target; then one pass runs for all that wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from greenlet import getcurrent, greenlet

from longgraft.protocol.observation import Wants
from longgraft.runtime.device_memory import out_of_memory
from longgraft.target_model.model import Target
from longgraft.target_model.passes import SHARED, Report, Segment

LOG = logging.getLogger(__name__)
T = TypeVar("T")
Asked = tuple[Target, Sequence[Segment], Wants]


def together(actions: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Runs several actions side by side; passes of one target that want the same reports become one pass.

    If an action has switched gradients or inference mode, its passes are its own: a switch in the middle of the block
    would change the mode of the action that runs next.  So a draft model's passes, which run without gradients, are not
    shared.

    Returns:
        What each action returns or raises, in order.  An exception in one action does not affect the others.
    """
    here, mode = getcurrent(), _mode()

    def share(*asked: Any) -> list[Report]:
        return here.switch(asked) if _mode() == mode else asked[0].forward(*asked[1:])

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
            target, _, wants = results[waiting[0]]
            group = [index for index in waiting if results[index][0] is target and results[index][2] == wants]
            for index, reports in zip(group, _passed(target, [results[at][1] for at in group], wants), strict=True):
                resume = lanes[index].throw if isinstance(reports, Exception) else lanes[index].switch
                results[index] = resume(reports)
    finally:
        for lane in lanes:      # after an interrupt each lane leaves its blocks
            if not lane.dead:
                lane.throw()
    return results


def _mode() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def _passed(target: Target, asked: Sequence[Sequence[Segment]], wants: Wants) -> list[list[Report] | Exception]:
    """Returns for each caller its reports or the reason why there are none; if a shared pass fails, each gets its
    own."""
    if len(asked) == 1:
        try:
            return [target.forward(asked[0], wants)]
        except Exception as error:
            return [error]
    failure: Exception | None = None
    if target.packs:
        try:
            reports = iter(target.forward([segment for segments in asked for segment in segments], wants))
            return [[next(reports) for _ in segments] for segments in asked]
        except Exception as error:
            failure = error.with_traceback(None)        # the traceback would keep the pass's activations alive
    found = [result for one in asked for result in _passed(target, [one], wants)]
    if failure is not None and not out_of_memory(failure) and not any(isinstance(one, Exception) for one in found):
        LOG.warning("%s cannot have several requests in one pass, so each has its own: %r", target.name, failure)
        target.packs = False
    return found

"""Counts of forwards for drafting: those of draft networks, and those of the target beside the verifications."""

from __future__ import annotations

from collections import Counter

import pytest
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from toys.models import toy_target
from toys.sessions import EVERY, TOYS, answered, toy_prompt, toy_session

from longgraft.runtime.clock import Clock


def networks() -> set[type]:
    """Returns the types of the networks in everything that methods need."""
    loaded = [toy(toy_target(), 0) for toy in TOYS.values()]
    return {
        type(one)
        for each in loaded
        for one in (each, *getattr(each, "__dict__", {}).values())
        if isinstance(one, nn.Module)
    }


@pytest.mark.one_in(5)
@pytest.mark.parametrize("method", EVERY)
def test_every_forward_beside_the_verifications_is_counted(method):
    """Only decoding is counted, because feeding the prompt to a drafter drafts nothing."""
    drafting, target = networks(), toy_target().model
    request = toy_session(method).open(toy_prompt(60), 12, eos=())
    while request.step().read:  # up to the first step
        pass
    before, ran = request.stats, Counter()
    hook = register_module_forward_pre_hook(
        lambda module, _: ran.update(["own"] if module is target else ["draft"] if type(module) in drafting else [])
    )
    try:
        while request.step() is not None:
            pass
    finally:
        hook.remove()
    after = request.stats
    steps = after.steps - before.steps
    forwards = {whose: after.forwards.get(whose, 0) - before.forwards.get(whose, 0) for whose in ("draft", "own")}
    assert steps > 0 and forwards == {"draft": ran["draft"], "own": ran["own"] - steps}


def test_a_dense_tree_counts_a_forward_per_level_and_per_feeding():
    stats = answered(toy_session("eagle3+levels=4"), toy_prompt(60), 24).stats
    drafted = stats.steps - 1  # nothing is drafted for the last token
    assert stats.forwards == {"draft": 3 * drafted + drafted - 1}  # the prompt was fed as it was read
    assert answered(toy_session("eagle3", budget=1), toy_prompt(60), 5).stats.forwards == {}


def test_reading_the_counts_resets_them():
    clock = Clock()
    clock.ran("draft", 2)
    clock.ran("own")
    assert clock.counted() == {"draft": 2, "own": 1} and clock.counted() == {}

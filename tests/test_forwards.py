"""What guessing costs: forwards of drafting networks, and of the target itself beside the verifications."""

from __future__ import annotations

from collections import Counter

import pytest
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from toys.models import toy_target
from toys.sessions import EVERY, TOYS, answered, toy_prompt, toy_session

from longgraft.runtime.clock import Clock


def networks() -> set[type]:
    """Kinds of those of all needs: what was loaded is one, or holds one."""
    loaded = [toy(toy_target(), 0) for toy in TOYS.values()]
    return {type(one) for each in loaded for one in (each, *getattr(each, "__dict__", {}).values())
            if isinstance(one, nn.Module)}


@pytest.mark.parametrize("method", EVERY)
def test_every_forward_beside_the_verifications_is_counted(method):
    """Of decoding alone: what a drafter is fed of a prompt is no guess."""
    drafting, target = networks(), toy_target().model
    request = toy_session(method).open(toy_prompt(60), 12, eos=())
    while request.step().read:      # up to the first step
        pass
    before, ran = request.stats, Counter()
    hook = register_module_forward_pre_hook(lambda module, _: ran.update(
        ["own"] if module is target else ["draft"] if type(module) in drafting else []))
    try:
        while request.step() is not None:
            pass
    finally:
        hook.remove()
    after = request.stats
    steps = after.steps - before.steps
    forwards = {whose: after.forwards.get(whose, 0) - before.forwards.get(whose, 0) for whose in ("draft", "own")}
    assert steps > 0 and forwards == {"draft": ran["draft"], "own": ran["own"] - steps}


def test_of_a_dense_tree_each_level_is_a_forward_and_so_is_what_it_is_fed():
    stats = answered(toy_session("eagle3", levels=4), toy_prompt(60), 24).stats
    drafted = stats.steps - 1       # the last token is not drafted for
    assert stats.forwards == {"draft": 3 * drafted + drafted - 1}   # the prompt was fed as it was read
    assert answered(toy_session("eagle3", budget=1), toy_prompt(60), 5).stats.forwards == {}


def test_counting_begins_anew():
    clock = Clock()
    clock.ran("draft", 2)
    clock.ran("own")
    assert clock.counted() == {"draft": 2, "own": 1} and clock.counted() == {}

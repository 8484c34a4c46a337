"""Measuring from a shared prefill gives what a session of its own gives, for every method, in any order."""

from __future__ import annotations

import pytest
import torch
from conftest import VOCAB, toy_network, toy_prompt, toy_target

from longgraft.calibration import Calibration
from longgraft.eval.runs.measure import Prefilled, Stock
from longgraft.eval.runs.variants import PLAIN, TRANSFORMERS, Variant
from longgraft.methods import METHODS, Parts, build
from longgraft.observation import Clock
from longgraft.session import Sampling, Session, Stats

PROMPT, NEW = toy_prompt(90), 24
REPLAY = torch.randint(1, VOCAB, (NEW,), generator=torch.Generator().manual_seed(5)).tolist()
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=1.0, seed=3), "replay": Sampling(replay=REPLAY)}


def prefilled(names, calibrations=None, **more) -> Prefilled:
    parts = Parts(toy_target(), toy_network())
    return Prefilled(parts.target, Stock({"": parts} | more, calibrations or {}),
                     [Variant.parse(name) for name in names], PROMPT, NEW + 90)


def alone(name: str, sampling: Sampling) -> tuple[list[int], Stats]:
    """A session that prefills for itself."""
    parts = Parts(toy_target(), toy_network())
    session = Session(parts.target, None, build(name, parts), Clock(), METHODS[name].budget)
    stats = Stats()
    return [t for new in session.tokens(PROMPT, stats, NEW, sampling, eos=()) for t in new], stats


@pytest.mark.parametrize("mode", SAMPLINGS)
def test_every_method_decodes_as_it_does_alone(mode):
    state, sampling = prefilled(METHODS), SAMPLINGS[mode]
    for name in [*METHODS, *reversed(METHODS)]:         # what one leaves behind must not reach the next
        tokens, stats = state.decode(Variant.parse(name), sampling, NEW)
        expected, theirs = alone(name, sampling)
        assert tokens == expected and stats.accepted_per_step == theirs.accepted_per_step, name
        assert stats.stages == theirs.stages and stats.accepted_by_origin == theirs.accepted_by_origin, name


def test_heads_do_not_share_their_caches():
    other = Parts(toy_target(), toy_network(seed=7))
    state = prefilled(["eagle3", "eagle3@other"], other=other)
    lone = Prefilled(other.target, Stock({"": other}), [Variant.parse("eagle3")], PROMPT, NEW + 90)
    steps = [s.decode(Variant.parse(name), SAMPLINGS["replay"], NEW)[1].accepted_by_origin
             for s, name in ((state, "eagle3"), (state, "eagle3@other"), (lone, "eagle3"))]
    caches = [d.cache.rows[0].keys[:, :, :len(PROMPT) - 1] for s in (state, lone) for d in s._prompt.drafters.values()]
    assert torch.equal(caches[1], caches[2]) and not torch.equal(caches[0], caches[1]) and steps[1] == steps[2]


def test_the_other_baseline_says_what_plain_decoding_says():
    state = prefilled([PLAIN, TRANSFORMERS])
    ours, stats = state.decode(Variant.parse(PLAIN), Sampling(), NEW)
    theirs, their_stats = state.decode(Variant.parse(TRANSFORMERS), Sampling(), NEW)
    assert ours == theirs and their_stats.decode_tokens_per_second > 0 and stats.mat == 0
    assert state.decode(Variant.parse(PLAIN), Sampling(), NEW)[0] == ours      # its cache was a copy


def test_settings_of_a_variant_reach_its_trees():
    """And what they change is exactly what a session with these parts does."""
    warm = Calibration({0: 0.9, 1: 0.0, 5: 0.0}, 24, torch.randint(VOCAB, (VOCAB + 1, 8), dtype=torch.int32))
    settings = {"graft+budget=20": {}, "graft+depth=2": {"depth": 2}, "graft+width=1": {"width": 1},
                "eagle3+levels=2+top_k=3": {"levels": 2, "top_k": 3}, "graft+warm=w": {"snapshot": warm.snapshot},
                "graft+thresholds=w": {"thresholds": warm.thresholds, "split": 24}}
    state = prefilled(["graft", *settings], {"w": warm})
    for name, changes in settings.items():
        variant = Variant.parse(name)
        parts = Parts(toy_target(), toy_network(), **changes)
        session = Session(parts.target, None, build(variant.method, parts), Clock(), variant.budget(60))
        stats, ours = Stats(), state.decode(variant, Sampling(), NEW)
        assert ours[0] == [t for new in session.tokens(PROMPT, stats, NEW, Sampling(), eos=()) for t in new]
        assert (ours[1].accepted_per_step, ours[1].stages, ours[1].accepted_by_origin) == (
            stats.accepted_per_step, stats.stages, stats.accepted_by_origin), name
        made = vars(state._parts(variant))
        assert all(made[key] is value or made[key] == value for key, value in changes.items()), name
    assert Variant.parse("graft+budget=20").budget(60) == 20


def test_an_unknown_head_setting_or_method_is_named():
    with pytest.raises(ValueError, match="budget is 0; it must be"):
        Variant.parse("graft+budget=0")
    for name in ("graft+speed=9", "graft+warm="):
        with pytest.raises(ValueError, match=r"is no setting\. Known: budget=NUMBER"):
            Variant.parse(name)
    with pytest.raises(ValueError, match="'five', which was not given"):
        prefilled(["graft+warm=five"])
    with pytest.raises(ValueError, match="'long', which was not given"):
        prefilled(["eagle3@long"])
    with pytest.raises(ValueError, match="'eagle4' is unknown"):
        Variant.parse("eagle4")

"""Measuring from a shared prefill gives what a session of its own gives, for every method, in any order."""

from __future__ import annotations

import pytest
import torch
from conftest import VOCAB, toy_network, toy_prompt, toy_target

from longgraft.eval.measure import PLAIN, TRANSFORMERS, Prefilled, Variant
from longgraft.methods import METHODS, Parts, build
from longgraft.observation import Clock
from longgraft.session import Sampling, Session, Stats

PROMPT, NEW = toy_prompt(90), 24
REPLAY = torch.randint(1, VOCAB, (NEW,), generator=torch.Generator().manual_seed(5)).tolist()
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=1.0, seed=3), "replay": Sampling(replay=REPLAY)}


def prefilled(names, **more) -> Prefilled:
    parts = Parts(toy_target(), toy_network())
    return Prefilled(parts.target, {"": parts} | more, [Variant.parse(name) for name in names], PROMPT, NEW + 90)


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
    lone = Prefilled(other.target, {"": other}, [Variant.parse("eagle3")], PROMPT, NEW + 90)
    ours, theirs, alone_theirs = (next(iter(parts.drafters.values())).cache.rows[0].keys[:, :, :len(PROMPT)]
                                  for parts in (*state.parts.values(), lone.parts[""]))
    assert torch.equal(theirs, alone_theirs) and not torch.equal(ours, theirs)


def test_the_other_baseline_says_what_plain_decoding_says():
    state = prefilled([PLAIN, TRANSFORMERS])
    ours, stats = state.decode(Variant.parse(PLAIN), Sampling(), NEW)
    theirs, their_stats = state.decode(Variant.parse(TRANSFORMERS), Sampling(), NEW)
    assert ours == theirs and their_stats.decode_tokens_per_second > 0 and stats.mat == 0
    assert state.decode(Variant.parse(PLAIN), Sampling(), NEW)[0] == ours      # its cache was a copy


def test_an_unknown_head_or_method_is_named():
    with pytest.raises(ValueError, match="'long', which was not given"):
        prefilled(["eagle3@long"])
    with pytest.raises(ValueError, match="'eagle4' is unknown"):
        Variant.parse("eagle4")

"""Odds of remembered tokens are estimated on answers, kept where others gain too, and used by what ranks."""

from __future__ import annotations

import pytest
import torch
from toys.models import VOCAB
from toys.sessions import answered, toy_parts, toy_prompt, toy_session

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.match_odds import MatchOdds
from longgraft.eval.checks import odds
from longgraft.eval.checks.odds import _Rankings, accepted
from longgraft.loading import Loaded
from longgraft.methods.find import as_method, find


def loaded() -> Loaded:
    parts = toy_parts()
    return Loaded(parts.target, None, find("graft-x"), parts)


def pairs(seed: int, known: bool = True) -> tuple[list[int], list[int]]:
    """A prompt and an answer of the same pairs of tokens, in any order: a match of one token is right half of the time.

    known: whether the prompt has the answer's pairs
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randperm(VOCAB - 1, generator=generator)[:40].view(20, 2) + 1
    shuffled = [tokens[torch.randperm(20, generator=generator)].flatten().tolist() for _ in range(2)]
    return (shuffled[0] if known else shuffled[0][::-1]), shuffled[1]


@pytest.fixture
def wide(monkeypatch):
    """Also odds that trust a match a hundred times as much."""
    monkeypatch.setattr(odds, "FACTORS", (1.0, 0.01))


def test_short_matches_that_are_right_beside_a_drafter_that_knows_nothing_are_trusted_more(wide):
    found = odds.estimate(loaded(), [pairs(n) for n in range(4)], budget=3)
    assert found.odds.half == 0.6 and found.gain > 1.1 and found.gain_on_others > 1.1


def test_what_gains_only_where_it_was_chosen_is_left(wide):
    found = odds.estimate(loaded(), [pairs(n, known=n % 2 == 0) for n in range(4)], budget=3)
    assert found.gain > 1.1 and found.gain_on_others < odds.LEAST and found.odds == MatchOdds()


def test_the_usual_odds_tree_is_verified_and_counted_as_decoding_counts_it():
    rankings = _Rankings(toy_parts(), [MatchOdds(), MatchOdds(half=1.0)])
    ids, said = toy_prompt(60), toy_prompt(90)[60:]
    found = answered(toy_session(as_method(rankings, "odds"), budget=8), ids, 30, Sampling(replay=tuple(said)))
    counts = [accepted(trees[0], [*ids, *said][position + 1:]) for position, trees in rankings.trees]
    assert counts == list(found.stats.accepted_per_step)
    plain = answered(toy_session("graft-x", budget=8), ids, 30, Sampling(replay=tuple(said)))
    assert plain.stats.accepted_per_step == found.stats.accepted_per_step
    assert any(not torch.equal(a.tokens, b.tokens) for _, (a, b) in rankings.trees)

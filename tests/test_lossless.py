"""The promise: every method says exactly what the target alone would say, greedy and sampled, in float32."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, groupby, pairwise

import pytest
import torch
from conftest import FAMILIES, TOY_COSTS, VOCAB, answered, toy_model, toy_prompt, toy_session
from oracle import plain
from test_docs import METHOD_FILE

from longgraft.costs import Live
from longgraft.eval.checks.losslessness import assert_lossless
from longgraft.methods import METHODS
from longgraft.sampling import Sampling
from longgraft.session import Session

CHOOSING = [name for name, method in METHODS.items() if method.adaptive]
GREEDY, SAMPLED = Sampling(), Sampling(temperature=1.0, seed=5)
WARPED = Sampling(temperature=0.7, top_k=20, top_p=0.9, min_p=0.02, seed=11)


def said(ours: Session, length: int = 60, new: int = 24, sampling: Sampling = GREEDY, eos=()) -> list[int]:
    return answered(ours, toy_prompt(length), new, sampling, eos).token_ids


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, WARPED], ids=["greedy", "sampled", "warped"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_exactly_what_the_target_would(method, family, sampling):
    assert said(toy_session(method, family), sampling=sampling) == plain(family, 60, 24, sampling)


@pytest.mark.parametrize("costs", [(1.0, 1.6), (1.0, 1.0), (1.0, 40.0)], ids=["usual", "free-rows", "dear-rows"])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, WARPED], ids=["greedy", "sampled", "warped"])
@pytest.mark.parametrize("method", CHOOSING)
def test_what_a_method_chooses_to_spend_changes_nothing(method, family, sampling, costs):
    one, sixty = costs
    spent = Live(replace(TOY_COSTS, passes={0: {1: one, 60: sixty}}), frozen=True)
    ours = toy_session(method, family, adaptive=True, costs=spent)
    assert said(ours, sampling=sampling) == plain(family, 60, 24, sampling)


def test_a_method_of_a_file_is_held_to_the_same(tmp_path):
    (tmp_path / "mine.py").write_text(METHOD_FILE)
    assert assert_lossless(f"{tmp_path}/mine.py:METHOD", (toy_model("mistral-window"), None)) > 0


@pytest.mark.parametrize("chunk", [1, 7, None])
@pytest.mark.parametrize("budget", [1, 2, 8, 60])
@pytest.mark.parametrize("method", METHODS)
def test_neither_budget_nor_chunk_changes_the_answer(method, budget, chunk):
    for sampling in (GREEDY, SAMPLED):
        assert said(toy_session(method, "mistral-window", budget, chunk), sampling=sampling) == plain(
            "mistral-window", 60, 24, sampling)


@pytest.mark.parametrize("method", METHODS)
def test_a_prompt_of_one_token(method):
    assert said(toy_session(method), length=1) == plain("llama", 1, 24, GREEDY)


@pytest.mark.parametrize("method", METHODS)
def test_exactly_as_many_tokens_as_asked(method):
    for new in (1, 2, 5, 11):
        found = answered(toy_session(method), toy_prompt(60), new)
        assert found.token_ids == plain("llama", 60, 24, GREEDY)[:new] and found.finish_reason == "length"
        stats = found.stats
        assert stats.new_tokens == new == 1 + sum(stats.accepted_per_step) + stats.steps


@pytest.mark.parametrize("method", METHODS)
def test_the_end_token_is_the_last_also_inside_an_accepted_path(method):
    expected = plain("llama", 60, 24, GREEDY)
    for end in set(expected):
        at = expected.index(end)
        assert said(toy_session(method), eos=(end,)) == expected[:at + 1]


def knowing() -> Session:
    """A session whose matrix knows Llama's answer to a prompt of one token, which teaches it next to nothing."""
    text = toy_prompt(1) + plain("llama", 1, 24, GREEDY)
    rows = torch.full((VOCAB + 1, 8), -1, dtype=torch.int32)
    for token in set(text):
        after = dict.fromkeys(b for a, b in pairwise(text) if a == token)
        rows[token, :len(after)] = torch.tensor(list(after), dtype=torch.int32)
    return toy_session("retrieval", snapshot=rows)


def test_an_end_token_inside_an_accepted_path_ends_there():
    ours, expected = knowing(), plain("llama", 1, 24, GREEDY)
    lengths = [len(step.tokens) for step in ours.open(toy_prompt(1), 24, eos=())]
    inside = 0
    for end in set(expected):
        at = expected.index(end)
        assert said(ours, 1, eos=(end,)) == expected[:at + 1]
        inside += at + 1 not in accumulate(lengths)
    assert inside >= 5


def test_the_last_step_may_accept_all_but_one_of_what_is_left():
    ours = knowing()
    first = [len(step.tokens) for step in ours.open(toy_prompt(1), 24, eos=())][1]
    assert first >= 4
    for new in range(2, 2 + first):
        assert answered(ours, toy_prompt(1), new).stats.accepted_per_step == (new - 2,)


def test_the_answers_vary():
    """Of a token said again and again, the end could never lie inside an accepted path."""
    for family in FAMILIES:
        text = plain(family, 60, 24, GREEDY)
        assert len(set(text)) >= 9
        assert max(len(list(run)) for _, run in groupby(text)) <= 4


def test_some_of_these_answers_were_accepted_several_tokens_a_step():
    """Else the tests above would prove nothing."""
    for method in ("retrieval", "graft", "graft-root", "token-recycling"):
        assert max(answered(toy_session(method), toy_prompt(60), 24).stats.accepted_per_step) >= 3
    assert sum(answered(toy_session("eagle3", "mistral-window"), toy_prompt(60), 40).stats.accepted_per_step) >= 3


@pytest.mark.parametrize("method", METHODS)
def test_replay_says_the_recording_and_counts_what_it_would_have_accepted(method):
    recording = tuple(toy_prompt(30, seed=3))
    found = answered(toy_session(method), toy_prompt(60), 99, Sampling(replay=recording))
    assert found.token_ids == list(recording)
    assert found.stats.new_tokens == 30


def test_a_warm_snapshot_changes_speed_and_not_the_answer():
    generator = torch.Generator().manual_seed(0)
    snapshot = torch.randint(0, VOCAB, (VOCAB + 1, 8), generator=generator, dtype=torch.int32)
    ours = toy_session("graft", snapshot=snapshot)
    assert said(ours) == plain("llama", 60, 24, GREEDY)
    assert said(ours) == plain("llama", 60, 24, GREEDY)     # and again: nothing of a request is left


@pytest.mark.parametrize("method", METHODS)
def test_two_runs_take_the_same_steps(method):
    ours, seen = toy_session(method), []
    for _ in range(2):
        stats = answered(ours, toy_prompt(60), 24, SAMPLED).stats
        seen.append((stats.accepted_per_step, stats.accepted_by_origin, stats.stages))
    # Token Recycling keeps its matrix between requests, as its authors' code does.
    assert seen[0] == seen[1] or method == "token-recycling"

"""Greedy answers in float32, and sampled ones of exact methods, are those of the target alone.

Other tests check sampled answers of methods that promise a distribution; a lossy method only has to answer.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, groupby, pairwise

import pytest
import torch
from toys.covering import covering, named
from toys.models import FAMILIES, VOCAB, toy_model
from toys.oracle import plain
from toys.sessions import CHOOSING, EVERY, TOY_COSTS, answered, toy_parts, toy_prompt, toy_session

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.cost_model import LiveCosts
from longgraft.config.method_roles import COMPARED, DEFAULT, HEADLESS
from longgraft.engine.session import Session
from longgraft.eval.checks.losslessness import assert_lossless
from longgraft.methods.find import build
from longgraft.prefill.prefixes import Prefixes
from longgraft.protocol.memory import Memory

LOSSLESS = [name for name, method in EVERY.items() if method.promise != "lossy"]
LOSSY = [name for name in EVERY if name not in LOSSLESS]
GREEDY, SAMPLED = Sampling(), Sampling(temperature=1.0, seed=5)
WARPED = Sampling(temperature=0.7, top_k=20, top_p=0.9, min_p=0.02, seed=11)
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED, "warped": WARPED}
FOUR = ("llama", "qwen3", "mistral-window", "qwen3-moe")
PREDICTING = [
    name
    for name in EVERY
    if any(
        type(memory).observe_prediction is not Memory.observe_prediction for memory in build(name, toy_parts()).memories
    )
]
RIGHT_HELPS = [
    name
    for name in PREDICTING
    if name != "graft-x+text=false"
    and (
        name.startswith(("graft-x", "pld", "adapld", "samd", "suffix"))
        or name in ("retrieval", "graft", "logitspec", "lookahead", "rest", "mtp", "tokenswift")
    )
]
COSTS = {"usual": (1.0, 1.6), "free-rows": (1.0, 1.0), "dear-rows": (1.0, 40.0)}


def decoded_ids(ours: Session, length: int = 60, new: int = 24, sampling: Sampling = GREEDY, eos=()) -> list[int]:
    return answered(ours, toy_prompt(length), new, sampling, eos).token_ids


def promised(method: str, sampling: str) -> Sampling:
    """Returns a sampling with which a method must equal plain decoding: greedy unless it promises exact answers."""
    return SAMPLINGS[sampling] if EVERY[method].promise == "exact" else GREEDY


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("method", "budget", "family", "sampling", "chunk", "prompt"),
    covering(LOSSLESS, (None, 1, 2, 8, 60), FOUR, SAMPLINGS, (17, 1, 7, None), ("read", "recalled")),
    ids=named,
)
def test_every_method_decodes_exactly_the_targets_tokens(method, budget, family, sampling, chunk, prompt):
    """This holds for any budget and chunks, and if the prompt's beginning was read for another request."""
    sampling = promised(method, sampling)
    ours = toy_session(method, family, budget, chunk, prefixes=Prefixes(2**30, 16))
    if prompt == "recalled":
        answered(ours, toy_prompt(60)[:50], 1)
    found = answered(ours, toy_prompt(60), 16, sampling)
    assert found.token_ids == plain(family, 60, 24, sampling)[:16]
    memories = ours.engine.proposer.memories
    part = 16 if any(memory.wants.topk for memory in memories) else 1
    known = min(48, (61 - max((memory.tail for memory in memories), default=1)) // part * part)
    assert found.stats.reused_tokens == (max(0, known - 1) if prompt == "recalled" else 0)


def test_the_first_token_is_drawn_at_the_prompts_end():
    for length in range(40, 60):
        assert decoded_ids(toy_session("ar"), length, 1, SAMPLED) == plain("llama", length, 24, SAMPLED)[:1]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("method", "family", "sampling", "costs"), covering(CHOOSING, FOUR, SAMPLINGS, COSTS), ids=named
)
def test_budgets_that_a_method_chooses_do_not_change_the_answer(method, family, sampling, costs):
    (one, sixty), sampling = COSTS[costs], promised(method, sampling)
    spent = LiveCosts(replace(TOY_COSTS, passes={0: {1: one, 60: sixty}}), frozen=True)
    ours = toy_session(method, family, adaptive=True, costs=spent)
    assert decoded_ids(ours, sampling=sampling) == plain(family, 60, 24, sampling)


def predicted(right: list[int], kind: str) -> list[int]:
    """Returns a prediction: the right answer, one that is right up to its middle and at its end, or noise."""
    noise = torch.randint(1, VOCAB, (len(right),), generator=torch.Generator().manual_seed(7)).tolist()
    middle, third = len(right) // 2, len(right) // 3
    return {"right": right, "half-right": [*right[:middle], *noise[:third], *right[-third:]], "noise": noise}[kind]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("method", "prediction", "family", "sampling"),
    covering(EVERY, ("right", "half-right", "noise"), FOUR[:3], SAMPLINGS),
    ids=named,
)
def test_a_prediction_does_not_change_the_answer(method, prediction, family, sampling):
    """A half-right prediction is one of several texts, for a prompt whose beginning was read before."""
    lossy = method in LOSSY
    sampling = SAMPLINGS[sampling] if lossy else promised(method, sampling)
    ours, right = toy_session(method, family, prefixes=Prefixes(2**30, 16)), plain(family, 60, 24, sampling)[:16]
    texts = predicted(right, prediction)
    if prediction == "half-right":
        answered(ours, toy_prompt(60)[:50], 1)
        texts = [texts, right[:1], right[5:]]
    found = answered(ours, toy_prompt(60), 16, sampling, prediction=texts).token_ids
    assert len(found) == 16 if lossy else found == right


@pytest.mark.one_in(6)
@pytest.mark.parametrize("method", RIGHT_HELPS)
def test_a_right_prediction_needs_fewer_steps(method):
    right = plain("llama", 1, 40, GREEDY)
    steps = {
        kind: answered(toy_session(method), toy_prompt(1), 40, prediction=kind and predicted(right, kind)).stats.steps
        for kind in (None, "right", "half-right")
    }
    assert steps["right"] < steps[None] and steps["half-right"] < steps[None]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("method", PREDICTING)
def test_a_prediction_does_not_reach_the_next_request(method):
    """Only the answer itself may reach it, in a memory that lasts."""
    right, other = plain("llama", 60, 24, GREEDY), toy_prompt(40, seed=3)
    found = []
    for prediction in (None, other):
        ours = toy_session(method)
        answered(ours, toy_prompt(30, seed=9), 1, Sampling(replay=(5,)), prediction=prediction)
        again = answered(ours, toy_prompt(60), 24)
        assert again.token_ids == right
        found.append(again.stats.accepted_per_step)
    assert found[0] == found[1]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("method", LOSSLESS)
def test_every_method_gives_exactly_as_many_tokens_as_requested(method):
    """The prompts have one token or several."""
    ours = toy_session(method)
    for length, new in ((1, 1), (1, 24), (60, 11)):
        found = answered(ours, toy_prompt(length), new)
        assert found.token_ids == plain("llama", length, 24, GREEDY)[:new] and found.finish_reason == "length"
        stats = found.stats
        assert stats.new_tokens == new == 1 + sum(stats.accepted_per_step) + stats.steps


@pytest.mark.one_in(6)
@pytest.mark.parametrize("method", LOSSLESS)
def test_an_end_token_is_the_last_even_inside_an_accepted_path(method):
    """Every fourth token of the answer is an end token once, with another start for each method."""
    ours, expected = toy_session(method), plain("llama", 60, 24, GREEDY)
    ends = sorted(set(expected), key=expected.index)[LOSSLESS.index(method) % 4 :: 4]
    for end in ends:
        assert decoded_ids(ours, eos=(end,)) == expected[: expected.index(end) + 1]
    assert len(ends) >= 2


def session_with_answer() -> Session:
    """Returns a session whose matrix has Llama's answer to a prompt of one token, which adds next to nothing."""
    text = toy_prompt(1) + plain("llama", 1, 24, GREEDY)
    rows = torch.full((VOCAB + 1, 8), -1, dtype=torch.int32)
    for token in set(text):
        after = dict.fromkeys(b for a, b in pairwise(text) if a == token)
        rows[token, : len(after)] = torch.tensor(list(after), dtype=torch.int32)
    return toy_session("retrieval", snapshot=rows)


def test_an_answer_ends_at_an_end_token_inside_an_accepted_path():
    ours, expected = session_with_answer(), plain("llama", 1, 24, GREEDY)
    lengths = [len(step.tokens) for step in ours.open(toy_prompt(1), 24, eos=())]
    inside = 0
    for end in set(expected):
        at = expected.index(end)
        assert decoded_ids(ours, 1, eos=(end,)) == expected[: at + 1]
        inside += at + 1 not in accumulate(lengths)
    assert inside >= 5


def test_the_last_step_may_accept_all_but_one_of_the_tokens_left():
    ours = session_with_answer()
    first = [len(step.tokens) for step in ours.open(toy_prompt(1), 24, eos=())][1]
    assert first >= 4
    for new in range(2, 2 + first):
        assert answered(ours, toy_prompt(1), new).stats.accepted_per_step == (new - 2,)


def test_the_answers_vary():
    """If one token were repeated again and again, the end could never be inside an accepted path."""
    for family in FAMILIES:
        text = plain(family, 60, 24, GREEDY)
        assert len(set(text)) >= 9
        assert max(len(list(run)) for _, run in groupby(text)) <= 4


def test_some_of_these_answers_accept_several_tokens_per_step():
    """Otherwise the tests above would prove nothing."""
    for method in ("retrieval", "graft", "graft+pruning=none+retrieved=20", "token-recycling"):
        assert max(answered(toy_session(method), toy_prompt(60), 24).stats.accepted_per_step) >= 3
    assert sum(answered(toy_session("eagle3", "mistral-window"), toy_prompt(60), 40).stats.accepted_per_step) >= 3


@pytest.mark.one_in(6)
@pytest.mark.parametrize("method", LOSSLESS)
def test_replay_returns_the_recording_and_counts_its_tokens(method):
    recording = tuple(toy_prompt(16, seed=3))
    found = answered(toy_session(method), toy_prompt(60), 99, Sampling(replay=recording))
    assert found.token_ids == list(recording)
    assert found.stats.new_tokens == 16


def test_a_warm_snapshot_changes_speed_and_not_the_answer():
    generator = torch.Generator().manual_seed(0)
    snapshot = torch.randint(0, VOCAB, (VOCAB + 1, 8), generator=generator, dtype=torch.int32)
    ours = toy_session("graft", snapshot=snapshot)
    assert decoded_ids(ours) == plain("llama", 60, 24, GREEDY)
    assert decoded_ids(ours) == plain("llama", 60, 24, GREEDY)  # again, because nothing of a request is left


def test_lossy_methods_are_neither_the_default_nor_compared():
    """The tests of predictions check their answers; `tests/eval/test_report.py` keeps them out of lossless tables."""
    assert LOSSY and not {*COMPARED, DEFAULT, HEADLESS} & set(LOSSY)


def test_a_fallback_is_not_checked_in_place_of_the_named_method():
    with pytest.raises(ValueError, match=r"graft cannot be checked: .*instead of graft"):
        assert_lossless("graft", (toy_model("llama"), None), None)

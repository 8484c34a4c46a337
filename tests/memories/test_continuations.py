"""Continuations predict the next token from earlier contexts, longest first, as often as such contexts are right."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from toys.continuations import DOUBT, PythonContinuations
from toys.levels import stop_without_kernels

from longgraft.kernels.build import NotBuilt
from longgraft.memories.continuations import (
    KEPT,
    ORDERS,
    WIDTH,
    Continuations,
    Draft,
    NoContinuations,
    Rows,
    compiled,
    continuations,
)
from longgraft.memories.partial_matching import PartialMatching
from longgraft.protocol.observation import Observation
from longgraft.trees.ranked_paths import RankedPaths
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT, ProposalTree
from longgraft.zoo.mtp import RollOuts


@pytest.fixture(autouse=True)
def built():
    code = compiled()
    if isinstance(code, NotBuilt):
        stop_without_kernels(code)


def model_of(text: list[int]) -> Continuations:
    model = continuations()
    model.extend(text)
    return model


def tokens(model, path: tuple[int, ...] = ()) -> list[int]:
    """Lists the possible next tokens, most probable first."""
    return [one.token for one in sorted(model.after(path)[0], key=lambda one: -one.probability)]


def random_rows(rng: random.Random, nodes: int) -> Rows:
    """Returns rows of a random tree."""
    tokens = [rng.randrange(40) for _ in range(nodes)]
    parents = [-1] + [rng.randrange(node) for node in range(1, nodes)]
    ids = [[*rng.sample(range(40), WIDTH - 1), -1] for _ in range(nodes)]
    chances = [[rng.random() / WIDTH for _ in range(WIDTH)] for _ in range(nodes)]
    whole = np.asarray(tokens, np.int32), np.asarray(parents, np.int32), np.arange(nodes, dtype=np.int32)
    return Rows(rng.randrange(-1, 40), *whole, np.asarray(ids, np.int32), np.asarray(chances, np.float32))


def random_draft(rng: random.Random, text: list[int]) -> Draft:
    """Returns a draft of the text's next tokens and of others, some without a probability, from several sources."""
    parents = [-1] + [rng.randrange(node) for node in range(1, 40)]
    tokens = [0]
    scores = [0.0]
    for node in range(1, 40):
        siblings = [tokens[other] for other in range(1, node) if parents[other] == parents[node]]
        ahead = text[: node + 1]
        tokens.append(rng.choice([one for one in (*ahead, *range(60, 110)) if one >= 0 and one not in siblings]))
        scores.append(scores[parents[node]] + rng.choice([-0.1, -0.7, -2.0, -2.0, -2.0, float("nan"), float("-inf")]))
    origin = [ROOT] + [rng.choice([DRAFT, RETRIEVED, DRAFT | RETRIEVED]) for _ in range(39)]
    whole = np.asarray(tokens), np.asarray(parents), np.asarray(scores, np.float32), np.asarray(origin, np.int8)
    return Draft(*whole)


def same(one: RankedPaths, other: RankedPaths) -> bool:
    fields = np.array_equal(one.fields, other.fields)
    return fields and np.array_equal(one.probabilities, other.probabilities)


def noisy(seed: int, length: int = 700) -> list[int]:
    """Returns a text of copies of its own spans, random tokens and ends of texts."""
    rng, text = random.Random(seed), [1, 2, 3]
    while len(text) < length:
        at = rng.randrange(len(text))
        text += text[at : at + rng.randrange(40)] + [rng.randrange(-1, 40 * seed) for _ in range(rng.randrange(4))]
    return text


@pytest.mark.parametrize("seed", [1, 2, 30])
def test_compiled_continuations_give_the_same_numbers(seed):
    text, python, compiled, rng = noisy(seed), PythonContinuations(), continuations(), random.Random(seed)
    text += [token for n in range(2 * KEPT) for token in (1, 50 + n)] + [1]  # more than a context keeps
    floors = [rng.random() / 50 for _ in range(80)]
    rows = {begin: random_rows(rng, 30) for begin in range(0, len(text), 100)}
    for begin in range(0, len(text), 100):
        for model in (python, compiled):
            model.extend(text[begin : begin + 100])
            if begin == 300:
                model.answer()
            if begin > 100:
                model.write(rows[begin])
            model.read(text[begin + 90 : begin + 200])  # mostly text that comes later
        draft = random_draft(rng, text[begin : begin + 100])
        for asked in (*([0.0] * budget for budget in (0, 1, 70, 200)), floors):
            assert same(python.rank(asked), compiled.rank(asked))
            assert same(python.rank(asked, draft), compiled.rank(asked, draft))  # from which both learn
        for path in ((), (text[5],), tuple(text[20:70])):
            if min(path, default=0) >= 0:
                assert python.after(path) == compiled.after(path)


def test_compiled_continuations_report_that_memory_is_full():
    functions = compiled()
    model, nowhere = functions.longgraft_text_new(None), [None] * 6
    with pytest.raises(MemoryError, match=r"^The system has no memory left"):
        functions.longgraft_text_rank(model, 2**40, None, 0, *nowhere)
    functions.longgraft_text_free(model)


def test_the_longest_context_comes_first_and_shorter_ones_add_further_tokens():
    model = model_of([1, 2, 3, 9, 1, 2, 4, 9, 7, 2, 5, 8, 1, 2])
    found, longest = model.after(())
    assert longest == 2 and {one.token for one in found[:2]} == {3, 4} and [one.token for one in found[2:]] == [5]
    by = {one.token: one for one in found}
    assert by[4].probability == pytest.approx(2 * by[3].probability) and by[5].probability > 0
    assert sum(one.probability for one in found) < 1
    assert tokens(model, (4,)) == [9] and model.after((6,)) == ([], 0)


def test_the_newest_continuations_of_a_context_are_kept_and_counted():
    model = model_of([token for n in range(10, 10 + KEPT + 2) for token in (1, n)] + [1, 12, 1, 30, 1])
    kept = {one.token: one.probability for one in model.after(())[0]}
    assert len(kept) == KEPT and not {10, 11} & kept.keys()
    assert kept[30] == pytest.approx(1.5 * kept[12]) == pytest.approx(3 * kept[20])  # seen twice, and newest


def test_a_context_is_trusted_as_often_as_it_was_right():
    always, never = model_of([1, 2, 3, 4] * 60 + [1]), model_of([n for k in range(60) for n in (1, 10 + k)] + [1])
    assert always.after(())[0][0].probability > 0.97
    assert sum(one.probability for one in never.after(())[0]) < 0.1
    fresh = model_of([1, 2, 1])
    assert sum(one.probability for one in fresh.after(())[0]) == pytest.approx(1 / (1 + DOUBT), abs=0.05)


def test_a_long_copy_is_followed_far():
    span = list(range(100, 1000))
    model = model_of([*span, *span[:300]])
    ranked = model.rank([0.0] * 41)
    assert ranked.tokens[1:31].tolist() == span[300:330]
    assert ranked.probabilities[30] > 0.5 and ranked.lengths[1] == ORDERS[-1]


def again(first: int, count: int, right: bool) -> list[int]:
    """Returns pairs of new tokens, each followed by its first token, and by the second one again if that is right."""
    return [token for n in range(first, first + 4 * count, 4) for token in (n, n + 1, n, n + 1 if right else n + 2)]


def believed(model: Continuations) -> float:
    """Returns the probability of what followed a token that was seen once."""
    model.extend([10000, 10001, 10000])
    return model.after(())[0][0].probability


def test_an_answer_that_repeats_less_than_its_prompt_is_soon_trusted_less():
    alike, answering = model_of(again(100, 60, True)), model_of(again(100, 60, True))
    answering.answer()
    for model in (alike, answering):
        model.extend(again(1000, 10, False))
    assert believed(answering) < 0.8 * believed(alike)


def test_an_answer_begins_with_what_earlier_answers_taught():
    earlier = continuations()
    earlier.answer()
    earlier.extend(again(100, 60, True))
    plain, taught = continuations(), continuations(earlier.rates)
    assert believed(plain) == believed(taught)  # a prompt is another text
    plain, taught = continuations(), continuations(earlier.rates)
    plain.answer()
    taught.answer()
    assert believed(taught) > 1.3 * believed(plain)


def test_a_memory_keeps_rates_of_answers_and_no_tokens():
    memory, fresh = PartialMatching(), PartialMatching()
    observed(memory, [1, 2], 3)
    observed(memory, [3, *again(100, 60, True)], 5, prompt=False)
    memory.reset(0)
    for one in (memory, fresh):
        observed(one, [1, 2], 100)
        observed(one, [100], 7, prompt=False)
    assert tokens(memory.known()) == tokens(fresh.known()) == []
    assert believed(memory.known()) > 1.3 * believed(fresh.known())


def test_no_context_reaches_across_the_end_of_a_text():
    model = model_of([5, 6, 7, -1, 8, 9, 5, 6])
    assert tokens(model) == [7] and tokens(model, (7,)) == []
    assert model_of([6, 7, -1, 7]).after(()) == ([], 0)


def test_a_ranking_ends_where_no_larger_tree_can_pay():
    model = model_of([1, 2, 3, 4] * 20 + [1])
    whole = model.rank([0.0] * 30)
    assert len(whole) == 30
    assert whole.tokens[:4].tolist() == [0, 2, 3, 4] and whole.parents[:4].tolist() == [-1, 0, 1, 2]
    floor = (whole.probabilities[4] + whole.probabilities[5]) / 2
    assert same(model.rank([floor] * 30), whole.first(5))


def test_a_passage_with_a_longer_context_is_trusted_as_often_as_it_was_right():
    model = model_of([1, 2, 3, 4, 5, 1, 2])
    model.read([9, 1, 2, 7])
    assert tokens(model) == [3]  # its context is no longer than the text's: 1, 2
    model.read([5, 1, 2, 7])
    (token, first), *_ = sorted(model.after(())[0], key=lambda one: -one.probability)
    assert model.after(())[1] == 3 and set(tokens(model)) == {7, 3} and token == 7
    for _ in range(20):
        model.extend([3, 4, 5, 1, 2])
    assert tokens(model)[0] == 3
    model.read([8, 6, 2, 7])
    model.extend([8, 6, 2])
    assert next(one.probability for one in model.after(())[0] if one.token == 7) < first


def test_without_compiled_code_nothing_is_predicted():
    model = NoContinuations()
    model.extend([1, 2, 3, 1, 2])
    assert model.after(()) == continuations().after(())
    for floors in ([], [0.0] * 9):
        assert same(model.rank(floors), continuations().rank(floors))


def test_without_compiled_code_a_draft_is_ranked_alone():
    rng = random.Random(5)
    for floors in ([0.0], [0.0] * 9, [0.0] * 90, [0.05] * 90):
        draft = random_draft(rng, [1, 2, 3, 4])
        expected, found = continuations().rank(floors, draft), NoContinuations().rank(floors, draft)
        assert sorted(found.tokens.tolist()) == sorted(expected.tokens.tolist())
        assert found.probabilities == pytest.approx(expected.probabilities, rel=1e-5)
        above = [-1, *found.parents[1:].tolist()]
        assert all(parent < node for node, parent in enumerate(above))


# The memory ----------------------------------------------------------------------------------------------------------


def observed(memory: PartialMatching, part: list[int], following: int, prompt: bool = True) -> None:
    memory.observe(
        Observation(ProposalTree.chain(torch.tensor(part)), torch.arange(len(part)), following, prompt=prompt)
    )


def test_a_root_is_in_the_text_before_it_is_in_the_cache():
    memory = PartialMatching()
    observed(memory, [5, 6], 7)
    memory.observe(Observation(ProposalTree.chain(torch.tensor([7, 8, 9])), torch.arange(2), 5))
    assert memory.text == [5, 6, 7, 8, 5] and tokens(memory.known()) == [6]


@pytest.mark.parametrize("kind", [PartialMatching, RollOuts])
def test_a_memory_rewound_to_the_mark_of_another_predicts_the_same(kind):
    memory, other = kind(), kind()
    for one in (memory, other):
        one.reset(0)
    memory.observe_prediction(torch.tensor([1, 2, 3, 4, 9]))
    observed(memory, [5, 3, 4, 6, 7, *[3, 4, 6] * 6], 2)
    observed(memory, [2, 3], 4, prompt=False)
    other.rewind(memory.mark())
    for one in (memory, other):
        observed(one, [4], 3, prompt=False)
    assert memory.text == other.text and same(memory.known().rank([0.0] * 20), other.known().rank([0.0] * 20))
    memory.reset(0)
    observed(memory, [1, 2], 3)
    assert tokens(memory.known()) == []  # a prediction ends with its request

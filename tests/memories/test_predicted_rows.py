"""Rows: what the target predicted elsewhere, mixed with what followed in the text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys.levels import stop_without_kernels
from toys.models import toy_target
from toys.oracle import plain
from toys.sessions import toy_parts, toy_prompt, toy_session

from benchmarks.recorded import recorded_rows
from longgraft.acceptance.sampling import Sampling
from longgraft.budget.cost_model import Costs, LiveCosts
from longgraft.kernels.build import NotBuilt
from longgraft.memories.continuations import WIDTH, compiled
from longgraft.memories.partial_matching import PartialMatching
from longgraft.methods.find import build
from longgraft.protocol.observation import Observation, Wants
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import RETRIEVED, ROOT, ProposalTree


@pytest.fixture(autouse=True)
def built():
    code = compiled()
    if isinstance(code, NotBuilt):
        stop_without_kernels(code)


def rows_of(nodes: int, tokens: dict[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns rows that say for some nodes which token comes next, with a probability of 0.9."""
    ids = torch.full((nodes, WIDTH), -1, dtype=torch.int32)
    for node, token in tokens.items():
        ids[node, 0] = token
    return ids, torch.full((nodes, WIDTH), 0.9)


def read(memory: PartialMatching, prompt: list[int], following: int, said: dict[int, int]) -> None:
    """Gives a prompt whose rows are known at some positions."""
    places = sorted(said)
    ids, probabilities = rows_of(len(places), {row: said[place] for row, place in enumerate(places)})
    chain = ProposalTree.chain(torch.tensor(prompt))
    memory.observe(
        Observation(
            chain,
            torch.arange(len(prompt)),
            following,
            ids,
            prompt=True,
            ranked=torch.tensor(places, dtype=torch.int64),
            topk_probabilities=probabilities,
        )
    )


def step(
    memory: PartialMatching,
    tokens: list[int],
    parents: list[int],
    path: list[int],
    following: int,
    said: dict[int, int],
) -> None:
    """Gives a verified tree and what its nodes said."""
    n = len(tokens)
    tree = ProposalTree.build(tokens, parents, [0.0] * n, [ROOT] + [RETRIEVED] * (n - 1))
    ids, probabilities = rows_of(n, said)
    memory.observe(Observation(tree, torch.tensor(path), following, ids, topk_probabilities=probabilities))


def after(memory: PartialMatching, *path: int) -> dict[int, float]:
    return {one.token: one.probability for one in memory.known().after(path)[0]}


def memory_of(prompt: list[int], following: int, said: dict[int, int]) -> PartialMatching:
    memory = PartialMatching(rows=True)
    memory.reset(100)
    read(memory, prompt, following, said)
    return memory


def test_a_prompt_position_says_what_comes_after_its_token():
    memory = memory_of([1, 2, 3, 4], 5, {1: 50})
    assert 50 in after(memory, 2) and 50 not in after(memory, 3)
    # It stands for one token and not for two, so that chunks do not matter: a later row of this token stands.
    step(memory, [5, 8, 2], [-1, 0, 1], [0], 6, {2: 51})
    assert 51 in after(memory, 1, 2) and 50 not in after(memory, 1, 2)


def test_a_rejected_node_says_what_comes_after_its_last_two_tokens():
    memory = memory_of([1, 2, 3], 4, {})
    step(memory, [4, 10, 11], [-1, 0, 1], [0], 7, {2: 60})
    assert after(memory, 10, 11) == {60: pytest.approx(0.9)}
    # Another token before 11: the row by the last token alone.
    assert after(memory, 11) == {60: pytest.approx(0.9)}
    step(memory, [7, 12, 11], [-1, 0, 1], [0], 8, {2: 61})
    assert after(memory, 10, 11)[60] and after(memory, 12, 11)[61] and after(memory, 13, 11)[61]


def test_the_row_of_a_root_stands_for_the_token_before_it_too():
    memory = memory_of([3], 4, {})
    step(memory, [4], [-1], [0], 9, {0: 77})
    step(memory, [9, 4], [-1, 0], [0], 8, {1: 78})
    assert 77 in after(memory, 3, 4) and 78 not in after(memory, 3, 4)
    assert 78 in after(memory, 5, 4) and 77 not in after(memory, 5, 4)


def test_a_vocabulary_may_have_fewer_tokens_than_a_row():
    memory = memory_of([1, 2], 3, {})
    tree = ProposalTree.build([3, 4], [-1, 0], [0.0] * 2, [ROOT, RETRIEVED])
    ids, probabilities = torch.tensor([[5, 6, 7], [2, 1, 0]]), torch.tensor([[0.5, 0.2, 0.1], [0.3, 0.2, 0.1]])
    memory.observe(Observation(tree, torch.tensor([0]), 9, ids, topk_probabilities=probabilities))
    assert after(memory, 4) == pytest.approx({2: 0.3, 1: 0.2, 0: 0.1})


def test_the_accepted_path_is_written_last():
    memory = memory_of([1, 2, 3], 4, {})
    # Node 1 is accepted; nodes 2 and 3 are rejected, and carry the same token.
    step(memory, [4, 10, 20, 10], [-1, 0, 0, 2], [0, 1], 7, {1: 60, 3: 61})
    assert 60 in after(memory, 10) and 61 not in after(memory, 10)


def believed(memory: PartialMatching) -> float:
    """Returns the text's share beside rows over all that was learnt."""
    text, everything = memory.known().shares.sum(axis=0)
    return text / everything


def test_the_text_is_trusted_as_often_as_it_was_right_where_rows_said_something_else():
    text = list(range(30, 60))
    copying = memory_of([*text, 1, 2, 3, *text[:5]], text[5], {})
    leaving = memory_of([*text, 1, 2, 3, *text[:5]], text[5], {})
    for place in range(5, 25, 2):
        tree = [text[place], text[place + 1]], [-1, 0]
        # A rejected node says that its token is followed by 90.  Then the answer has this token.
        for memory, following in ((copying, text[place + 2]), (leaving, 90)):
            step(memory, *tree, [0], text[place + 1], {1: 90})
            step(memory, [text[place + 1]], [-1], [0], following, {})
        step(leaving, [90], [-1], [0], text[place + 2], {})
    assert believed(copying) > 0.9 > 0.5 > believed(leaving)


def test_a_rewound_memory_predicts_as_at_its_mark():
    memory = memory_of([1, 2, 3, 1, 2], 3, {0: 50, 4: 51})
    step(memory, [3, 1, 70], [-1, 0, 0], [0, 1], 2, {0: 60, 1: 61, 2: 62})
    mark = memory.mark()
    paths = [(), (1,), (2,), (70,), (3, 70)]
    before = [memory.known().after(path) for path in paths]
    step(memory, [2, 70, 1], [-1, 0, 1], [0, 1], 9, {0: 80, 1: 81, 2: 82})
    assert [memory.known().after(path) for path in paths] != before
    for _ in range(2):
        memory.rewind(mark)
        assert [memory.known().after(path) for path in paths] == before


@pytest.mark.parametrize("logits", ["all", "last"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_reported_probabilities_are_those_of_the_softmax(family, logits, monkeypatch):
    """Gemma 2 caps its logits, also where only some of them are computed."""
    target = toy_target(family)
    if family == "gemma2":
        monkeypatch.setattr(target.config, "final_logit_softcapping", 0.5)
    chain = ProposalTree.chain(torch.arange(1, 9))
    (whole,) = target.run([Segment(chain, target.cache(16))], Wants())
    (report,) = target.run(
        [Segment(chain, target.cache(16), logits, torch.tensor([2, 5]))], Wants(topk=8, probabilities=True)
    )
    top = whole.logits.softmax(-1)[[2, 5]].topk(8)
    torch.testing.assert_close(report.topk_probabilities, top.values, atol=1e-5, rtol=1e-4)
    assert torch.equal(report.topk[:, 0], top.indices[:, 0].int())
    (without,) = target.run([Segment(chain, target.cache(16), logits)], Wants(topk=8))
    assert without.topk is not None and without.topk_probabilities is None


def machine(wide: float) -> LiveCosts:
    """Returns costs of a machine on which 60 rows cost so many plain passes."""
    return LiveCosts(Costs({}, "made up", {0: {1: 1.0, 60: wide}}, {}, {}), frozen=True)


@pytest.mark.parametrize(("wide", "wanted"), [(1.1, True), (20.0, False)])
def test_the_default_learns_rows_where_wide_trees_are_cheap(wide, wanted):
    proposer = build("graft-x-text", replace(toy_parts(), costs=machine(wide)), adaptive=True)
    assert any(memory.wants.probabilities for memory in proposer.memories) == wanted


def test_all_lanes_of_an_engine_use_rows_or_none_does():
    """Costs are corrected meanwhile, and prefixes are shared."""
    first = replace(toy_parts(), costs=machine(1.1))
    later = replace(first, costs=machine(20.0), kept={})
    for parts in (first, later):
        proposer = build("graft-x-text", parts, adaptive=True)
        assert any(memory.wants.probabilities for memory in proposer.memories)


def test_rows_can_be_left_out():
    for method in ("graft-x-text+rows=false", "graft-x-text"):
        proposer = build(method, toy_parts())
        assert any(memory.wants.topk for memory in proposer.memories) == (method == "graft-x-text")


def test_a_recording_has_the_greedy_answer_and_a_row_for_each_of_its_tokens():
    prompt = toy_prompt(60)
    answer, found = recorded_rows(toy_session("ar"), prompt, 6, 20)
    assert answer == plain("llama", 60, 6, Sampling())
    for place in range(5):
        ids, _ = found.rows[len(prompt) + place, ()]
        assert ids[0] == answer[place + 1]
    elsewhere = {(position, path[0]) for position, path in found.rows if path}
    assert elsewhere and elsewhere.isdisjoint((len(prompt) + place, answer[place + 1]) for place in range(5))

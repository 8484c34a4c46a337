"""Drafting inside or beside a partial cache: a small model's window, heads after one pass, frequent n-grams."""

from __future__ import annotations

import pytest
import torch
from toys.memories import Run
from toys.models import toy_target
from toys.observations import seen
from toys.sessions import TOYS, answered, toy_parts, toy_prompt, toy_session

from longgraft.memories.token_history import TokenHistory
from longgraft.methods.find import build
from longgraft.protocol.observation import Wants
from longgraft.protocol.proposer import Ask
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import DRAFT, RETRIEVED, ProposalTree
from longgraft.zoo.medusa.methods import MEDUSA
from longgraft.zoo.small_model import SMALL, DraftModelCache
from longgraft.zoo.tokenswift import FrequentNgrams
from longgraft.zoo.triforce import StreamingDrafter


def streaming(window: int = 20, length: int = 3) -> StreamingDrafter:
    """Returns a drafter whose history is empty."""
    target = toy_target()
    history = TokenHistory()
    history.reset(300)
    cache = DraftModelCache(TOYS[SMALL.name](target, 0), target.vocab_size)
    return StreamingDrafter(cache, history, (4, window, length))


def test_a_window_is_the_first_tokens_and_the_newest_and_moves_by_a_quarter():
    drafter, starts = streaming(), set()
    for token in range(80):
        text = drafter.text(token)
        assert len(text) <= 20 and text[-1] == token
        if token < 20:
            assert text == [*range(token + 1)]
        else:
            start, newest = text[4], text[4:]
            assert text[:4] == [0, 1, 2, 3] and newest == [*range(start, token + 1)] and len(newest) > 12
            starts.add(start)
        drafter.history.observe(seen([token]))
    assert starts == {*range(8, 68, 4)}


@pytest.mark.parametrize("jump", [0, 1, 7, 40])
def test_a_windows_draft_is_the_models_answer_to_the_window_alone(jump):
    """It does not depend on the window that was read before, `jump` tokens earlier."""
    drafter, prompt = streaming(), toy_prompt(90)
    drafter.history.observe(seen(prompt[:40], prompt=True))
    drafter.propose(Ask(prompt[40], 8, 40))
    drafter.history.observe(seen(prompt[40 : 41 + jump]))
    root = prompt[41 + jump]
    text, model = drafter.text(root), TOYS[SMALL.name](toy_target(), 0)
    tree, said = drafter.propose(Ask(root, 8, 41 + jump)), []
    for _ in range(3):
        (report,) = model.run(
            [Segment(ProposalTree.chain(torch.tensor(text + said)), model.cache(64), "last")], Wants()
        )
        said.append(int(report.logits[0].argmax()))
    assert tree.tokens.tolist() == [root, *said] and tree.is_chain and (tree.scores[1:] < tree.scores[:-1]).all()


def test_frequent_ngrams_come_from_the_answer_with_the_most_frequent_first():
    memory = FrequentNgrams()
    memory.reset(100)
    memory.observe(seen([1, 2, 3, 4, 1, 2, 3, 4], prompt=True))
    assert memory.after(1, 9) == []
    memory.observe(seen([1, 7, 7, 8]))
    mark = memory.mark()
    memory.observe(seen([1, 2, 3, 4, 1, 2, 3, 4]))
    assert memory.after(1, 9) == [(2, 3, 4), (7, 7, 8)] and memory.after(1, 1) == [(2, 3, 4)]
    assert memory.after(8, 9) == [(1, 2, 3)]
    memory.rewind(mark)
    assert memory.after(1, 9) == [(7, 7, 8)] and memory.after(8, 9) == []


def test_tokenswift_verifies_the_targets_token_three_tokens_of_each_head_and_matching_ngrams():
    run = Run("tokenswift+rows=48")
    partial, frequent = run.proposer.memories
    cache = partial.fresh()
    (report,) = run.parts.target.run([Segment(ProposalTree.root_only(run.root), cache)], Wants(final=True))
    token = int(report.logits[0].argmax())
    heads = run.parts.the(MEDUSA).logits(report.final, run.parts.target.logits)[0]
    frequent.observe(seen([token, 91, 92, 93]))
    tree = run.proposer.propose(Ask(run.root, 101, run.verifier.cache.position))
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents.tolist()):
        children.setdefault(parent, []).append(node)
    assert [int(tree.tokens[node]) for node in children[0]] == [token]
    level = children[0]
    for head in heads[:3]:
        below = [[node for node in children[one] if tree.origin[node] & DRAFT] for one in level]
        for nodes in below:
            assert set(tree.tokens[nodes].tolist()) == set(head.topk(3).indices.tolist())
        level = [node for nodes in below for node in nodes]
    copied = [node for node in range(len(tree)) if tree.origin[node] & RETRIEVED]
    assert tree.tokens[copied].tolist() == [91, 92, 93] and len(tree) == 41 + 3


def test_a_small_budget_keeps_the_most_probable_nodes():
    run = Run("tokenswift+rows=48")
    whole, small = (run.proposer.propose(Ask(run.root, n, run.verifier.cache.position)) for n in (101, 12))
    assert len(small) == 12 and torch.equal(small.tokens, whole.top(12).tokens)


def test_a_window_fits_the_small_models_positions():
    proposer = build("triforce+window=65536", toy_parts())
    assert proposer.inner.window == 512 - 1


def test_an_interrupted_small_pass_is_forgotten(monkeypatch):
    def drafted(drafter: StreamingDrafter) -> torch.Tensor:
        return drafter.propose(Ask(3, 4, 20)).tokens

    drafter, expected = streaming(), drafted(shown(streaming()))
    shown(drafter)
    with monkeypatch.context() as patched:
        patched.setattr(type(drafter.small.model), "run", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            drafted(drafter)
    assert torch.equal(drafted(drafter), expected)


def shown(drafter: StreamingDrafter) -> StreamingDrafter:
    drafter.history.observe(seen(toy_prompt(20), prompt=True))
    return drafter


def test_half_of_a_small_tree_is_left_to_ngrams():
    session = toy_session("tokenswift", budget=16)
    found = [answered(session, toy_prompt(200, seed=seed), 40).stats.accepted_by_origin for seed in range(3)]
    assert sum(by["retrieved"] + by["both"] for by in found) > 0

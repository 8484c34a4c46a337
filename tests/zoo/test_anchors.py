"""PLD+ and AdaPLD: the choice of the anchor, the branches beside the copy, and the states used as contexts."""

from __future__ import annotations

import pytest
import torch
from toys.models import hidden_states, toy_target
from toys.sessions import toy_parts, toy_prompt
from toys.trees import begun, shape_of

from longgraft.acceptance.rules import Greedy
from longgraft.memories.token_history import TokenHistory
from longgraft.methods.find import build, find
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.target_model.verifier import Verifier
from longgraft.trees.tree import ROOT, ProposalTree
from longgraft.zoo.adapld import AdaPld, Branches, Likeness
from longgraft.zoo.anchors import Anchors
from longgraft.zoo.hidden_states import HiddenStates
from longgraft.zoo.pld_plus import PldPlus

V = 12
CONTEXTS = torch.eye(4)  # states of four kinds of context
X, END = 9, 11


def anchors(text: list[int], kinds: list[int], final: torch.Tensor | None = None) -> tuple[Anchors, HiddenStates]:
    """Returns (anchors of a text with states of these kinds, its final states [t, V])."""
    history, context, last = TokenHistory(), HiddenStates(1), HiddenStates(None)
    chunk = ProposalTree.chain(torch.tensor(text), ROOT)
    final = torch.zeros(len(text), V) if final is None else final
    seen = Observation(chunk, torch.arange(len(text)), 0, hidden={1: CONTEXTS[kinds]}, final=final, prompt=True)
    for memory in (history, context, last):
        memory.reset(50)
        memory.observe(seen)
    return Anchors(history, context, frozenset({END})), last


#        0  1  2  3  4  5  6  7  8      X is at 1, 4 and 7, after states of kinds 0, 1 and 2
TEXT = [1, X, 2, 3, X, 4, 5, X, 6]
KINDS = [0, 3, 3, 1, 3, 3, 2, 3]


@pytest.mark.parametrize("kind, copied", [(0, [2, 3, X, 4, 5]), (1, [4, 5, X, 6, X]), (2, [6, X])])
def test_the_anchor_has_the_context_most_like_that_of_the_root(kind, copied):
    """Contexts are the states of the tokens before, because the root has no state yet."""
    places, _ = anchors(TEXT, [*KINDS, kind])
    tree = PldPlus(places, length=5).propose(Ask(X, 11, 9))
    assert tree.tokens.tolist() == [X, *copied] and tree.is_chain
    assert tree.match.tolist() == [0, *[1] * len(copied)]
    assert PldPlus(places, length=5).propose(Ask(X, 3, 9)).tokens.tolist() == [X, *copied[:2]]
    assert PldPlus(places, length=5).propose(Ask(X, 1, 9)).tokens.tolist() == [X]


def test_neither_the_first_token_nor_the_root_itself_is_an_anchor():
    places, _ = anchors([X, 1, 2], [0, 1, 2])
    assert PldPlus(places, 5).propose(Ask(X, 11, 3)).tokens.tolist() == [X]
    assert PldPlus(places, 5).propose(Ask(2, 11, 3)).tokens.tolist() == [2, 2]  # anchor 2, which the root follows
    assert PldPlus(places, 5).propose(Ask(7, 11, 3)).tokens.tolist() == [7]


def probable(**tokens: list[int]) -> torch.Tensor:
    """Returns logits [9, V] that rank the tokens given as p<n> first at position n."""
    final = torch.zeros(9, V)
    for name, order in tokens.items():
        final[int(name[1:]), order] = torch.arange(len(order), 0, -1).float()
    return final


def adaptive(
    kind: int = 1,
    likeness: float | None = 0.9,
    count: int = 2,
    successors: bool = True,
    length: int = 3,
    **tokens: list[int],
) -> AdaPld:
    """Returns an AdaPLD proposer for which 8 has the embedding of X and all other tokens differ."""
    places, last = anchors(TEXT, [*KINDS, kind], probable(**tokens))
    embedding = torch.eye(V)
    embedding[8] = embedding[X]
    like = None if likeness is None else Likeness(embedding, likeness)
    branches = Branches(count, last, lambda final: final, successors) if count else None
    return AdaPld(places, length, like, branches)


def paths(*chains: list[int]) -> set[tuple[int, ...]]:
    return {tuple(chain[:n]) for chain in chains for n in range(1, len(chain) + 1)}


def test_probable_tokens_at_the_anchor_are_branches_with_a_successor_each():
    """The anchor is at 4: token 4 is copied from there, 6 and 2 were probable; X follows 6, and 3 follows 2."""
    tree = adaptive(p4=[6, 4, 2, 1], p7=[1, 1]).propose(Ask(X, 39, 9))
    assert shape_of(tree) == paths([X, 4, 5, X], [X, 6, X], [X, 2, 3])
    without = adaptive(p4=[6, 4, 2, 1], successors=False).propose(Ask(X, 39, 9))
    assert shape_of(without) == paths([X, 4, 5, X], [X, 6], [X, 2])
    alone = adaptive(count=0).propose(Ask(X, 39, 9))
    assert shape_of(alone) == paths([X, 4, 5, X]) and len(adaptive(count=0).memories) == 2


def test_a_successor_is_taken_from_the_context_most_like_the_anchors():
    """X follows branch 5 at one place only; X is at three places, and the one with the anchor's context is used."""
    tree = adaptive(kind=0, p1=[X, 5], p0=[1]).propose(Ask(X, 39, 9))
    # The state at anchor 1 is of kind 3, and none before an X is, so that the first of equal places is used.
    assert shape_of(tree) == paths([X, 2, 3, X], [X, X, 2], [X, 5, X])
    places, last = anchors(TEXT, [0, 2, 3, 1, 3, 3, 2, 3, 0], probable(p1=[X, 5]))  # kind 2, as before the X at 7
    tree = AdaPld(places, 3, None, Branches(2, last, lambda final: final)).propose(Ask(X, 39, 9))
    assert (X, X, 6) in shape_of(tree)


def test_a_new_root_has_similar_tokens_as_anchors_and_copies_nothing():
    tree = adaptive(p4=[6, 4, 2]).propose(Ask(8, 39, 9))
    assert shape_of(tree) == paths([8, 6, 8], [8, 4, 5])
    assert len(adaptive(likeness=None, p4=[6, 4]).propose(Ask(8, 39, 9))) == 1
    assert len(adaptive(p4=[6, 4]).propose(Ask(7, 39, 9))) == 1  # no token is similar to 7


def test_end_tokens_are_no_anchors():
    text = [1, END, 2, END, 3, 1]
    places, last = anchors(text, [0] * 6, torch.zeros(6, V))
    flat = Likeness(torch.ones(V, 2), 0.5)  # every token is like every other
    branches = Branches(1, last, lambda final: torch.arange(V).float())
    proposer = AdaPld(places, 3, flat, branches)
    assert len(proposer.propose(Ask(END, 20, 6))) == 1
    # They may be copied and may be branches.  Token 10 is new, so its successor is that of the first similar token.
    assert shape_of(proposer.propose(Ask(2, 20, 6))) == paths([2, END, 3, 1], [2, 10, END])
    (found,) = places.like(places.history.up_to(7), [7], flat.embedding, 0.5)
    assert found.tolist() == [2, 4, 5]


@pytest.mark.parametrize(
    "budget, shape",
    [(2, [[X, 4]]), (3, [[X, 4], [X, 6]]), (5, [[X, 4, 5], [X, 6, X]]), (7, [[X, 4, 5, X], [X, 6, X], [X, 2]])],
)
def test_the_copy_gets_half_of_a_small_budget(budget, shape):
    tree = adaptive(p4=[6, 4, 2, 1]).propose(Ask(X, budget, 9))
    assert shape_of(tree) == paths(*shape)


def test_adapld_without_branches_and_with_one_length_is_pld_plus():
    parts = toy_parts()
    ours, theirs = build("adapld+branches=0+length=10", parts), build("pld+", parts)
    assert ours.memories == theirs.memories
    begun(toy_target(), ours.memories, toy_prompt(60))
    copied = 0
    for root in range(1, 60):
        ask = Ask(root, 11, 60)
        assert shape_of(ours.propose(ask)) == shape_of(theirs.propose(ask))
        copied += len(theirs.propose(ask)) > 1
    assert copied > 5


@pytest.mark.parametrize("layer", [0, 2, None])
def test_kept_states_are_those_of_the_committed_text(layer):
    """They equal transformers' states of the text in one pass, whatever the trees held."""
    target, prompt, memory = toy_target(), toy_prompt(40), HiddenStates(layer)
    memory.reset(100)
    verifier = Verifier(target, target.cache(100), Greedy(), Clock())
    text = []
    for seen in read_prompt(verifier, torch.tensor(prompt), memory.wants, 16):
        memory.observe(seen)
        text += seen.kept.tolist()
    for _ in range(4):  # the second child is the target's next token
        root = seen.next_token
        with torch.no_grad():
            after = int(target.model(torch.tensor([[*text, root]])).logits[0, -1].argmax())
        tree = ProposalTree.build([root, (after + 1) % 90, after], [-1, 0, 0], [0.0] * 3, [ROOT] * 3)
        seen = verifier.verify(tree, memory.wants)
        memory.observe(seen)
        text += seen.kept.tolist()
    assert len(memory) == len(text) == 48
    with torch.no_grad():
        expected = hidden_states(target.model, torch.tensor([text]))[-1 if layer is None else layer][0]
    torch.testing.assert_close(memory.rows, expected, atol=1e-3, rtol=1e-3)


def test_anchors_exclude_the_special_tokens_of_the_configuration():
    assert build("adapld", toy_parts()).anchors.never == {toy_target().config.pad_token_id}
    assert build("pld+", toy_parts()).anchors.never == frozenset()


def test_the_layer_is_from_the_authors_tables_or_an_existing_one_that_is_given():
    chosen = {family: build("pld+", toy_parts(family)).memories[1].layer for family in ("llama", "qwen3")}
    assert chosen == {"llama": 1, "qwen3": 3}  # the authors' layers are 9 of 32 and 29 of 36; these models have 4
    assert build("pld++layer=2", toy_parts()).memories[1].layer == 2
    with pytest.raises(ValueError, match=r"layer is 4, and llama has layers 0 to 3\. Choose one of them"):
        build("adapld+layer=4", toy_parts())
    with pytest.raises(ValueError, match="length"):
        find("pld++length=0")

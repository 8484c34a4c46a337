"""Suffix automata, counts and datastores find what a plain search finds and draft what the official code drafts."""

from __future__ import annotations

import json
from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
import torch
from toys.models import toy_target
from toys.observations import seen
from toys.sessions import toy_parts
from toys.trees import scored

from longgraft.corpora import Corpus
from longgraft.memories.past_answers import PastAnswers
from longgraft.memories.token_history import TokenHistory
from longgraft.methods.assembly import load_needs
from longgraft.methods.find import build, find
from longgraft.methods.needs import Sources
from longgraft.methods.registry.suffix import Speculation, SuffixDecoding
from longgraft.protocol.proposer import Ask
from longgraft.trees.tree import ProposalTree
from longgraft.zoo.either import Either, expected, matched
from longgraft.zoo.rest import RestChoices, RestRetriever
from longgraft.zoo.samd import SamChain, SuffixAutomaton

IDENTITY = {"tokenizer": "mine"}


def automaton(tokens) -> SuffixAutomaton:
    made = SuffixAutomaton()
    made.extend(tokens)
    return made


def history(tokens) -> TokenHistory:
    made = TokenHistory()
    made.extend(np.array(tokens, dtype=np.int64))
    return made


def ask(root: int, budget: int = 60) -> Ask:
    return Ask(root, budget, 0)


def same(found: ProposalTree, official: list[int]) -> bool:
    """Compares two drafts; the official one is padded with zeros where the text ends."""
    tokens = found.tokens.tolist()
    return tokens == official[: len(tokens)] and not any(official[len(tokens) :])


def test_an_automatons_drafts_are_the_official_ones(golden):
    climbed = 0
    for case in json.loads((golden / "sam/cases.json").read_text())["cases"]:
        known, root = automaton(case["history"]), case["start_token"]
        match, at = known.after(root)
        assert match == case["dyn_match_length"] and (not match or at == case["dyn_first_endpos"]), case["name"]
        tree = SamChain(known).propose(ask(root))
        assert tree.tokens.tolist() == case["sam_only_dyn_draft"], case["name"]
        assert tree.match.tolist() == [0] + [match] * (len(tree) - 1)
        for length, theirs in ((15, case["samd_dyn_draft_n15"]), (40, case["samd_dyn_draft_n40"])):
            if match:  # otherwise the official code copies the text's beginning
                assert same(SamChain(known, length, None).propose(ask(root)), theirs), case["name"]
                climbed += known.after(root, length) != (match, at)
    assert climbed >= 2


def test_a_growing_automaton_is_the_official_one_before_every_token(golden):
    for case in json.loads((golden / "sam/incremental.json").read_text()):
        known = SuffixAutomaton()
        for root, step in zip(case["sequence"], case["steps"], strict=True):
            assert known.after(root)[0] == step["match"]
            assert SamChain(known).propose(ask(root)).tokens.tolist() == step["sam_only"]
            if step["match"]:
                assert same(SamChain(known, 15, None).propose(ask(root)), step["samd15"])
            known.observe(seen([root]))
        assert len(known._next) == case["n_states"]


@pytest.mark.parametrize("letters", [2, 4, 30])
def test_a_rewound_automaton_is_the_one_that_never_grew(letters):
    rng = np.random.default_rng(letters)
    known, text = SuffixAutomaton(), rng.integers(0, letters, 60).tolist()
    known.extend(text)
    outer = known.mark()
    known.extend(rng.integers(0, letters, 20).tolist())
    inner, longer = known.mark(), known.text.copy()
    for mark, kept in ((inner, longer), (inner, longer), (outer, text), (outer, text)):
        known.extend(rng.integers(0, letters, 40).tolist())
        known.rewind(mark)
        fresh = automaton(kept)
        assert vars(known) | {"_undo": None} == vars(fresh)


class Asked:
    """A proposer that counts how often it is asked."""

    memories = ()

    def __init__(self) -> None:
        self.times = 0

    def propose(self, ask: Ask) -> ProposalTree:
        self.times += 1
        return ProposalTree.chain(torch.tensor([ask.root, 1]))


def test_either_asks_its_second_proposer_only_if_the_first_matched_too_little():
    second, chain = Asked(), SamChain(automaton([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]), 40, None)
    route = Either(chain, second, matched, lambda _: 4)
    assert route.propose(ask(4)).tokens.tolist() == [4, 5, 6, 7, 8, 1, 2, 3] and second.times == 0
    assert len(route.propose(ask(7))) == 2 and second.times == 1  # a match of one token
    assert len(Either(chain, second, matched, lambda _: 5).propose(ask(4))) == 2 and second.times == 2
    assert route.memories == chain.memories


def counted(text: list[int], context: list[int], rule: Speculation, most: int) -> float:
    """Returns the score of the best draft, by a plain search that counts all strings of the text."""
    best = 0.0
    for match in range(1, len(context) + 1):
        strings = Counter(
            tuple(text[at : at + n]) for n in range(match, match + most + 1) for at in range(len(text) - n + 1)
        )
        top, found = [(1.0, tuple(context[-match:]))], []
        while top and len(found) < min(most, rule.tokens(match)):
            chance, path = top.pop(0)
            found += [chance] if len(path) > match else []
            below = [
                (chance * strings[longer] / strings[path], longer)
                for longer in strings
                if longer[:-1] == path and longer[-1] >= 0
            ]
            top = sorted([*top, *(one for one in below if one[0] >= rule.least)], reverse=True)
        best = max(best, sum(found))
    return best


@pytest.mark.parametrize(
    "budget, rule",
    [
        (17, Speculation()),
        (6, Speculation()),
        (17, Speculation(least=0.3)),
        (17, Speculation(factor=2.0, offset=1.0)),
        (17, Speculation(depth=3, factor=4.0)),
    ],
)
def test_suffix_trees_count_as_a_plain_search_does(budget, rule):
    drafts = 0
    for seed in range(12):
        text = np.random.default_rng(seed).integers(0, 1 + seed % 4, 40 if seed % 4 else 12).tolist()
        tree = SuffixDecoding((history(text[:-1]),), rule).propose(ask(text[-1], budget))
        assert expected(tree) == pytest.approx(counted(text, text[-rule.depth :], rule, budget - 1), abs=1e-4)
        assert len(tree) <= budget and (tree.scores[1:].exp() >= rule.least - 1e-6).all()
        drafts += not tree.is_chain
    assert drafts >= 1 or rule.least > 0.1


@pytest.mark.parametrize("match", [1, 3, 6, 12])
def test_drafts_on_repeated_text_are_as_long_as_the_match(match):
    """The text repeats one unit ten times, with other tokens between."""
    unit = list(range(100, 130))
    text = [token for n in range(10) for token in (*unit, n)] + [50, *unit[:match]]
    tree = SuffixDecoding((history(text[:-1]),)).propose(ask(text[-1], 17))
    assert tree.tokens.tolist() == unit[match - 1 : 2 * match]
    assert expected(tree) == pytest.approx(match * 10 / 11, abs=1e-4) and tree.match.tolist()[1:] == [match] * match


def test_newer_successors_come_first_when_counts_tie():
    tree = SuffixDecoding((history([1, 2, 8, 1, 3, 9]),)).propose(ask(1, 17))
    assert tree.tokens.tolist() == [1, 3]  # one token after a match of one
    assert np.exp(tree.scores[1].item()) == pytest.approx(1 / 3)


def test_earlier_answers_are_drafted_from_and_prompts_are_not():
    outputs = PastAnswers(100)
    trees = SuffixDecoding((history([1, 2]), outputs))
    outputs.reset(10)
    for one in (seen([30, 31, 32, 33, 34], prompt=True), seen([40, 41, 42]), seen([43])):
        outputs.observe(one)
    outputs.reset(10)
    outputs.observe(seen([1, 2], prompt=True))
    assert trees.propose(ask(41, 17)).tokens.tolist() == [41, 42]
    assert len(trees.propose(ask(31, 17))) == 1  # 31 was in a prompt only
    assert len(trees.propose(ask(43, 17))) == 1  # nothing follows an answer's end
    mark = outputs.mark()
    outputs.observe(seen([31, 7]))
    assert trees.propose(ask(31, 17)).tokens.tolist() == [31, 7]
    outputs.rewind(mark)
    assert len(trees.propose(ask(31, 17))) == 1


def test_the_oldest_answers_are_forgotten_first():
    outputs = PastAnswers(4)
    for answer in ([1, 2, 3], [4, 5, 6]):
        outputs.reset(10)
        outputs.observe(seen(answer))
    assert outputs.whole(0).tolist() == [1, 2, 3, -1, 4, 5, 6, 0]  # a running request loses nothing
    outputs.reset(10)
    assert outputs.whole(0).tolist() == [4, 5, 6, -1, 0]
    other = PastAnswers(4)
    other.rewind(outputs.mark())
    other.observe(seen([9], prompt=True))
    assert other.whole(0).tolist() == [4, 5, 6, -1, 0]  # one separator between two answers


def test_suffix_drafts_replace_a_tree_if_they_expect_enough_tokens():
    second, unit = Asked(), list(range(100, 130))
    trees = SuffixDecoding((history([*unit, 1, *unit, 2, *unit[:7]]),))
    assert 5 < expected(trees.propose(ask(unit[7]))) < 6  # 8 times two thirds
    assert len(Either(trees, second, expected, lambda _: 5).propose(ask(unit[7]))) == 9 and second.times == 0
    assert len(Either(trees, second, expected, lambda _: 6).propose(ask(unit[7]))) == 2
    ours = build("suffix-eagle3+levels=4", toy_parts())
    assert [ours.least(Ask(1, budget, 0)) for budget in (60, 5, 3)] == [4, 4, 2]  # no draft could expect more
    assert build("suffix-eagle3+threshold=2.5+outputs=0", toy_parts()).least(Ask(1, 60, 0)) == 2.5


def continuations(text: list[int], context: list[int], lookup: RestChoices) -> tuple[int, Counter, int]:
    """Returns (longest match, count of each prefix that follows it, occurrences), by a plain search."""
    for n in range(min(lookup.longest, len(context)), lookup.shortest - 1, -1):
        hits = [at + n for at in range(len(text) - n + 1) if text[at : at + n] == context[-n:]]
        if hits:
            return (
                n,
                Counter(
                    prefix for at in hits for prefix in accumulate((token,) for token in text[at : at + lookup.length])
                ),
                len(hits),
            )
    return 0, Counter(), 0


@pytest.mark.parametrize(
    "budget, lookup",
    [(65, RestChoices()), (8, RestChoices()), (65, RestChoices(longest=3, length=2)), (30, RestChoices(shortest=4))],
)
def test_a_datastore_finds_what_a_plain_search_finds(budget, lookup):
    rng = np.random.default_rng(0)
    text, found = rng.integers(0, 4, 300).tolist(), Counter()
    store = Corpus.build(np.array(text))
    for seed in range(20):
        known = np.random.default_rng(seed).integers(0, 4 + seed % 2, 20).tolist()
        match, prefixes, hits = continuations(text, known, lookup)
        tree = RestRetriever(history(known[:-1]), store, lookup).propose(ask(known[-1], budget))
        ours = scored(tree)
        assert len(ours) == min(budget - 1, len(prefixes))
        assert all(score == pytest.approx(np.log(prefixes[path] / hits), abs=1e-5) for path, score in ours.items())
        assert sorted(ours.values(), reverse=True) == pytest.approx(
            [np.log(count / hits) for _, count in prefixes.most_common(budget - 1)], abs=1e-5
        )
        assert not ours or tree.match.tolist() == [0] + [match] * len(ours)
        found[match] += 1
    assert len(found) >= 2


def test_nothing_is_proposed_after_tokens_that_the_datastore_lacks():
    store = Corpus.build(np.array([1, 2, 3, 4]))
    assert len(RestRetriever(history([7, 1]), store).propose(ask(9))) == 1
    assert len(RestRetriever(history([7]), store).propose(ask(1))) == 1  # a match of one token is too short
    assert len(RestRetriever(history([3]), store).propose(ask(4))) == 1  # nothing follows the end
    assert RestRetriever(history([1]), store).propose(ask(2)).tokens.tolist() == [2, 3, 4]


def test_rest_reads_evenly_spaced_occurrences_up_to_its_limit():
    store = Corpus.build(np.array([token for n in range(100) for token in (1, 2, 3 + n)]))
    tree = RestRetriever(history([1]), store, RestChoices(hits=4, length=1)).propose(ask(2))
    assert tree.tokens.tolist() == [2, 3, 28, 53, 78] and tree.scores[1].item() == pytest.approx(np.log(1 / 4))


def test_the_error_for_a_missing_datastore_says_how_to_build_one():
    said = (
        r"'rest' needs a datastore: none ships with the package\.\nMake a corpus of text or code with `longgraft "
        r"corpus add NAME FILES`"
    )
    with pytest.raises(ValueError, match=said):
        load_needs(find("rest"), Sources(toy_target()))

"""Roll-outs: tokens of earlier answers are proposed again, for the same prompt only."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from longgraft.protocol.observation import Observation
from longgraft.trees.tree import ProposalTree
from longgraft.zoo.mtp import RollOuts

PROMPT = [1, 2, 3, 4]


def observe_request(memory: RollOuts, prompt: list[int], answer: list[int], chunk: int = 3) -> None:
    """Observes one request: the prompt in chunks, the answer in steps of one token."""
    memory.reset(100)
    for at in range(0, len(prompt), chunk):
        part = prompt[at : at + chunk]
        following = prompt[at + chunk] if at + chunk < len(prompt) else answer[0]
        memory.observe(
            Observation(ProposalTree.chain(torch.tensor(part)), torch.arange(len(part)), following, prompt=True)
        )
    for root, token in pairwise(answer):
        memory.observe(Observation(ProposalTree.chain(torch.tensor([root])), torch.arange(1), token))


def next_after(memory: RollOuts, *path: int) -> list[int]:
    """Returns the tokens that may follow the answer and this path, most probable first."""
    return [one.token for one in sorted(memory.known().after(path)[0], key=lambda one: -one.probability)]


def test_an_answer_is_proposed_to_the_next_one_with_the_same_prompt():
    memory = RollOuts()
    observe_request(memory, PROMPT, [5, 6, 7, 8])
    observe_request(memory, PROMPT, [5])
    assert memory.answers == 1 and memory.text == [*PROMPT, 5]
    assert next_after(memory) == [6] and next_after(memory, 6) == [7]
    observe_request(memory, PROMPT, [5, 9, 9])
    assert memory.answers == 1  # an answer of one token adds nothing
    observe_request(memory, PROMPT, [5])
    assert memory.answers == 2 and next_after(memory) == [9, 6]  # the newest counts more
    assert next_after(memory, 6, 7, 8) == []  # nothing follows the end of an answer


def test_the_current_answer_counts_beside_earlier_ones():
    memory = RollOuts()
    observe_request(memory, PROMPT, [5, 6, 7, 8])
    observe_request(memory, PROMPT, [5, 9, 5])
    assert next_after(memory) == [9, 6] and next_after(memory, 6) == [7]  # only the earlier answer has 6


@pytest.mark.parametrize("other", [[1, 2, 3], [1, 2, 3, 4, 4], [1, 2, 9, 4]])
def test_another_prompt_forgets_all_answers(other):
    memory = RollOuts()
    observe_request(memory, PROMPT, [5, 6, 7, 8])
    observe_request(memory, other, [5])
    assert memory.answers == 0 and next_after(memory) == []
    observe_request(memory, PROMPT, [5])
    assert memory.answers == 0


def test_the_last_of_many_answers_are_kept():
    memory = RollOuts(most=2)
    for first in (10, 20, 30):
        observe_request(memory, PROMPT, [first, first + 1])
    observe_request(memory, PROMPT, [30])
    assert memory.answers == 2 and next_after(memory) == [31] and next_after(memory, 10) == []


def test_a_release_keeps_only_the_answers():
    memory = RollOuts()
    observe_request(memory, PROMPT, [5, 6, 7, 8])
    observe_request(memory, PROMPT, [5, 6, 9, 9])
    memory.release()
    assert memory.text == [] and memory.known().after(()) == ([], 0)
    observe_request(memory, PROMPT, [5])
    assert memory.answers == 2 and next_after(memory, 6) == [9, 7]  # also the answer that ran when it was released

"""Seeding: a prompt's rows are the target's top-k at each token's last occurrence, and no other top-k is taken."""

from __future__ import annotations

import pytest
import torch
from toys.models import VOCAB, toy_target
from toys.sessions import toy_prompt

from longgraft.acceptance.rules import Greedy
from longgraft.memories.adjacency import AdjacencyMatrix
from longgraft.memories.adjacency_memory import AdjacencyMemory, MatrixWrites
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.observation import Wants
from longgraft.runtime.clock import Clock
from longgraft.target_model.passes import Segment
from longgraft.target_model.verifier import Verifier
from longgraft.trees.tree import ProposalTree

PROMPT = toy_prompt(200)
LONE = [95, *[7] * 40, 7, 8, 8]  # chunks of ten, of which two have no last occurrence
WARM = torch.randint(0, VOCAB, (VOCAB + 1, 8), generator=torch.Generator().manual_seed(5)).int()


def reader() -> Verifier:
    target = toy_target()
    return Verifier(target, target.cache(256), Greedy(), Clock())


def of_every_position(prompt: list[int], snapshot: torch.Tensor | None = None, step: int = 1) -> torch.Tensor:
    """Returns [V, K] rows of one pass: the top-k of all positions, written in order (step -1: backwards)."""
    rows = torch.full((VOCAB, 8), -1).int() if snapshot is None else snapshot[:VOCAB].clone()
    seen = reader().read(torch.tensor(prompt), Wants(topk=8), following=0)
    for token, row in [*zip(prompt, seen.topk, strict=True)][::step]:
        rows[token] = row
    return rows


@pytest.mark.parametrize("prompt", [PROMPT, LONE], ids=["repeats", "lone"])
@pytest.mark.parametrize("chunk", [1, 7, 10, 64, 512, None])
def test_the_matrix_equals_the_rows_of_every_position_written_in_order(prompt, chunk):
    for snapshot in (None, WARM):
        memory = AdjacencyMemory(MatrixWrites(AdjacencyMatrix(VOCAB)), snapshot=snapshot)
        memory.reset(256)
        for seen in read_prompt(reader(), torch.tensor(prompt), memory.wants, chunk):
            memory.observe(seen)
        assert torch.equal(memory.matrix.rows, of_every_position(prompt, snapshot))
        # Control: the rows of first occurrences differ.
        assert not torch.equal(memory.matrix.rows, of_every_position(prompt, snapshot, -1))


def test_rows_of_a_prompt_are_written_while_it_is_read():
    matrix = AdjacencyMatrix(VOCAB)
    memory = AdjacencyMemory(MatrixWrites(matrix))
    memory.reset(256)
    for seen in read_prompt(reader(), torch.tensor(PROMPT), memory.wants, 64):
        memory.observe(seen)
    assert torch.equal(matrix.rows, of_every_position(PROMPT))


def test_a_last_token_that_is_read_again_overwrites_its_row():
    memory, verifier = AdjacencyMemory(MatrixWrites(AdjacencyMatrix(VOCAB))), reader()
    prompt = [*PROMPT, PROMPT[3]]
    for seen in read_prompt(verifier, torch.tensor(prompt[:-1]), memory.wants, 64, following=prompt[-1]):
        memory.observe(seen)
    mark = memory.mark()
    assert torch.equal(memory.matrix.rows, of_every_position(prompt[:-1]))
    for _ in range(2):
        memory.observe(verifier.read(torch.tensor(prompt[-1:]), memory.wants))
        assert torch.equal(memory.matrix.rows, of_every_position(prompt))
        memory.observe(verifier.verify(ProposalTree.chain(torch.tensor(prompt[:9])), memory.wants))
        memory.rewind(mark)
        verifier.cache.crop(len(prompt) - 1)
    assert torch.equal(memory.matrix.rows, of_every_position(prompt[:-1]))


@pytest.mark.parametrize("chunk", [7, 64, None])
def test_the_output_embedding_reads_one_row_for_each_distinct_token(chunk):
    for wants, rows in ((Wants(topk=8), len(set(PROMPT))), (Wants(final=True), 0)):
        verifier, fed = reader(), []
        hook = verifier.target.head.register_forward_pre_hook(lambda _, given, fed=fed: fed.append(given[0]))
        try:
            seen = [*read_prompt(verifier, torch.tensor(PROMPT), wants, chunk)]
        finally:
            hook.remove()
        assert sum(hidden[..., 0].numel() for hidden in fed) == rows + 1  # and the first new token's row
        assert rows == (sum(len(one.topk) for one in seen) if wants.topk else 0) < len(PROMPT) / 2
        assert sum(len(one.final) for one in seen if wants.final) == len(PROMPT) * wants.final


@pytest.mark.parametrize("logits", ["all", "last", "none"])
def test_ranked_positions_change_only_the_top_k_of_a_pass(logits):
    chain, few, target = ProposalTree.chain(torch.tensor(PROMPT)), torch.tensor([3, 17, 199]), toy_target()
    whole, part = (
        target.run([Segment(chain, target.cache(256), logits, ranked)], Wants((1,), True, 8))[0]
        for ranked in (None, few)
    )
    assert torch.equal(part.topk, whole.topk[few])
    assert torch.equal(part.final, whole.final) and torch.equal(part.hidden[1], whole.hidden[1])
    assert torch.equal(part.logits, whole.logits)

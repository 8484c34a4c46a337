"""Drafts sampled independently of the target: answers follow exactly the target's distribution, by enumeration."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
import transformers
from toys.sessions import toy_parts

from longgraft.acceptance.rejection import DRAFTED, Rejection
from longgraft.acceptance.rules import Sampled
from longgraft.acceptance.sampling import Sampling
from longgraft.engine.engine import Engine
from longgraft.engine.lane import Lane
from longgraft.engine.session import Session, answer
from longgraft.runtime.clock import Clock
from longgraft.target_model.model import Target
from longgraft.trees.tree import ProposalTree
from longgraft.zoo.small_model import SMALL
from longgraft.zoo.sps import SpsChoices, chain

MANY, SIGNIFICANT = 15_000, 1e-4
LAWS = [Sampled(seed=3), Sampled(0.7, top_k=4, seed=4), Sampled(1.4, top_p=0.8, min_p=0.05, seed=5)]


def tables(vocab: int, length: int, seed: int) -> list[torch.Tensor]:
    """Returns the logits after each past, of shape [V] * (depth + 1) for each depth."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn((vocab,) * (depth + 1), generator=generator) * 1.5 for depth in range(length)]


def warped(rule: Sampled, tables: list[torch.Tensor]) -> list[torch.Tensor]:
    return [rule.warp(table.flatten(0, -2) if table.ndim > 1 else table[None]).view_as(table) for table in tables]


def after(table: torch.Tensor, past: list[torch.Tensor]) -> torch.Tensor:
    """Returns [B, V] logits after B pasts, which are given as one column per position."""
    return table[tuple(past)] if past else table.expand(MANY, -1)


def counted(rule: Sampled, vocab: int, drafted: int, settle) -> tuple[Counter, list[int]]:
    """Decodes texts of three tokens in steps of `drafted` drafted tokens, each text at its own positions; returns how
    often each text came, and how many drafted tokens the first step of each accepted."""
    length = 3
    target, small = (warped(rule, tables(vocab, length, seed)) for seed in (1, 2))
    noise = Sampled(seed=rule.seed).apart(DRAFTED)  # draws from logits that are warped already
    start = torch.arange(MANY) * length
    said, full = [torch.full((MANY,), -1) for _ in range(length)], torch.zeros(MANY, dtype=torch.int64)
    first: list[int] = []
    for begin in range(length):  # a step for the texts that have `begin` tokens
        past, n = said[:begin], min(drafted, length - 1 - begin) + 1
        drawn, laws, p = list[torch.Tensor](), [torch.zeros(MANY, vocab)], list[torch.Tensor]()
        for ahead in range(n):
            before = [column.clamp(min=0) for column in past] + drawn
            p.append(after(target[begin + ahead], before).softmax(-1))
            if ahead < n - 1:
                logits = after(small[begin + ahead], before)
                drawn.append(noise.draw(logits, start + begin + ahead))
                laws.append(logits.softmax(-1))
        tokens = torch.stack([torch.zeros(MANY, dtype=torch.int64), *drawn], 1)
        positions = (start + begin)[:, None] + torch.arange(n)
        accepted, following = settle(torch.stack(p, 1), torch.stack(laws, 1), tokens, positions)
        here = full == begin
        for ahead in range(n):
            column = drawn[ahead] if ahead < n - 1 else following
            column = torch.where(accepted == ahead, following, column)
            said[begin + ahead] = torch.where(here & (ahead <= accepted), column, said[begin + ahead])
        full = torch.where(here, begin + accepted + 1, full)
        first = first or accepted.tolist()
    return Counter(zip(*(column.tolist() for column in said), strict=True)), first


def chances(rule: Sampled, vocab: int) -> dict[tuple[int, ...], float]:
    """Returns the target's probability of every whole text, by enumeration."""
    a, b, c = (table.double().softmax(-1) for table in warped(rule, tables(vocab, 3, 1)))
    joint = (a[:, None, None] * b[:, :, None] * c).flatten().tolist()
    return dict(zip(itertools.product(range(vocab), repeat=3), joint, strict=True))


def p_value(counts: Counter, law: dict[tuple[int, ...], float]) -> float:
    """Returns the p-value of the counts under this law (Pearson's chi-square), and 0 if an impossible text came.  Texts
    that are too rare for a cell of their own share one."""
    if any(not law[text] for text in counts):
        return 0.0
    total, cells, rare = sum(counts.values()), list[tuple[float, int]](), [0.0, 0]
    for text, chance in law.items():
        if chance * total >= 5:
            cells.append((chance * total, counts[text]))
        else:
            rare[0], rare[1] = rare[0] + chance * total, rare[1] + counts[text]
    cells += [(rare[0], int(rare[1]))] if rare[0] > 1 else []
    far = sum((seen - due) ** 2 / due for due, seen in cells)
    return float(torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2).double(), torch.tensor(far / 2).double()))


@pytest.mark.parametrize("rule", LAWS, ids=str)
@pytest.mark.parametrize("vocab, drafted", [(5, 2), (8, 1)])
def test_decoded_texts_follow_the_target_s_distribution(rule, vocab, drafted):
    counts, _ = counted(rule, vocab, drafted, Rejection(rule).settle)
    assert sum(counts.values()) == MANY
    assert p_value(counts, chances(rule, vocab)) > SIGNIFICANT


def test_drafted_tokens_are_accepted_as_often_as_the_distributions_overlap():
    rule = Sampled(seed=8)
    _, first = counted(rule, 6, 2, Rejection(rule).settle)
    p, q = (tables(6, 1, seed)[0].double().softmax(-1) for seed in (1, 2))
    overlap = float(torch.minimum(p, q).sum())
    found = sum(accepted > 0 for accepted in first) / MANY
    assert abs(found - overlap) < 4 * math.sqrt(overlap * (1 - overlap) / MANY)


def test_streams_of_noise_differ_from_one_another_and_between_seeds():
    rule, positions = Sampled(seed=11), torch.arange(1000)
    noises = [
        made.keys(positions)
        for seed in (11, 12)
        for made in (Sampled(seed=seed), *(Sampled(seed=seed).apart(stream) for stream in (1, 2, 3)))
    ]
    assert all(int((a == b).sum()) == 0 for a, b in itertools.combinations(noises, 2))
    assert torch.equal(rule.apart(2).keys(positions), Sampled(seed=11).apart(2).keys(positions))


def test_equal_distributions_accept_every_draft_and_only_possible_tokens():
    rule = Sampled(top_k=2, seed=1)
    logits = torch.randn(4, 12, generator=torch.Generator().manual_seed(0))
    p = rule.warp(logits).softmax(-1)
    for at in range(200):
        drawn = rule.apart(DRAFTED).draw(logits[:3], at + torch.arange(3))
        tree = ProposalTree.chain(torch.cat([torch.tensor([0]), drawn]))
        tree = ProposalTree(
            tree.tokens, tree.parents, tree.scores, tree.origin, law=torch.cat([torch.zeros(1, 12), p[:3]])
        )
        path, token = Rejection(rule)(tree, logits, at + torch.arange(4))
        assert path.tolist() == [0, 1, 2, 3] and p[3, token] > 0


def tiny(seed: int, layers: int) -> Target:
    """Returns a target with 12 tokens."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=12,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(20.0)
    return Target(model, f"tiny {seed}")


@pytest.mark.slow
@torch.inference_mode()
def test_whole_answers_follow_the_target_s_distribution():
    """Draws three tokens at top-k 2: one by the prefill, then the first step's draft and the token after it."""
    target, small, prompt, many = tiny(1, 1), tiny(2, 1), [3, 1, 4, 1, 5], 200
    parts = toy_parts()
    parts = type(parts)(target, {SMALL.name: small}, choices=SpsChoices(), clock=Clock())
    session = Session(Engine(Lane(target, chain(parts, False), parts.clock), 3), None)
    counts: Counter = Counter()
    for seed in range(many):
        sampling = Sampling(temperature=1.2, top_k=2, seed=seed)
        counts[tuple(answer(session.open(prompt, 3, sampling, eos=())).token_ids)] += 1
    warp = Sampled(1.2, top_k=2).warp

    def law(text: list[int]) -> torch.Tensor:
        return warp(target.model(torch.tensor([prompt + text])).logits[0, -1:]).softmax(-1)[0]

    expected = {text: 0.0 for text in itertools.product(range(12), repeat=3)}
    for a in law([]).nonzero().flatten().tolist():
        for b in law([a]).nonzero().flatten().tolist():
            for c in law([a, b]).nonzero().flatten().tolist():
                expected[a, b, c] = float(law([])[a] * law([a])[b] * law([a, b])[c])
    assert p_value(counts, expected) > SIGNIFICANT
    assert len(counts) == 8

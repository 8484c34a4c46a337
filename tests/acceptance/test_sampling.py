"""Draws follow the distribution that transformers' warpers leave, and each is independent of the others."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from toys import oracle
from toys.models import toy_model
from toys.recorder import recorder
from toys.sessions import repeatable, toy_parts, toy_prompt

from longgraft.acceptance.cpu_draws import nucleus_by_sort
from longgraft.acceptance.gumbel import gumbel
from longgraft.acceptance.rules import Greedy, Replay, Sampled, walk
from longgraft.acceptance.sampling import Sampling
from longgraft.acceptance.warping import largest_dropped_mass, nucleus
from longgraft.runtime.cuda_graphs import Regions
from longgraft.target_model.model import Target
from longgraft.trees.tree import ProposalTree

SETTINGS = [
    Sampling(0.7),
    Sampling(1.0, top_k=1),
    Sampling(1.3, top_k=5),
    Sampling(1.0, top_k=99),
    Sampling(0.9, top_p=0.3),
    Sampling(1.0, top_p=0.83),
    Sampling(1.0, top_p=1e-4),
    Sampling(1.7, min_p=0.07),
    Sampling(0.5, min_p=0.9),
    Sampling(0.8, top_p=0.91, top_k=12),
    Sampling(1.1, top_p=0.7, top_k=20, min_p=0.05),
]


def rule(sampling: Sampling) -> Sampled:
    made = sampling.rule(0)
    assert isinstance(made, Sampled)
    return made


def random_logits(rows: int, vocab: int, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * scale


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_warped_logits_equal_those_of_transformers(sampling):
    for logits in (random_logits(40, 48), random_logits(40, 3), random_logits(4, 5000), random_logits(4, 8192, 0.1)):
        torch.testing.assert_close(rule(sampling).warp(logits), oracle.warped(logits, sampling), atol=0.0, rtol=0.0)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_warping_keeps_as_many_equal_logits_as_transformers(sampling):
    wide = random_logits(4, 8192).round()  # the border lies among hundreds that are equal
    for logits in (random_logits(40, 48).round(), random_logits(40, 48).bfloat16(), torch.zeros(1, 7), wide):
        ours, theirs = rule(sampling).warp(logits), oracle.warped(logits, sampling)
        assert torch.equal(ours.sort().values, theirs.sort().values)


@pytest.mark.parametrize("vocab", [1, 2, 3, 7, 48, 301, 4096, 9000])
@pytest.mark.parametrize("temperature", [1e-5, 0.3, 1.0, 100.0])
def test_top_p_keeps_the_tokens_that_a_sort_finds(vocab, temperature):
    generator = torch.Generator().manual_seed(vocab)
    smooth = torch.randn(12, vocab, generator=generator) * 3.0
    rough = smooth.round()
    rough[:, ::3] = float("-inf")
    rough[:, -1] = -0.0
    for logits in (smooth, rough, rough * 1e-3, torch.zeros(2, vocab)):
        for top_p in (1e-9, 1e-4, 0.25, 0.5, 0.9, 0.999, 1 - 1e-7):
            expected = oracle.nucleus(logits / temperature, top_p)
            for drop in (nucleus, nucleus_by_sort):
                assert torch.equal(drop(logits / temperature, top_p), expected)


def test_a_dropped_mass_is_compared_as_a_float32():
    for top_p in np.linspace(1e-6, 1 - 1e-6, 999):
        share = np.float32(1 - top_p)
        border = (float(share) + float(np.nextafter(share, np.float32(2)))) / 2
        for mass in (math.nextafter(border, 0), border, math.nextafter(border, 2)):
            assert (int(mass * 2**62) > largest_dropped_mass(top_p)) == (np.float32(mass) > share)


class Watch(TorchDispatchMode):
    """Counts operations other than views; fails on one that a host would wait for or that a graph cannot hold."""

    READS = ("_local_scalar_dense", "nonzero", "equal", "lift_fresh", "unique", "masked_select", "sort")
    operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not func.overloadpacket.__name__.startswith(self.READS), func
        self.operations += not func.is_view
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "rule, most",
    [
        (Greedy(), 1),
        (Replay(range(9), 100), 3),
        (Sampled(), 41),
        (Sampled(0.7, top_p=0.9), 112),
        (Sampled(0.7, top_k=5, top_p=0.9, min_p=0.01), 120),
    ],
    ids=str,
)
def test_a_draw_is_a_fixed_number_of_operations_that_no_host_waits_for(rule, most):
    found = set()
    for rows, vocab in ((1, 48), (60, 48), (7, 9000)):
        logits, positions = random_logits(rows, vocab).to("meta"), torch.arange(rows, device="meta") + 100
        rule.draw(logits, positions)  # a recording is copied once
        with Watch() as watch:
            rule.draw(logits, positions)
        found.add(watch.operations)
    assert len(found) == 1 and found.pop() <= most


def test_a_row_of_nan_leaves_the_others_alone():
    logits = random_logits(3, 48)
    broken = logits.clone()
    broken[1] = float("nan")
    drawn, expected = (Sampled(top_p=0.8).draw(rows, torch.arange(3)) for rows in (broken, logits))
    assert torch.equal(drawn[::2], expected[::2]) and 0 <= int(drawn[1]) < 48


@pytest.mark.parametrize("sampling", [*SETTINGS, Sampling(1e-5), Sampling(50.0), Sampling(1.0, top_p=0.9999)], ids=str)
def test_a_cpu_draws_the_tokens_that_other_devices_draw(sampling):
    """It looks at the tokens that can win only."""
    positions = torch.arange(60) + 7
    for logits in (random_logits(60, 5000), random_logits(60, 5000, 0.01), random_logits(60, 48).round()):
        logits[0, 3:] = float("-inf")
        logits[1, :-1] = float("-inf")
        logits[2, 5] = 1e30
        draws = rule(sampling)
        assert torch.equal(draws.draw(logits, positions), draws.choose(logits, draws.keys(positions)))


def test_the_noise_equals_that_computed_with_plain_integers():
    for seed, position in itertools.product((0, 1, 77, 2**63 - 1), (0, 1, 9, 131_071)):
        tokens = [0, 1, 2, 95, 151_935]
        expected = [oracle.noise(seed, position, token) for token in tokens]
        keys = Sampled(seed=seed).keys(torch.tensor(position))
        assert gumbel(keys, torch.tensor(tokens)).tolist() == pytest.approx(expected, rel=1e-12)


def test_a_draw_does_not_depend_on_what_else_is_drawn():
    logits, positions = random_logits(30, 48), 5 + (7 * torch.arange(30)) % 4
    for sampling in SETTINGS:
        draws = rule(sampling)
        alone = torch.cat(
            [draws.draw(row, position) for row, position in zip(logits.split(1), positions.split(1), strict=True)]
        )
        assert torch.equal(draws.draw(logits, positions), alone)
        assert alone.tolist() == [
            oracle.draw(row, sampling, position) for row, position in zip(logits, positions.tolist(), strict=True)
        ]


BROKEN_LOGITS = {
    "one NaN": lambda row: row.index_fill(0, torch.tensor(5), math.nan),
    "only NaN": lambda row: row * math.nan,
    "infinity": lambda row: row.index_fill(0, torch.tensor(5), math.inf),
    "only negative infinity": lambda row: row * 0 - math.inf,
}


@pytest.mark.parametrize("damage", BROKEN_LOGITS)
@pytest.mark.parametrize("draws", [Greedy(), *map(rule, SETTINGS)], ids=str)
def test_nan_and_infinite_logits_are_an_error_of_the_model_for_every_draw(draws, damage):
    """A CPU draws along the path, and other devices draw the whole tree at once, without a host read."""
    logits, positions = random_logits(6, 48), torch.arange(6)
    logits[4] = BROKEN_LOGITS[damage](logits[4])
    tree = ProposalTree.chain(torch.cat([torch.tensor([0]), draws.draw(logits[:5], positions[:5])]))
    sound = ProposalTree.chain(tree.tokens[:4])

    def at_once(tree):
        return walk(tree, draws.marked(logits, draws.choose(logits, draws.keys(positions))).tolist().__getitem__)

    for accept in (lambda tree: draws(tree, logits, positions), at_once):
        path, token = accept(sound)
        assert len(path) == 4 and token == int(tree.tokens[4])
        with pytest.raises(
            ValueError, match=r"^The target's logits are NaN or infinite, so .* Fetch its weights again"
        ):
            accept(tree)


def test_a_recording_is_replayed_whatever_the_logits_are():
    logits = torch.full((2, 48), math.nan)
    path, token = Replay([7, 8], 0)(ProposalTree.chain(torch.tensor([0, 7])), logits, torch.arange(2))
    assert (path.tolist(), token) == ([0, 1], 8)


SHAPED = Sampling(logprobs=1)
DRAWN = Sampling(temperature=1.0, top_p=0.9)


@pytest.mark.parametrize(
    ("method", "sampling", "recorded"),
    [
        ("ar", Sampling(), False),
        ("ar", SHAPED, False),
        ("pld", DRAWN, False),
        ("sps", DRAWN, False),
        ("medusa-typical", DRAWN, False),
        ("eagle3", Sampling(), True),
        ("eagle3", DRAWN, True),
    ],
)
def test_a_target_whose_logits_become_nan_ends_the_request_with_an_error(method, sampling, recorded):
    """A recorded step draws on the device; sps and medusa-typical have acceptance rules of their own."""
    parts = toy_parts(regions=Regions(recorder)) if recorded else toy_parts()
    target = Target(deepcopy(toy_model()))
    session = repeatable(method, replace(parts, target=target))
    with session.open(toy_prompt(20), 30, sampling) as request:
        for _ in range(3):
            request.step()
        target.model.lm_head.weight.data[7:9] = math.nan
        with pytest.raises(ValueError, match=r"^The target's logits are NaN or infinite"):
            list(request)


BRANCHES = ProposalTree.build([0, 1, 2, 0, 1, 2], [-1, 0, 0, 1, 1, 4], [0.0] * 6, [1] + [2] * 5)
RULES = [Greedy(), Replay([2, 1, 1, 2, 0], start=100), Sampled(seed=1), Sampled(0.6, top_k=2, seed=3)]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_walk_that_draws_on_its_way_equals_the_walk_along_all_draws(rule, monkeypatch):
    logits, positions, asked = random_logits(6, 3, 1.0)[BRANCHES.tokens], 100 + BRANCHES.depths, []
    path, after = walk(BRANCHES, rule.draw(logits, positions).tolist().__getitem__)
    draw = type(rule).draw
    monkeypatch.setattr(type(rule), "draw", lambda *given: asked.append(len(given[1])) or draw(*given))
    found = rule(BRANCHES, logits, positions)
    assert (found[0].tolist(), found[1]) == (path.tolist(), after) and asked == [1] * len(path)


NEIGHBOURS = list(itertools.product((0, 1), (-1, 0, 1), (-1, 0, 1)))


def dependence(a: torch.Tensor, b: torch.Tensor) -> float:
    """Chi-square of two standard Gumbel noises being uniform and independent, 8 by 8 cells: 63 degrees of freedom."""
    cells = [(torch.exp(-torch.exp(-noise)) * 8).long() for noise in (a, b)]
    found = torch.bincount(8 * cells[0] + cells[1], minlength=64).double()
    return float(((found - len(a) / 64) ** 2 / (len(a) / 64)).sum())


@pytest.mark.parametrize("step", [step for step in NEIGHBOURS if step > (0, 0, 0)], ids=str)
def test_neighbouring_seeds_positions_and_tokens_have_independent_noise(step):
    seed, position, token = step
    tokens = torch.arange(1, 51)
    positions = torch.arange(1, 21)[:, None]
    here = torch.cat([gumbel(Sampled(seed=s).keys(positions), tokens).flatten() for s in range(20)])
    there = torch.cat(
        [gumbel(Sampled(seed=s + seed).keys(positions + position), tokens + token).flatten() for s in range(20)]
    )
    assert dependence(here, there) < 118.6  # 0.99997 quantile: thirteen such tests, by chance one in 2,500
    assert abs(np.corrcoef(here, there)[0, 1]) < 4.2 / math.sqrt(len(here))
    assert dependence(here, here) > 10_000


def chi_square(found: Counter, law: dict, draws: int) -> float:
    assert set(found) <= {outcome for outcome, p in law.items() if p > 0}
    return sum((found[outcome] - draws * p) ** 2 / (draws * p) for outcome, p in law.items() if p > 0)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "sampling", [Sampling(0.8), Sampling(1.0, top_p=0.8), Sampling(1.2, top_k=4, min_p=0.1)], ids=str
)
def test_draws_follow_the_distribution_of_the_warped_logits(sampling):
    """Counts 3,000 seeds at one position, and 3,000 positions of one seed; another temperature does not fit."""
    logits, n = random_logits(1, 8, 1.5), 3000
    law = dict(enumerate(oracle.warped(logits, sampling)[0].softmax(-1).tolist()))
    by_seed = Counter(rule(replace(sampling, seed=seed)).draw(logits, torch.tensor([7])).item() for seed in range(n))
    by_position = Counter(rule(sampling).draw(logits.expand(n, -1), torch.arange(n)).tolist())
    limit = {2: 13.8, 3: 16.3, 4: 18.5, 7: 24.3}[sum(p > 0 for p in law.values()) - 1]  # 0.999 quantiles
    assert chi_square(by_seed, law, n) < limit
    assert chi_square(by_position, law, n) < limit
    hotter = replace(sampling, temperature=1.5 * sampling.temperature, top_k=0, top_p=1.0, min_p=0.0)
    other = dict(enumerate(oracle.warped(logits, hotter)[0].softmax(-1).tolist()))
    assert chi_square(by_seed, other, n) > 60 and chi_square(by_position, other, n) > 60


def test_a_walk_goes_as_far_as_the_draws_agree():
    chain = ProposalTree.chain(torch.arange(40))
    path, after = walk(chain, [*range(1, 40), 77].__getitem__)
    assert path.tolist() == list(range(40)) and after == 77
    path, after = walk(chain, [*range(1, 13), 5, *range(14, 40), 77].__getitem__)
    assert path.tolist() == list(range(13)) and after == 5


def test_a_walk_goes_only_to_children_of_its_node():
    # 1 is a child of node 1, not of node 2.
    assert walk(BRANCHES, [2, 0, 1, 9, 9, 9].__getitem__)[0].tolist() == [0, 2]
    assert walk(BRANCHES, [1, 1, 9, 9, 2, 0].__getitem__)[0].tolist() == [0, 1, 4, 5]


def test_greedy_takes_the_first_of_equal_ones_at_every_node():
    logits = torch.tensor([[0.0, 2.0, 2.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    path, after = Greedy()(ProposalTree.chain(torch.tensor([0, 1, 2])), logits, torch.arange(4, 7))
    assert (path.tolist(), after) == ([0, 1], 0)


def test_a_replay_follows_its_recording_from_its_start():
    chain = ProposalTree.chain(torch.tensor([9, 4, 5, 8]))
    path, after = Replay([3, 4, 5, 6, 7], start=10)(chain, torch.zeros(4, 10), torch.arange(11, 15))
    assert (path.tolist(), after) == ([0, 1, 2], 6)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"temperature": float("nan")}, "must be a number, 0 or more; 0 is greedy"),
        ({"temperature": -1.0}, "0 or more"),
        ({"temperature": -1e-9}, "0 or more"),
        ({"temperature": float("inf")}, "0 or more"),
        ({"temperature": "0.5"}, "temperature is '0.5'; it must be a number"),
        ({"temperature": True}, "a number"),
        ({"temperature": 1.0, "top_p": float("nan")}, "from 0 to 1; 1 is all"),
        ({"temperature": 1.0, "top_p": -0.1}, "from 0 to 1"),
        ({"temperature": 1.0, "top_p": 1.01}, "from 0 to 1"),
        ({"temperature": 1.0, "top_p": True}, "a number"),
        ({"temperature": 1.0, "top_k": 2.0}, "a whole number"),
        ({"temperature": 1.0, "top_k": -2}, "-1 or more; 0 and -1 are all"),
        ({"temperature": 1.0, "top_k": True}, "a whole number"),
        ({"temperature": 1.0, "min_p": 1.0}, "from 0 to below 1"),
        ({"temperature": 1.0, "min_p": None}, "a number"),
        ({"temperature": 1.0, "seed": 1.5}, "a whole number"),
        ({"temperature": 1.0, "seed": 2**63}, "from 0 to 9,223,372,036,854,775,807"),
        ({"temperature": 1.0, "seed": -1}, "from 0"),
        ({"top_p": 0.5}, "greedy, and top_p=0.5 would change nothing.*above 0"),
        ({"top_k": 3}, "top_k=3 would change"),
        ({"min_p": 0.1}, "min_p=0.1 would change"),
        ({"seed": 5}, "seed=5 would change"),
        ({"replay": []}, "at least one token"),
        ({"replay": [1, 1.5]}, "a token is 1.5; it must be a token id"),
        ({"replay": [[1]]}, "token id"),
        ({"replay": "text"}, "token id"),
        ({"replay": [True]}, "token id"),
        ({"replay": [1], "temperature": 1.0}, "one or the other"),
    ],
    ids=str,
)
def test_invalid_sampling_settings_are_refused(given, message):
    with pytest.raises(ValueError, match=message) as error:
        Sampling(**given)
    assert "\n" not in str(error.value)


def test_numbers_of_other_libraries_are_accepted():
    assert isinstance(Sampling(np.float32(0.5), top_k=np.int64(3), seed=np.int64(2)).rule(4), Sampled)
    assert isinstance(Sampling(1, 1).rule(4), Sampled)
    assert isinstance(Sampling(replay=np.array([1, 2])).rule(4), Replay)
    assert isinstance(Sampling(0).rule(4), Greedy)
    assert type(Sampling(1.0, seed=np.int64(2)).seed) is int  # JSON has no other


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"temperature": 1e-6, "seed": 4}, Sampling()),
        ({"temperature": 0.5, "top_p": 0, "top_k": 3}, Sampling()),
        ({"temperature": 0.5, "top_p": 0, "repetition_penalty": 1.2}, Sampling(repetition_penalty=1.2)),
        ({"temperature": 1e-5}, Sampling(1e-5)),
        ({"temperature": 0.5, "top_k": -1}, Sampling(0.5)),
    ],
)
def test_values_of_other_servers_become_ours(given, meant):
    assert Sampling(**given) == meant

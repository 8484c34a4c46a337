"""Costs: interpolation between measured ones, their file, updates by timed steps, and measurement."""

from __future__ import annotations

import copy
import json
import time
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from statistics import mean

import pytest
import torch
from toys.configurations import random_model, tiny
from toys.models import read, small_model, toy_model, toy_network, toy_target
from toys.recorder import recorder
from toys.sessions import answered, toy_parts, toy_prompt, toy_session
from transformers import CONFIG_MAPPING

import longgraft
from longgraft.budget.cost_measurement import CONTEXT, LEVELS, ROWS, Extent, costs_for, key_of, measure
from longgraft.budget.cost_model import KEPT_CURVES, TABLES, Costs, LiveCosts
from longgraft.budget.sample_text import SAMPLE
from longgraft.config.method_roles import HEADLESS
from longgraft.engine.encoder import continuation
from longgraft.runtime.cuda_graphs import Regions
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.target_model.verifier import Verifier
from longgraft.trees.padded import SIZES
from longgraft.trees.tree import ProposalTree

KEY = {"model": "toy", "device": "CPU (x86_64)", "threads": "1"}
COSTS = Costs(
    KEY,
    "made up",
    passes={512: {1: 0.010, 4: 0.013, 16: 0.017}, 4096: {1: 0.014, 4: 0.020, 16: 0.026}},
    levels={512: {2: 0.002, 8: 0.003}},
    feeds={512: {1: 0.002, 16: 0.003}},
    host=0.0005,
)
MADE = {"key": KEY, "source": "made up", "passes": {"512": {"1": 10}}, "levels": {}, "feeds": {}, "host": 0}


def test_costs_are_linear_between_rows_and_prefixes_and_beyond_them():
    assert COSTS.verify(4, 512) == 0.013
    assert COSTS.verify(2, 512) == pytest.approx(0.011)
    assert COSTS.verify(28, 512) == pytest.approx(0.021)
    assert COSTS.verify(1, 2304) == pytest.approx(0.012)
    assert COSTS.verify(1, 4096 + 3584) == pytest.approx(0.018)
    assert COSTS.level(5, 9999) == pytest.approx(0.0025)  # with one prefix, the same for all
    assert COSTS.feed(31, 512) == pytest.approx(0.004)


@pytest.mark.parametrize(
    ("first", "at", "seconds"),
    [
        ({1: 0.005, 16: 0.006}, (1, 1), 0.0025),
        ({1: 0.005, 16: 0.006}, (16, 1), 0.003),
        ({16: 0.010, 32: 0.030}, (1, 256), 0.005),
    ],
)
def test_a_pass_costs_something_even_with_a_short_prefix_and_few_rows(first, at, seconds):
    assert replace(COSTS, passes={256: first, 2048: {1: 0.100, 16: 0.101}}).verify(*at) == seconds


def test_live_costs_are_measured_anew_at_a_prefix_far_beyond_the_measured_ones():
    asked = []

    def measured(prefix: int, seconds: float) -> Costs:
        asked.append((prefix, seconds))
        return replace(COSTS, passes={**COSTS.passes, prefix: {1: 0.030, 2: 0.031, 16: 0.090}})

    live = LiveCosts(COSTS, measure=measured)
    live.timed(4, 512, 0.026)
    slower = live.verify(1, 512) / COSTS.verify(1, 512)
    live.reach(8191, 0.5)
    assert asked == [] and live.verify(1, 8192) == pytest.approx(slower * 0.018, rel=0.1)
    copied = live.copy()
    live.reach(8192, 0.5)
    live.reach(16383, 0.5)
    assert asked == [(8192, 0.5)] and slower > 1
    assert live.verify(1, 8192) == pytest.approx(slower * 0.030) and live.verify(2, 8192) < live.verify(16, 8192)
    live.timed(2, 8192, 0.031 * slower)  # rows that were not measured before can be followed, too
    live.restore(copied.state())
    assert live.verify(2, 8192) == pytest.approx(slower * 0.031, rel=0.05)
    copied.reach(16384, 1.0)
    LiveCosts(COSTS, frozen=True, measure=measured).reach(16384, 1.0)
    LiveCosts(COSTS).reach(16384, 1.0)
    assert asked == [(8192, 0.5), (16384, 1.0)]


def test_a_long_prompt_has_its_costs_measured_at_its_own_length(monkeypatch):
    monkeypatch.setattr("longgraft.budget.cost_measurement.PREFIXES", (4, 8))
    target = Target(copy.deepcopy(toy_model()))  # nobody has measured it
    costs = costs_for(target, None, None)
    assert max(costs.costs.passes) == 8
    session = toy_session("graft-x-text", adaptive=True, costs=costs)
    expected = answered(toy_session("ar"), toy_prompt(70), 4).token_ids
    assert answered(session, toy_prompt(70), 4).token_ids == expected
    reached = set(costs.costs.passes)
    assert {8, 17, 34} <= reached and max(reached) == 68  # chunks of 17 tokens, at twice the length before
    again = costs_for(target, None, None)
    again.reach(68, 0.0)
    assert set(again.costs.passes) == reached  # other sessions of the model need not measure it again


def test_rows_not_measured_at_one_prefix_cost_as_much_more_as_at_another():
    """A slow machine measures 16 rows at 2,048 tokens and only one at 256, where more rows must not be free."""
    costs = replace(COSTS, passes={256: {1: 0.050}, 2048: {1: 0.060, 16: 0.400}})
    assert costs.verify(16, 256) == pytest.approx(0.390) and costs.verify(31, 256) == pytest.approx(0.730)


@pytest.mark.parametrize(
    "grid",
    [
        {512: {1: 0.010, 2: 0.055, 4: 0.013, 16: 0.017}, 4096: {1: 0.05, 4: 0.02, 16: 0.026}},
        {512: {1: 0.012, 16: 0.010}, 4096: {1: 0.011, 8: 0.020, 16: 0.012}},
        {512: {1: 0.01}, 4096: {16: 0.012}},
        {3000: {4: 0.001, 16: 0.009}, 4000: {4: 0.010, 16: 0.030}},
    ],
)
def test_more_rows_and_longer_prefixes_never_cost_less_despite_noise(grid):
    costs = replace(COSTS, passes=grid)
    live = LiveCosts(costs)
    for rows in (1, 2, 8):
        live.timed(rows, 512, 0.03 / rows)
    for verify in (costs.verify, live.verify):
        table = [[verify(rows, prefix) for rows in range(1, 40)] for prefix in (1, 100, 512, 2000, 4096, 30000)]
        assert all(low >= 0 for row in table for low in row)
        assert all(low <= high for row in table for low, high in pairwise(row))
    for shorter, longer in ((1, 512), (512, 4096), (4096, 30000)):
        assert all(costs.verify(n, shorter) <= costs.verify(n, longer) for n in (1, 3, 16, 30))


def test_one_slow_pass_of_fewer_rows_does_not_make_the_others_expensive():
    noisy = replace(COSTS, passes={512: {1: 0.010, 2: 0.055, 4: 0.013, 16: 0.017}})
    assert noisy.verify(16, 512) == 0.017 and noisy.verify(2, 512) == pytest.approx(0.013)


def test_a_file_of_costs_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "costs.json"
    COSTS.save(path)
    found = Costs.load(path)
    assert found == COSTS
    assert json.loads(path.read_text())["passes"]["512"]["1"] == 10.0
    with pytest.raises(ValueError, match="exists already"):
        COSTS.save(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"passes": {}}, "has no passes"),
        ({"passes": {"4k": {"1": 1}}}, "passes: found '4k'"),
        ({"passes": {"512": {}}}, "passes: found '512'"),
        ({"passes": {"512": {"0": 1}}}, "'0' is no number of rows"),
        ({"passes": {"512": {"1": -1}}}, "passes of 1 rows at 512: -1 must be milliseconds"),
        ({"passes": {"512": {"1": 9, "8": 0}}}, "passes: found 0 milliseconds"),
        ({"levels": {"512": {"2": float("nan")}}}, "levels of 2 rows at 512: NaN must be"),
        ({"feeds": {"512": {"2": True}}}, "feeds of 2 rows at 512: true must be"),
        ({"host": float("inf")}, "host: Infinity must be"),
        ({"host": None}, "'host' is null"),
        ({"key": {"model": 3}}, "must be text"),
        ({"unit": "s"}, 'is in "s"; milliseconds are needed'),
        ({"by_length": {}}, "by_length, which is unknown"),
        ({"source": 1}, "'source' is 1"),
    ],
)
def test_impossible_costs_are_named_with_their_place(tmp_path, changes, said):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(MADE))
    assert Costs.load(path).verify(7, 99) == 0.010
    path.write_text(json.dumps(MADE | changes))
    with pytest.raises(ValueError) as error:
        Costs.load(path)
    assert said in str(error.value) and str(path) in str(error.value)


def test_costs_name_the_differences_of_another_session():
    assert COSTS.fits(KEY | {"dtype": "float32"}) == []
    assert COSTS.fits(KEY | {"threads": "2"}) == ["threads 2 instead of 1"]
    assert COSTS.fits({"model": "toy", "threads": "1"}) == ["device none instead of CPU (x86_64)"]


def test_costs_follow_timed_passes_and_others_change_a_little():
    live = LiveCosts(COSTS)
    for _ in range(100):
        live.timed(4, 512, 0.016)
    assert live.verify(4, 512) == pytest.approx(0.016, rel=0.02)
    assert 0.0102 < live.verify(1, 512) < 0.012  # never timed: the whole machine may have become slower
    assert 0.00204 < live.level(2, 512) < 0.0024
    for _ in range(50):
        live.timed(1, 512, 0.010)
        live.timed(4, 512, 0.016)
    assert live.verify(1, 512) == pytest.approx(0.010, rel=0.05)
    assert live.verify(4, 512) == pytest.approx(0.016, rel=0.05)


def test_an_overpriced_pass_is_soon_as_cheap_as_it_is():
    """Noise only adds time, so a fast pass is believed."""
    live = LiveCosts(replace(COSTS, passes={512: {1: 0.010, 2: 0.030, 16: 0.031}}))
    for _ in range(8):
        live.timed(2, 512, 0.011)
    assert live.verify(2, 512) == pytest.approx(0.011, rel=0.06)


def test_one_slow_step_hardly_moves_costs():
    live = LiveCosts(COSTS)
    live.timed(4, 512, 5 * live.verify(4, 512))
    live.drafted(1.0, 50.0)
    live.timed(1, 512, 0.0)  # a clock that stood still is ignored
    assert live.verify(4, 512) < 1.15 * COSTS.verify(4, 512)
    assert live.level(2, 512) < 1.15 * COSTS.level(2, 512)


def test_drafts_slower_than_their_parts_raise_only_the_costs_of_drafting():
    live = LiveCosts(COSTS)
    for _ in range(60):
        live.drafted(live.feed(1, 512) + 2 * live.level(2, 512), 1.4 * (COSTS.feed(1, 512) + 2 * COSTS.level(2, 512)))
    assert live.level(2, 512) == pytest.approx(1.4 * COSTS.level(2, 512), rel=0.02)
    assert live.verify(1, 512) == COSTS.verify(1, 512)


def test_the_table_of_passes_has_the_costs_of_each_number_of_rows():
    live = LiveCosts(Costs({}, "made up", {0: {1: 1.0, 4: 2.0}, 100: {1: 2.0, 4: 5.0}}, {}, {}))
    for rows, prefix in ((6, 50), (9, 50), (3, 100), (5, 0)):
        table = live.verify_up_to(rows, prefix)
        assert len(table) > rows and table[1:] == pytest.approx([live.verify(n, prefix) for n in range(1, len(table))])
    for prefix in range(KEPT_CURVES + 1):
        assert live.verify_up_to(3, prefix)[2] == pytest.approx(live.verify(2, prefix))
    live.timed(4, 50, 9.0)
    assert live.verify_up_to(9, 50)[4] == live.verify(4, 50) > 3.5


def test_frozen_costs_do_not_change():
    live = LiveCosts(COSTS, frozen=True)
    live.timed(4, 512, 1.0)
    live.drafted(0.5, 1.0)
    assert all(getattr(live, name)(4, 700) == getattr(COSTS, name)(4, 700) for name in ("verify", "level", "feed"))


@pytest.mark.parametrize("drafter", [True, False])
def test_measuring_costs_leaves_no_trace_and_keeps_to_its_time(drafter):
    target, network = toy_target(), toy_network() if drafter else None
    hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in target.model.modules()]
    implementation, state = target.model.config._attn_implementation, torch.random.get_rng_state()
    measure(target, network, Extent([8, 64], 0.01))  # warm-up: some code is loaded at its first use
    begun = time.process_time()  # a busy machine gives it less
    costs = measure(target, network, Extent([8, 64], 0.6))
    assert time.process_time() - begun < 2.0
    assert hooks == [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in target.model.modules()]
    assert target.model.config._attn_implementation == implementation
    assert torch.equal(torch.random.get_rng_state(), state)
    assert set(costs.passes[64]) == set(ROWS) and sorted(costs.passes) == [8, 64]
    assert all(bool(getattr(costs, name)) == (drafter or name == "passes") for name in TABLES)
    assert costs.verify(1, 64) > 0 and costs.source == "measured here"
    assert costs.key == key_of(target, network) and costs.fits(key_of(target, None)) == (
        [] if network is None else ["drafter none instead of eagle3, 1 x 32, vocabulary 48"]
    )


def test_costs_of_a_file_are_frozen_and_must_fit_the_session(tmp_path):
    target, network, path = toy_target(), toy_network(), tmp_path / "costs.json"
    measure(target, network, Extent([8, 64], 0.0)).save(path)
    assert costs_for(target, network, str(path)).frozen and not costs_for(target, network, None).frozen
    with pytest.raises(ValueError, match=r"another session: here is drafter none instead of eagle3(?s:.)*--costs"):
        costs_for(target, None, str(path))
    path.write_text(json.dumps(MADE | {"key": {}}))
    with pytest.raises(ValueError, match="no costs of a drafter"):
        costs_for(target, network, str(path))


def test_costs_not_measured_for_want_of_time_are_named_and_interpolated():
    costs = measure(toy_target(), toy_parts().head, Extent([8, 64], 0.0))
    assert set(costs.passes) == {64} and set(costs.passes[64]) == {1, 16} and set(costs.levels[64]) == {8}
    assert "not, for want of time: feeds of 1 at 8, " in costs.source and "passes of 2 at 64" in costs.source
    assert costs.verify(1, 64) <= costs.verify(4, 64) <= costs.verify(16, 64)


def test_few_sizes_are_recorded_to_measure_costs():
    """Each recorded size takes time that no limit bounds, within a request."""
    made = []
    regions = Regions(lambda region: made.append(1) or recorder(region))
    costs = measure(toy_target(), toy_parts().head, Extent([8, 64], 0.0), regions)
    assert set(costs.passes[64]) == {1, 60} and set(costs.levels[64]) == {8} and len(made) < 20


def test_recorded_costs_of_long_prompts_are_measured_at_load():
    made = []
    regions = Regions(lambda region: made.append(1) or recorder(region))
    costs = costs_for(toy_target(), None, None, regions)
    before = len(made)
    longest = 512 - max(SIZES) - LEVELS - 1
    assert costs.reached == longest
    costs.reach(4 * longest, 1.0)
    assert len(made) == before


def test_prefixes_are_measured_as_far_as_positions_go():
    assert max(measure(toy_target(), toy_network(), Extent([9999, 99999], 0.0)).passes) == 512 - max(ROWS) - LEVELS - 1


@pytest.fixture
def verified(monkeypatch) -> list[list[int]]:
    """Records the tokens of all trees that are verified."""
    seen, real = [], Verifier.verify

    def verify(self, tree, wants):
        seen.append(tree.tokens.tolist())
        return real(self, tree, wants)

    monkeypatch.setattr(Verifier, "verify", verify)
    return seen


def test_measured_passes_have_tokens_of_the_whole_vocabulary_without_a_text(verified):
    measure(small_model(600), None, Extent([64], 0.3))
    largest = max(verified, key=len)
    assert largest[-1] == (len(largest) - 1) * (600 // max(ROWS))


def test_rows_of_measured_passes_are_tokens_of_a_text(verified):
    session = longgraft.load(None, None, tell=False, method=HEADLESS)
    text = continuation(session.tokenizer, SAMPLE)
    assert all(tokens == text[CONTEXT : CONTEXT + len(tokens)] for tokens in verified)
    assert len(max(verified, key=len)) >= 16


def test_measured_rows_wake_as_many_experts_as_rows_of_a_text():
    """Equal rows wake as many as one, and rows after zeros are less alike than rows of a text."""
    model = random_model(tiny(CONFIG_MAPPING["qwen3_moe"], num_experts=32, num_experts_per_tok=2))
    target, woken = Target(model), defaultdict(list)

    def count(module, given) -> None:
        woken[len(given[1])].append(len(given[1].unique()))

    for layer in model.model.layers:
        layer.mlp.experts.register_forward_pre_hook(count)
    measure(target, None, Extent([128], 0.3))
    measured = {rows: mean(counts) for rows, counts in woken.items()}
    woken.clear()
    text, cache = torch.randint(96, (136,), generator=torch.Generator().manual_seed(1)), target.cache(200)
    for part in text.split([120, 16]):
        read(target, Segment(ProposalTree.chain(part), cache))
        cache.keep(torch.arange(len(part)))
    assert measured[1] == 2 and measured[16] == pytest.approx(mean(woken[16]), rel=0.2) and measured[16] > 6

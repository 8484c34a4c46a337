"""Steps of fixed shape are recorded once for all prefixes and trees, and give the results of single launches."""

from __future__ import annotations

import threading
import warnings
from itertools import cycle

import pytest
import torch
from toys.models import FAMILIES, toy_network
from toys.oracle import plain
from toys.recorder import Refused, recorder
from toys.sessions import CHOOSING, EVERY, answered, toy_parts, toy_prompt, toy_session
from toys.trees import random_tree

from longgraft.acceptance.rules import Greedy, Replay
from longgraft.acceptance.sampling import Sampling
from longgraft.attention.backends import triton
from longgraft.comparison.with_plain import compare_with_plain, plain_session
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.pruning import Dense, Gates, Split
from longgraft.engine.engine import Engine
from longgraft.engine.lane import Lane
from longgraft.engine.session import Session
from longgraft.kernels import fused_triton
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.methods.building import drafter, drafter_cache
from longgraft.methods.find import build
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, MOST, NotRecorded, Regions, _warm
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.fused_model import fused_layers
from longgraft.target_model.fused_modules import FusedModules
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.target_model.static_pass import Slot, StaticPass, why_not_fixed
from longgraft.target_model.verifier import Verifier
from longgraft.trees.padded import SIZES, PaddedTree, on_host
from longgraft.trees.tree import ProposalTree

SHAPE = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=None,
)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "rope_theta": 1e4,
}
HEADS, WINDOW = {"head_dim": 16}, {"sliding_window": 24}
TEN = {
    "llama": ("LlamaConfig", {}),
    "llama with llama3 rope": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", HEADS),
    "qwen3 with yarn": ("Qwen3Config", HEADS | {"rope_parameters": YARN}),
    "qwen3-moe": ("Qwen3MoeConfig", HEADS | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}),
    "mistral with a window": ("MistralConfig", WINDOW),
    "gemma2": ("Gemma2Config", HEADS | WINDOW),
    "gemma3": ("Gemma3TextConfig", HEADS | WINDOW),
    "phi3": ("Phi3Config", {}),
}
WHOLE = "llama", "llama with llama3 rope", "qwen2", "qwen3", "qwen3 with yarn", "mistral with a window"
WANTS = Wants(layers=(0, 2), final=True, topk=4)


def model_of(family: str, **more) -> Target:
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(3)
    name, extra = TEN[family]
    config = getattr(transformers, name)(**SHAPE | extra | more)
    return Target(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval(), family)


def prefilled(target: Target, length: int, wants: Wants = WANTS, capacity: int = 256) -> KVCache:
    cache = target.cache(capacity)
    if not cache.layers[0].is_initialized:
        Verifier(target, cache, Greedy(), Clock()).read(torch.tensor(toy_prompt(length, seed=length)), wants)
    return cache


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", TEN)
@torch.inference_mode()
def test_a_pass_recorded_once_serves_other_lengths_and_trees(family):
    target, regions = model_of(family), Regions(recorder)
    cache = prefilled(target, 150)
    fixed = StaticPass(target, cache, 16, WANTS, regions)
    for length, nodes in ((20, 9), (3, 16), (150, 12), (61, 1), (100, 15)):
        cache.length = length
        tree = random_tree(nodes, length)
        (expected,) = target.run([Segment(tree, cache)], WANTS)
        rows = [layer.keys[:, :, length : length + nodes].clone() for layer in cache.layers]
        fixed.load(Slot(tree, cache, Greedy()))
        seen, positions = fixed.forward()
        torch.testing.assert_close(seen.logits[:nodes], expected.logits, atol=1e-5, rtol=1e-4)
        for layer, hidden in expected.hidden.items():
            torch.testing.assert_close(seen.hidden[layer][:nodes], hidden, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(seen.final[:nodes], expected.final, atol=1e-5, rtol=1e-4)
        assert torch.equal(seen.topk[:nodes, 0], expected.topk[:, 0])
        assert positions[:nodes].tolist() == (length + 1 + tree.depths).tolist()
        for layer, before in zip(cache.layers, rows, strict=True):
            torch.testing.assert_close(layer.keys[:, :, length : length + nodes], before, atol=1e-5, rtol=1e-4)
    assert regions.fixed and len(regions.recordings) == 1


def as_on_a_gpu(target: Target) -> Target:
    """Gives a target the kernels used on CUDA, which run in Triton's interpreter if there is no GPU."""
    layers = fused_layers(target.model, fused_triton)
    target.fused, target.fixed_backend = FusedModules(target.model, fused_triton, *layers), triton
    return target


class Fixed(Regions):
    """Regions of fixed shape that run anew each time, because the interpreter's kernels cannot be recorded."""

    def __init__(self) -> None:
        super().__init__(recorder)

    def __call__(self, key, region):
        return region()


@pytest.mark.one_in(10)
@pytest.mark.parametrize("family", TEN)
@torch.inference_mode()
def test_the_gpus_kernels_together_give_the_results_of_single_launches(family):
    target = as_on_a_gpu(model_of(family))
    assert (target.fused.counts["layers"] == 3) is (family in WHOLE)
    cache, tree = prefilled(target, 30), random_tree(7, 5)
    fixed = StaticPass(target, cache, 8, WANTS, Fixed())
    (expected,) = target.run([Segment(tree, cache)], WANTS)
    fixed.load(Slot(tree, cache, Greedy()))
    seen, _ = fixed.forward()
    torch.testing.assert_close(seen.logits[:7], expected.logits, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(seen.final[:7], expected.final, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ar", "graft"])
def test_the_gpus_kernels_decode_the_plain_answer(method):
    parts = toy_parts("qwen3", regions=Fixed())
    as_on_a_gpu(parts.target)
    proposer = build(method, parts)
    if method == "graft":
        drafter_cache(parts)._fixed_backend = triton
    session = Session(Engine(Lane(parts.target, proposer, parts.clock, parts.regions), 8), None)
    found, usual = (answered(one, toy_prompt(20), 4) for one in (session, toy_session(method, "qwen3", 8)))
    assert found.token_ids == usual.token_ids == plain("qwen3", 20, 4, GREEDY)
    assert found.stats.accepted_per_step == usual.stats.accepted_per_step


def test_a_model_that_reads_a_value_on_the_host_is_not_recorded():
    target, regions = model_of("llama"), Regions(recorder)
    cache = prefilled(target, 40)
    reads = target.layers[1].mlp.register_forward_hook(lambda _, __, out: out if out.abs().max() > 0 else None)
    with (
        pytest.warns(UserWarning, match="decodes without CUDA graphs: .* reads a value of the device"),
        torch.inference_mode(),
    ):
        fixed = StaticPass(target, cache, 8, WANTS, regions)
        fixed.load(Slot(random_tree(5, 0), cache, Greedy()))
        fixed.forward()
    reads.remove()
    assert not regions.fixed


def test_a_named_attention_that_reads_lengths_on_the_host_is_not_recorded():
    assert "split reads the length on the host" in why_not_fixed("split")
    assert why_not_fixed("auto") == why_not_fixed("triton") == "no CUDA device"


GREEDY, SAMPLED = Sampling(), Sampling(temperature=0.8, top_k=30, top_p=0.95, seed=5)


# Each method runs with one family, in turn; one method runs with all families.
@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "method, family", sorted({*zip(EVERY, cycle(FAMILIES), strict=False), *(("graft", family) for family in FAMILIES)})
)
def test_recorded_steps_give_and_accept_the_tokens_of_single_launches(method, family):
    """Three requests run in one session; the third is longer, so that its buffers are larger."""
    regions = Regions(recorder)
    ours, usual = (toy_session(method, family, chunk=128, regions=one) for one in (regions, EAGER))
    for length, new, sampling in ((60, 8, GREEDY), (45, 6, SAMPLED), (300, 2, GREEDY)):
        said = [answered(session, toy_prompt(length), new, sampling) for session in (ours, usual)]
        if EVERY[method].promise == "exact":
            assert said[1].token_ids == plain(family, length, new, sampling)
        assert said[0].token_ids == said[1].token_ids
        assert said[0].stats.accepted_per_step == said[1].stats.accepted_per_step
        assert said[0].stats.accepted_by_origin == said[1].stats.accepted_by_origin
        assert said[0].stats.stages == said[1].stats.stages
        for name, (nodes, estimates, accepted) in said[0].stats.by_probability.items():
            assert (nodes, pytest.approx(estimates, rel=1e-4), accepted) == said[1].stats.by_probability[name]
    wants = Wants.union(memory.wants for memory in build(method, toy_parts(family)).memories)
    assert regions.fixed and (regions.recordings or wants.queries)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("method", CHOOSING)
def test_a_controllers_trees_are_verified_in_recorded_steps(method):
    regions = Regions(recorder)
    ours, usual = (toy_session(method, adaptive=True, regions=one) for one in (regions, EAGER))
    said = [answered(session, toy_prompt(60), 24) for session in (ours, usual)]
    assert said[0].token_ids == said[1].token_ids == plain("llama", 60, 24, GREEDY)
    assert said[0].stats.accepted_per_step == said[1].stats.accepted_per_step
    assert regions.fixed and regions.recordings


@pytest.mark.slow
def test_seeds_share_their_recordings_and_give_different_answers():
    regions = Regions(recorder)
    session = toy_session("eagle3", regions=regions)
    said, laws = set(), set()
    for seed in (5, 6, 7):
        sampling = Sampling(temperature=0.8, top_p=0.95, seed=seed)
        ids = answered(session, toy_prompt(60), 10, sampling).token_ids
        assert ids == plain("llama", 60, 10, sampling)
        said.add(tuple(ids))
        laws |= {key[-1] for key in regions.recordings if isinstance(key[0], tuple)}
    assert len(said) == 3 and len(laws) == 1


@pytest.mark.one_in(5)
@pytest.mark.parametrize("method, late", [("ar", 0), ("eagle3", 0), *(("graft", late) for late in range(9))])
def test_regions_that_cannot_be_recorded_are_launched_singly_with_one_warning(method, late):
    """Recording fails from the beginning, or after the first regions."""
    left = iter([recorder] * late)

    def sometimes(region):
        if (one := next(left, None)) is None:
            raise Refused("out of room")
        return one(region)

    regions = Regions(sometimes)
    with pytest.warns(UserWarning, match="longgraft decodes without CUDA graphs: out of room") as said:
        found = answered(toy_session(method, regions=regions), toy_prompt(60), 24)
    assert found.token_ids == plain("llama", 60, 24, GREEDY) and len(said) == 1 and not regions.fixed


def test_features_are_those_of_the_kept_path():
    """The path skips a sibling; passes are launched singly and recorded."""
    found = []
    for regions in (EAGER, Regions(recorder)):
        parts = toy_parts(regions=regions)
        cache = prefilled(parts.target, 40, Wants(), 256)
        verifier = Verifier(parts.target, cache, Greedy(), Clock(), regions)
        first = int(parts.target.run([Segment(ProposalTree.root_only(7), cache)], Wants())[0].logits.argmax())
        other = (first + 1) % 96
        tree = ProposalTree.build([7, other, first], [-1, 0, 0], [0.0] * 3, [1, 2, 2])
        (report,) = parts.target.run([Segment(tree, cache)], WANTS)
        wanted = report.hidden[2][[0, 2]].clone(), report.final[[0, 2]].clone()
        seen = verifier.verify(tree, WANTS)
        assert seen.path.tolist() == [0, 2] and seen.kept.tolist() == [7, first]
        torch.testing.assert_close(seen.hidden[2], wanted[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(seen.final, wanted[1], atol=1e-5, rtol=1e-4)
        found.append(seen.features((0, 2)))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


def test_observed_features_outlive_the_next_pass():
    parts = toy_parts(regions=Regions(recorder))
    verifier = Verifier(parts.target, prefilled(parts.target, 40, Wants()), Greedy(), Clock(), parts.regions)
    first = verifier.verify(random_tree(5, 1), WANTS)
    features = first.features((0, 2)).clone()
    verifier.verify(random_tree(6, 2), WANTS)
    assert torch.equal(first.features((0, 2)), features)


@pytest.mark.parametrize(
    "tree, rule, rows",
    [
        (ProposalTree.root_only(7), Greedy(), list(range(8))),
        (
            ProposalTree.build([7, 8, 9, 10, 11], [-1, 0, 0, 2, 2], [0.0] * 5, [1, 2, 2, 2, 2]),
            Replay([9, 11, 3], 41),
            [0, 2, 4],
        ),
    ],
    ids=["one node", "skips"],
)
@torch.inference_mode()
def test_rows_of_a_path_can_be_committed_repeatedly_and_a_path_of_one_moves_none(tree, rule, rows):
    """A recording runs the commit several times on the same numbers."""
    parts = toy_parts(regions=Regions(recorder))
    cache = prefilled(parts.target, 40, Wants())
    fixed = StaticPass(parts.target, cache, 8, Wants(), parts.regions)
    fixed.load(Slot(tree, cache, rule))
    report, positions = fixed.forward()
    before = cache.layers[1].keys[:, :, 40:48].clone()
    fixed.settle(report, positions)
    assert torch.equal(cache.layers[1].keys[:, :, 40 : 40 + len(rows)], before[:, :, rows])


@torch.inference_mode()
def test_a_walk_that_is_not_recorded_reads_the_tree_of_its_own_pass():
    """The pass before was launched kernel by kernel, and made tensors of its own."""
    refused = set()

    def crowded(region):
        if calls and calls[-1] in refused:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return recorder(region)

    calls = []

    class Named(Regions):
        def __call__(self, key, region):
            calls.append(key[-1])
            return super().__call__(key, region)

    regions = Named(crowded)
    parts = toy_parts(regions=regions)
    cache = prefilled(parts.target, 40, Wants())
    fixed = StaticPass(parts.target, cache, 8, Wants(), regions)
    chain = ProposalTree.build([7, 8, 9], [-1, 0, 1], [0.0] * 3, [1, 2, 2])
    star = ProposalTree.build([7, 5, 8], [-1, 0, 0], [0.0] * 3, [1, 2, 2])
    refused |= {"settle", "before"}
    paths = []
    with pytest.warns(UserWarning, match="kernel by kernel"):
        for tree, before in ((star, False), (chain, True), (star, False)):
            regions.begin_step()
            if before:
                regions(("a region", "before"), lambda: None)
            fixed.load(Slot(tree, cache, Replay([8, 9, 3], 41)))
            _, _, record = fixed.settle(*fixed.forward())
            paths.append(fixed.unpack(record, 0, fixed.loaded[0])[2].tolist())
    assert paths == [[0, 2], [0, 1, 2], [0, 2]]


def test_recorded_steps_fill_the_matrix_with_the_same_rows():
    found = []
    for regions in (EAGER, Regions(recorder)):
        session = toy_session("graft", "qwen3", regions=regions)
        answered(session, toy_prompt(60), 24)
        rows = next(memory for memory in session.engine.proposer.memories if memory.name == "matrix")
        found.append(rows.matrix.rows.clone())
    assert torch.equal(*found)


@pytest.mark.slow
def test_requests_of_like_lengths_share_their_recordings_and_a_longer_one_makes_new_ones():
    regions = Regions(recorder)
    session = toy_session("eagle3", regions=regions)
    answered(session, toy_prompt(130), 12)
    before = dict(regions.recordings)
    for length in (130, 140, 60):
        answered(session, toy_prompt(length), 12 if length == 130 else 4)
        assert {key for key in regions.recordings if key not in before} <= {
            key for key in regions.recordings if {"feed", "forward", "settle", "commit"} & set(key)
        }
    assert before.items() <= regions.recordings.items()
    made = regions.recorded
    answered(session, toy_prompt(400), 16)
    assert not before.keys() & regions.recordings.keys()
    assert regions.recorded == made + len(regions.recordings)  # dropped recordings count, too


def test_caches_of_recorded_steps_have_room_for_padded_rows():
    session = toy_session("ar", regions=Regions(recorder))
    for length in range(1, 500, 7):
        session.open(toy_prompt(length), 8)
        assert session.engine.cache.capacity >= length + 8 + SIZES[-1], length


def test_a_session_without_recordings_gives_its_buffers_back_and_one_with_them_keeps_them():
    for regions, kept in ((EAGER, False), (Regions(recorder), True)):
        session = toy_session("eagle3", regions=regions)
        answered(session, toy_prompt(60), 8)
        (lane,) = session.engine.lanes
        drafted = lane.proposer.memories[0].aligned
        held = lane.cache if lane.pool is None else lane.pool.whole
        assert not lane.cache.capacity and (held.bytes() > 0) is (drafted.bytes() > 0) is kept


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "method, budget", [("graft", 66), ("graft+pruning=none+retrieved=20", 80), ("eagle3", 100), ("graft-x", 90)]
)
def test_budgets_beyond_the_largest_size_give_the_results_of_single_launches(method, budget):
    said = [
        answered(toy_session(method, budget=budget, regions=one), toy_prompt(60), 10)
        for one in (EAGER, Regions(recorder))
    ]
    assert said[0].token_ids == said[1].token_ids == plain("llama", 60, 24, GREEDY)[:10]
    assert said[0].stats.accepted_per_step == said[1].stats.accepted_per_step


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # of numpy, in the interpreter
@pytest.mark.parametrize("policy", [Dense(), Split(20)])
def test_a_draft_by_the_gpus_kernels_is_the_tree_of_one_by_torch(policy):
    trees = []
    for regions, kernels in ((EAGER, None), (Fixed(), fused_triton)):
        memory = Eagle3Cache(toy_network(), regions=regions, fused=kernels)
        drafter = Eagle3Drafter(memory, policy, levels=4)
        memory.reset(100)
        for tokens in (30, 3):
            observe(memory, tokens)
            trees.append(on_host(drafter.propose(Ask(1, 40, 30))))
    for ours, torchs in zip(trees[2:], trees[:2], strict=True):
        assert torch.equal(ours.tokens, torchs.tokens) and torch.equal(ours.parents, torchs.parents)
        torch.testing.assert_close(ours.scores, torchs.scores, rtol=1e-4, atol=1e-5)


def observe(memory: Eagle3Cache, tokens: int, seed: int = 0) -> None:
    features = torch.randn(tokens, 32, generator=torch.Generator().manual_seed(seed))
    hidden = {layer: layer * features for layer in (1, 2, 3)}
    chain = ProposalTree.chain(torch.arange(tokens))
    memory.observe(Observation(chain, torch.arange(tokens), 1, prompt=True, hidden=hidden))


def drafters_of_one_memory(regions: Regions, *policies) -> list[Eagle3Drafter]:
    """Returns drafters of these policies that have observed one prompt."""
    parts = toy_parts(regions=regions)
    drafters = [drafter(parts, policy) for policy in policies]
    drafters[0].memory.reset(100)
    observe(drafters[0].memory, 30)
    return drafters


def test_levels_recorded_together_and_singly_are_selected_from_their_own_tensors():
    """An open gate gives the verdict of no gate, so that their selections differ in nothing else."""
    trees = []
    for regions in (Regions(recorder), EAGER):
        drafters = drafters_of_one_memory(regions, Dense(), Gates({0: 0.0}))
        for step, ours in enumerate(drafters * 2):
            observe(ours.memory, 3, seed=step)
            trees.append(on_host(ours.propose(Ask(1, 40, 30))))
    for tree, known in zip(trees[:4], trees[4:], strict=True):
        assert torch.equal(tree.tokens, known.tokens) and torch.equal(tree.parents, known.parents)


def test_drafters_of_one_memory_share_their_recordings():
    regions = Regions(recorder)
    drafters = drafters_of_one_memory(regions, Dense(), Split(40))
    memory = drafters[0].memory
    alone = [
        on_host(Eagle3Drafter(memory, drafter.policy).propose(Ask(1, 60, 30))).tokens.tolist() for drafter in drafters
    ]
    before = regions.recorded
    assert [on_host(drafter.propose(Ask(1, 60, 30))).tokens.tolist() for drafter in drafters] == alone
    assert regions.recorded == before == 1 + 2  # all levels, and one selection each


def test_only_the_last_sampling_settings_stay_recorded():
    regions = Regions(recorder)
    session, counts = toy_session("eagle3", regions=regions), []
    for temperature in (0.7, 0.8, 0.9):
        answered(session, toy_prompt(60), 12, Sampling(temperature=temperature, seed=1))
        counts.append(sum("draw" in key[0] for key in regions.recordings if isinstance(key[0], tuple)))
    assert counts == [2, 2, 2]  # a tree, and the last token alone


def test_a_comparison_replays_plain_decoding_and_leaves_out_the_time_of_recording():
    session = toy_session("eagle3", regions=Regions(recorder))
    ids = toy_prompt(60)
    first, later = (answered(session, ids, 12) for _ in range(2))
    assert later.stats.recording_seconds == 0 < first.stats.recording_seconds < first.stats.decode_seconds
    rest = first.stats.decode_seconds - first.stats.recording_seconds
    assert first.stats.replayed_tokens_per_second == pytest.approx(11 / rest)
    assert later.stats.replayed_tokens_per_second == later.stats.decode_tokens_per_second
    compared = compare_with_plain(session, ids, first, Sampling(), 12)
    assert compared["identical"] and compared["plain_recording_seconds"] > 0
    assert compared["recording_seconds"] == first.stats.recording_seconds
    plain = compared["plain_tokens_per_second"]
    assert compared["speedup"] == pytest.approx(first.stats.replayed_tokens_per_second / plain)


def test_plain_decoding_is_recorded_for_times_and_not_for_tokens_even_if_the_method_was_refused():
    made = []

    def refusing(region):
        made.append(region)
        if len(made) == 3:
            raise NotRecorded("a part waits")
        return recorder(region)

    session = toy_session("eagle3", regions=Regions(refusing))
    with pytest.warns(UserWarning, match="without CUDA graphs: a part waits"):
        found = answered(session, toy_prompt(60), 12)
    assert not session.engine.regions.fixed and found.stats.recording_seconds > 0
    assert plain_session(session, recorded=True).engine.regions.fixed
    assert not plain_session(session).engine.regions.fixed


def recorded_on_paper() -> Regions:
    """Returns regions whose recordings only return what the region returned."""
    return Regions(lambda region: (lambda: None, region()))


def test_recordings_that_rested_longest_make_room_for_others():
    regions = recorded_on_paper()
    for key in range(MOST - 1):
        regions.begin_step()
        assert regions(key, lambda key=key: key) == key
        regions("every step", lambda: None)
    regions.begin_step()
    assert set(regions.recordings) == {"every step", *range(MOST // 2 + 1, MOST - 1)}


def test_all_recordings_of_a_step_are_dropped_together():
    """A recording may read what another of its step returned."""
    regions = recorded_on_paper()
    for _ in range(3):
        regions.begin_step()
        for key in range(MOST):
            regions(key, lambda: 0)
    regions.begin_step()
    assert not regions.recordings


def test_a_crowded_session_records_a_region_when_it_comes_again():
    regions = recorded_on_paper()
    for key in range(MOST):
        regions(key, lambda: 0)
    regions.begin_step()
    assert regions("rare", lambda: 7) == 7 and regions.recorded == MOST
    assert regions("rare", lambda: 7) == 7 and regions.recorded == MOST, "the rest of a step stays eager"
    regions.begin_step()
    assert regions("rare", lambda: 7) == 7 and regions.recorded == MOST + 1
    regions.forget()
    regions("new", lambda: 0)
    assert set(regions.recordings) == {"new"}


@pytest.mark.parametrize("method", ["eagle3", "graft"])
def test_answers_stay_the_same_while_recordings_are_dropped(method, monkeypatch):
    monkeypatch.setattr("longgraft.runtime.cuda_graphs.MOST", 8)
    regions = Regions(recorder)
    session = toy_session(method, regions=regions)
    for length in (60, 61, 60):
        found = answered(session, toy_prompt(length), 24)
        assert found.token_ids == plain("llama", length, 24, GREEDY)
    assert regions.recorded > 20 and regions.fixed


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "method, failing",
    [*(("ar", failing) for failing in (1, 2, 3)), *(("eagle3", failing) for failing in range(1, 14, 2))],
)
def test_a_recording_without_memory_leaves_the_other_steps_recorded(method, failing):
    """A later recording must not read the tensors of a region that runs eagerly."""
    calls = []

    def crowded(region):
        calls.append(1)
        if len(calls) == failing:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore lines")
        return recorder(region)

    regions = Regions(crowded)
    with pytest.warns(
        UserWarning, match=r"a part of its steps kernel by kernel: CUDA out of memory\. Tried.*GiB\.$"
    ) as said:
        found = answered(toy_session(method, regions=regions), toy_prompt(60), 24)
    assert found.token_ids == plain("llama", 60, 24, GREEDY) and len(said) == 1
    assert regions.fixed and regions.recorded == len(calls) - 1


def test_a_region_that_waits_is_refused_and_other_threads_may_wait(monkeypatch):
    """The pretend CUDA warns about a wait in its mode "warn", as torch does, whichever thread waits."""
    modes = ["default"]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def wait() -> None:
        assert modes[-1] != "error", "an error would end the request of another thread"
        if modes[-1] == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)

    def elsewhere() -> None:
        other = threading.Thread(target=wait)
        other.start()
        other.join()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _warm(elsewhere)
        with pytest.raises(NotRecorded, match=r"waits for the device, at .*test_fixed\.py:\d+"):
            _warm(wait)
    assert modes[-1] == "default"


def test_one_tree_goes_to_the_device_in_one_copy_and_comes_back_whole(monkeypatch):
    parts = toy_parts(regions=Regions(recorder))
    cache, sends = prefilled(parts.target, 30, Wants()), []
    monkeypatch.setattr(
        "longgraft.target_model.static_pass.sent", lambda tensor, device: sends.append(tensor.shape) or tensor
    )
    verifier = Verifier(parts.target, cache, Greedy(), Clock(), parts.regions)
    tree = random_tree(11, 4)
    assert verifier.verify(tree, Wants()).tree is tree and len(sends) == 1
    padded = PaddedTree.of(tree, 16, torch.device("cpu")).shallower(2)
    seen = verifier.verify(padded, Wants())
    short = tree.shallower(2)
    assert seen.tree.tokens.tolist() == short.tokens.tolist() and seen.tree.parents.tolist() == short.parents.tolist()
    assert len(sends) == 2

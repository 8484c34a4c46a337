"""Tests of decoding on a GPU.  `benchmarks/gpu/first.sh` runs them there; elsewhere they are rehearsed."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor
from toys.models import FAMILIES, toy_model, toy_network
from toys.recorder import recorder
from toys.sessions import TOY_COSTS, toy_prompt
from toys.trees import random_tree

import longgraft
from longgraft.acceptance.rules import Greedy
from longgraft.acceptance.sampling import Sampling
from longgraft.attention.backends import BACKENDS, HALF, available
from longgraft.attention.layout import Layout
from longgraft.budget.cost_model import LiveCosts
from longgraft.engine.engine import Engine
from longgraft.engine.lane import Lane
from longgraft.engine.session import Session
from longgraft.eval.checks.losslessness import check
from longgraft.kernels.build import NotBuilt
from longgraft.methods.find import build
from longgraft.methods.needs import HEAD
from longgraft.methods.parts import Parts
from longgraft.protocol.observation import Wants
from longgraft.runtime.cuda_graphs import EAGER, Regions, cuda_graphs
from longgraft.runtime.kv_pool import KVPool
from longgraft.target_model.checked_kernels import kernels_for
from longgraft.target_model.fused_model import fused
from longgraft.target_model.fused_modules import FusedModules
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.target_model.recorded_passes import RecordedPasses
from longgraft.target_model.static_pass import Slot, StaticPass
from longgraft.trees.tree import ProposalTree

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

# Largest errors of weighted means of standard normal values: a few steps of the number format.
WITHIN = {torch.float32: 5e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
TIE = 1e-3  # of float32 logits, which round differently for other numbers of rows on a GPU
SIZE = 128
KINDS = {"one row": (1, None), "chain": (17, None), "tree": (60, None), "appended": (80, range(60, 80))}


def geometry(kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Returns depths [n], mask [n, m] (bool) and column_depths [m]; the rows are the last n of m columns."""
    columns, rows = KINDS[kind]
    if kind == "chain":
        depths, mask = torch.arange(columns), torch.ones(columns, columns).tril().bool()
    else:
        tree = random_tree(columns, 3)
        depths, mask = tree.depths, tree.mask
    return (depths, mask, depths) if rows is None else (depths[rows], mask[rows], depths)


def reference(q: Tensor, k: Tensor, v: Tensor, prefix: int, kind: str, window: int | None) -> Tensor:
    """Computes attention in float64 on the host: q [H, n, D], k and v [Hkv, C, D] -> [H, n, D]."""
    depths, mask, column_depths = geometry(kind)
    positions = torch.cat([torch.arange(prefix), prefix + column_depths])
    back = (prefix + depths)[:, None] - positions
    seen = torch.cat([torch.ones(len(depths), prefix, dtype=torch.bool), mask], 1) & (back < (window or 10**9))
    group = q.shape[0] // k.shape[0]
    k, v = (each.double().cpu().repeat_interleave(group, 0) for each in (k, v))
    scores = (q.double().cpu() @ k.mT * SIZE**-0.5).masked_fill(~seen, float("-inf"))
    return scores.softmax(-1) @ v


def backend_or_skip(name: str, dtype: torch.dtype):
    if reason := available()[name]:
        pytest.skip(f"{name}: {reason}")
    if name == "flash" and dtype not in HALF:
        pytest.skip("flash takes half precision only")
    return BACKENDS[name]


def far_off(
    backend,
    kind: str,
    dtype: torch.dtype,
    device: torch.device,
    prefix: int,
    window: int | None,
    heads: tuple[int, int],
    flip: bool = False,
) -> float:
    """Returns the largest difference from the reference.  flip: changes one bit of the mask."""
    torch.manual_seed(prefix)
    depths, mask, column_depths = geometry(kind)
    used = prefix + len(column_depths)
    q = torch.randn(1, heads[0], len(depths), SIZE, device=device, dtype=dtype)
    k, v = torch.randn(2, 1, heads[1], used + 9, SIZE, device=device, dtype=dtype).unbind(0)
    k[:, :, used:], v[:, :, used:] = float("nan"), float("nan")  # never written rows
    expected = reference(q[0], k[0, :, :used], v[0, :, :used], prefix, kind, window)
    if flip:
        mask = mask.clone()
        mask[-1, 0] = ~mask[-1, 0]
    given = None if kind in ("chain", "one row") and not flip else mask
    layout = Layout(prefix, depths, given, device, column_depths)
    return float((backend(q, k, v, layout, SIZE**-0.5, window)[0].double().cpu() - expected).abs().max())


# float16 runs the same code as bfloat16, so that one kind of tree is enough.
CASES = [(dtype, kind) for dtype in WITHIN for kind in KINDS if dtype != torch.float16 or kind == "tree"]


@pytest.mark.parametrize(("dtype", "kind"), CASES, ids=lambda each: str(each).removeprefix("torch."))
@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_equals_float64(name, dtype, kind, device):
    backend = backend_or_skip(name, dtype)
    for prefix in (0, 300, 4100):
        for window in (None, 40):
            for heads in ((4, 4), (8, 2)):
                off = far_off(backend, kind, dtype, device, prefix, window, heads)
                assert off < WITHIN[dtype], f"prefix {prefix}, window {window}, heads {heads}: {off:.2g} off"


@pytest.mark.parametrize("name", BACKENDS)
def test_one_wrong_bit_of_the_mask_is_seen(name, device):
    backend = backend_or_skip(name, torch.bfloat16)
    assert far_off(backend, "tree", torch.bfloat16, device, 20, None, (8, 2), flip=True) > WITHIN[torch.bfloat16]


@pytest.mark.parametrize("name", BACKENDS)
def test_a_recorded_launch_equals_an_eager_one(name, device):
    from benchmarks.machine import recorded

    if device.type != "cuda":
        pytest.skip("only CUDA records launches")
    backend, tree = backend_or_skip(name, torch.bfloat16), random_tree(60, 3)
    q = torch.randn(1, 8, 60, SIZE, device=device, dtype=torch.bfloat16)
    k, v = torch.randn(2, 1, 2, 1000, SIZE, device=device, dtype=torch.bfloat16).unbind(0)
    layout, out = Layout(900, tree.depths, tree.mask, device), torch.empty_like(q)
    replay = recorded(lambda: out.copy_(backend(q, k, v, layout, SIZE**-0.5, None)))
    q.normal_()
    replay()
    torch.testing.assert_close(out, backend(q, k, v, layout, SIZE**-0.5, None), atol=1e-3, rtol=0)


def regions_on(device: torch.device, launches: str) -> Regions:
    """Returns regions; recorded launches are CUDA graphs, or the tests' stand-in for them on a CPU."""
    return EAGER if launches == "single" else Regions(cuda_graphs(device) if device.type == "cuda" else recorder)


def assert_recorded(regions: Regions, family: str = "") -> None:
    """Fails if nothing was recorded: after a refused capture everything runs eagerly, with the same results."""
    if "moe" not in family:  # experts may read on the host which rows are theirs
        assert regions.fixed and regions.recorded, "decoding was not recorded; a warning above has the reason"


def target_on(device: torch.device, family: str, dtype: torch.dtype = torch.float32) -> Target:
    """Returns a toy target, with fused modules if that is possible."""
    model = copy.deepcopy(toy_model(family)).to(device)
    with torch.device(device):  # a cast of a whole model would cast its rotary frequencies too
        cast = type(model)._from_config(model.config, dtype=dtype).eval()
    cast.load_state_dict(model.state_dict())
    small = fused(cast)
    return Target(cast, family, fused=small if isinstance(small, FusedModules) else None)


def toy_on(device: torch.device, family: str, method: str, launches: str) -> Session:
    regions = regions_on(device, launches)
    parts = Parts(
        target_on(device, family),
        {HEAD.name: copy.deepcopy(toy_network()).to(device)},
        regions=regions,
        costs=LiveCosts(TOY_COSTS, frozen=True),
    )
    return Session(Engine(Lane(parts.target, build(method, parts), parts.clock, regions), 60, 17), None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_recorded_pass_equals_an_eager_one_at_other_lengths_and_trees(family, dtype, device):
    target, wants = target_on(device, family, dtype), Wants(topk=4)
    cache = target.cache(300)
    target.run([Segment(ProposalTree.chain(torch.tensor(toy_prompt(200))), cache, "none")], Wants())
    regions = regions_on(device, "recorded")
    fixed = StaticPass(target, cache, 32, wants, regions)
    for seed, (length, n) in enumerate([(40, 32), (200, 20), (7, 32)]):
        cache.length = length
        tree = random_tree(n, seed)
        (eager,) = target.run([Segment(tree, cache)], wants)
        logits = eager.logits.float().clone()
        with torch.inference_mode():
            fixed.load(Slot(tree, cache, Greedy()))
            report, positions = fixed.forward()
        assert positions[:n].tolist() == (length + 1 + tree.depths).tolist()
        off = (report.logits[:n].float() - logits).abs().amax(-1) / logits.abs().max()  # [n]
        # In bfloat16, rounding may send a row to another expert, so that only the median counts.
        worst, within = (off.max(), 1e-4) if dtype == torch.float32 else (off.median(), 4e-2)
        assert worst < within, f"prefix {length}: {worst:.2g} off"
    assert_recorded(regions, family)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("family", FAMILIES)
def test_requests_that_share_a_recorded_pass_get_what_each_gets_alone(family, dtype, device):
    target = target_on(device, family, dtype)
    regions = regions_on(device, "recorded")
    pool = KVPool(target.cache(0), lambda: 2048)
    caches = [pool.cache() for _ in range(3)]
    for length, cache in zip((40, 200, 7), caches, strict=True):
        cache.reserve(300)
        target.run([Segment(ProposalTree.chain(torch.tensor(toy_prompt(length))), cache, "none")], Wants())
        cache.length = length
    passes = RecordedPasses(target, pool.whole, regions)
    for seed in range(2):  # recorded, then replayed
        trees = [random_tree(n, seed + n) for n in (9, 32, 1)]
        alone = [
            target.run([Segment(*pair)], Wants())[0].logits.float().clone() for pair in zip(trees, caches, strict=True)
        ]
        slots = [Slot(tree, cache, Greedy()) for tree, cache in zip(trees, caches, strict=True)]
        for launched, tree, logits in zip(passes.forward(slots, Wants()), trees, alone, strict=True):
            found, _, _, report = launched.result()
            off = (report.logits[: len(tree)].float() - logits).abs().amax(-1) / logits.abs().max()  # [n]
            worst, within = (off.max(), 1e-4) if dtype == torch.float32 else (off.median(), 4e-2)
            assert found is tree and worst < within, f"{len(tree)} nodes: {worst:.2g} off"
    assert_recorded(regions, family)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda dtype: str(dtype)[6:])
def test_the_fused_kernels_equal_torch(dtype, device):
    if device.type != "cuda":
        pytest.skip("the fused kernels are compiled for CUDA only")
    kernels = kernels_for(torch.empty(0, device=device).device, dtype)
    assert not isinstance(kernels, NotBuilt), str(kernels)


# Blocking calls of a recorded step: plain decoding reads the drawn token, drafters also read their gates.
MOST_WAITS = {"ar": 1, "eagle3": 5, "graft": 5}


@contextmanager
def watched(device: torch.device, mode: str) -> Iterator[None]:
    """Makes blocking calls of CUDA warnings or errors; a CPU has none."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("method", MOST_WAITS)
def test_a_step_waits_for_the_device_no_more_often_than_its_method_needs(method, device):
    session = longgraft.load(method=method, device=str(device), dtype="bfloat16", budget="paper", tell=False)
    text = Path(__file__).read_text()
    warm, counted = (40, 20) if device.type == "cuda" else (1, 1)
    waits = []
    with session.open(text[:4000], 2000, eos=()) as request:
        while request.step().read:
            pass
        for _ in range(warm):  # until everything is recorded
            request.step()
        for _ in range(counted):
            with warnings.catch_warnings(record=True) as said, watched(device, "warn"):
                warnings.simplefilter("always")
                request.step()
            waits.append(sum("called a synchronizing CUDA operation" in str(each.message) for each in said))
    if device.type == "cuda":
        assert_recorded(session.engine.regions)
    assert max(waits) <= MOST_WAITS[method], waits


def test_a_recorded_pass_never_waits(device):
    target = target_on(device, "llama", torch.bfloat16)
    cache = target.cache(300)
    target.run([Segment(ProposalTree.chain(torch.tensor(toy_prompt(200))), cache, "none")], Wants())
    regions, rule = regions_on(device, "recorded"), Greedy()
    fixed = StaticPass(target, cache, 32, Wants(), regions)
    for mode in ("default", "error"):  # recorded, then replayed
        with watched(device, mode), torch.inference_mode():
            fixed.load(Slot(random_tree(32, 1), cache, rule))
            fixed.settle(*fixed.forward())
    assert_recorded(regions)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", ["eagle3", "graft", "graft-x"])
def test_the_embedded_pair_equals_plain_decoding(method, dtype, device):
    session = longgraft.load(method=method, device=str(device), dtype=dtype, budget="paper", tell=False)
    text = Path(__file__).read_text()
    report = check(session, [session.encode(text[:n]) for n in (900, 4000)], Sampling(), 64)
    if device.type == "cuda":
        assert_recorded(session.engine.regions)
    if dtype == "bfloat16":
        assert report["level"] != "none", report["rows"]
    for row in report["rows"] if dtype == "float32" else ():
        assert row["first_divergence"] is None or row["margin"] < TIE, row


@pytest.mark.parametrize(
    ("method", "launches"),
    [("graft", "single"), ("graft", "recorded"), ("eagle3", "recorded"), ("graft-x", "recorded")],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_toys_equal_plain_decoding(family, method, launches, device):
    session = toy_on(device, family, method, launches)
    for sampling in (Sampling(), Sampling(temperature=1.0, seed=5)):
        for row in check(session, [toy_prompt(61), toy_prompt(150, seed=1)], sampling, 32)["rows"]:
            assert row["first_divergence"] is None or (row["margin"] is not None and row["margin"] < TIE), row
    if launches == "recorded":
        assert_recorded(session.engine.regions, family)

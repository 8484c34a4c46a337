"""The tree kernel equals the dense reference: in Triton's interpreter, or on the device if there is one.

The dtype is float32, because the interpreter multiplies bfloat16 wrongly.  `compiled.py` compiles for chips.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from toys import oracle
from toys.covering import covering, named
from toys.sessions import answered, toy_prompt, toy_session
from toys.slots import SLOTS, SlotPass
from toys.trees import random_tree

from longgraft.acceptance.sampling import Sampling
from longgraft.attention.backends import BACKENDS, available, dense, split, whole
from longgraft.attention.launch_plan import Chip, Plan
from longgraft.attention.layout import Layout
from longgraft.attention.triton import tree_attention

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CAPACITY = 448
CHIPS = {"large tiles": Chip(4, True), "small tiles": Chip(3, False)}
CLOSE = dict(atol=2e-6, rtol=1e-5)


def geometry(kind: str, rows: int, prefix: int) -> Layout:
    """Returns random rows: a tree, a chain, or the last rows of a tree over all of it."""
    tree = random_tree(100 if kind == "appended" else rows, rows)
    if kind == "chain":
        return Layout(prefix, torch.arange(rows), None, DEVICE)
    return Layout(prefix, tree.depths[-rows:], tree.mask[-rows:], DEVICE, tree.depths)


def inputs(layout: Layout, heads: tuple[int, int], size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns q as transformers passes it, and k and v as whole buffers with NaN behind the written rows."""
    torch.manual_seed(layout.prefix + layout.rows)
    q = torch.randn(1, layout.rows, heads[0], size, device=DEVICE).transpose(1, 2)
    k, v = torch.randn(2, 1, heads[1], CAPACITY, size, device=DEVICE).unbind(0)
    k[:, :, layout.end :] = v[:, :, layout.end :] = float("nan")
    return q, k, v


def planned(q: Tensor, k: Tensor, chip: str) -> Plan:
    """Returns a plan with tiles for half precision if they are interpreted; a device has no room there for float32."""
    dtype = torch.bfloat16 if DEVICE.type == "cpu" else q.dtype
    return Plan.of(q.shape[1] // k.shape[1] * q.shape[2], k.shape, dtype, CHIPS[chip])


SHAPES = ["tree 1", "tree 7", "tree 33", "tree 64", "chain 8", "chain 21", "appended 10"]
HEADS = {"one head": ((1, 1), 16, "large tiles"), "a group": ((2, 1), 24, "small tiles")}


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("shape", "prefix", "window", "kind"), covering(SHAPES, (0, 1, 63, 64, 163), (None, 5, 100), HEADS), ids=named
)
def test_the_kernel_equals_the_reference(shape, prefix, window, kind):
    (heads, size, chip), (form, rows) = HEADS[kind], shape.split()
    layout = geometry(form, int(rows), prefix)
    q, k, v = inputs(layout, heads, size)
    out = tree_attention(q, k, v, layout.on_device, 0.25, window, plan=planned(q, k, chip))
    torch.testing.assert_close(out, dense(q, k, v, layout, 0.25, window), **CLOSE)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("size", [64, 80, 96, 128, 256])
def test_the_kernel_serves_the_head_sizes_of_models(size):
    layout = geometry("tree", 9, 70)
    q, k, v = inputs(layout, (4, 2), size)
    out = tree_attention(q, k, v, layout.on_device, size**-0.5, 60, plan=planned(q, k, "large tiles"))
    torch.testing.assert_close(out, dense(q, k, v, layout, size**-0.5, 60), **CLOSE)


def test_rows_of_a_cache_may_lie_apart():
    """Values between the rows are not read, also where heads are padded."""
    layout = geometry("tree", 5, 70)
    q, k, v = inputs(layout, (4, 2), 24)
    apart = torch.full((2, 1, 2, CAPACITY, 32), float("nan"), device=DEVICE)[..., :24]
    apart[0], apart[1] = k, v
    out = tree_attention(q, *apart.unbind(0), layout.on_device, 0.25, None)
    torch.testing.assert_close(out, dense(q, k, v, layout, 0.25, None), **CLOSE)


def test_rows_may_stand_far_behind_the_prefix():
    """Their depths exceed the number of columns, so that no column before them is in their windows."""
    layout = geometry("chain", 2, 3)
    q, k, v = inputs(layout, (4, 2), 16)
    far = torch.tensor([70, 71], dtype=torch.int32, device=DEVICE)
    device = replace(layout.on_device, depths=far, column_depths=far)
    out = tree_attention(q, k, v, device, 0.25, 5)
    torch.testing.assert_close(out, dense(q, k, v, device, 0.25, 5), **CLOSE)
    assert (out.abs().amax(-1) > 0).all()


@pytest.mark.one_in(12)
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("softcap, sinks", [(2.0, False), (None, True), (50.0, True)])
@pytest.mark.parametrize("rows", [1, 20])
def test_caps_and_sinks_equal_the_reference(softcap, sinks, rows, window):
    layout = geometry("tree", rows, 130)
    q, k, v = inputs(layout, (4, 2), 16)
    logits = torch.linspace(2, 8, 4, device=DEVICE) if sinks else None
    out = tree_attention(q, k, v, layout.on_device, 1.0, window, softcap, logits, planned(q, k, "small tiles"))
    expected = dense(q, k, v, layout, 1.0, window, softcap, logits)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    assert (expected - dense(q, k, v, layout, 1.0, window)).abs().max() > 0.01


@pytest.mark.slow
def test_one_geometry_serves_every_prefix():
    """The same tensors are written anew, as a replay does."""
    device = geometry("tree", 16, 0).on_device
    for prefix in (200, 3, 65):
        layout = geometry("tree", 16, prefix)
        q, k, v = inputs(layout, (4, 2), 16)
        device.length.fill_(prefix)
        out = tree_attention(q, k, v, device, 0.25, None, plan=planned(q, k, "large tiles"))
        torch.testing.assert_close(out, dense(q, k, v, layout, 0.25, None), **CLOSE)


@pytest.fixture
def unwritten():
    """Fills new memory with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_programs_without_columns_are_not_read(unwritten):
    """All but one of 64 programs have no columns."""
    layout = geometry("tree", 5, 20)
    q, k, v = inputs(layout, (2, 2), 16)
    out = tree_attention(q, k, v, layout.on_device, 0.25, None, plan=Plan(16, 32, 4, 3, 64))
    torch.testing.assert_close(out, dense(q, k, v, layout, 0.25, None), **CLOSE)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("window, softcap, sinks", [(None, None, None), (20, 2.0, [2.0, 8.0]), (3, None, None)])
@pytest.mark.parametrize("slots", SLOTS)
def test_requests_in_slots_attend_as_alone(slots, window, softcap, sinks, unwritten):
    """Unowned rows of the buffer and queries in no slot are NaN; some splits have no columns."""
    shared = SlotPass.random(SLOTS[slots], (2, 1), DEVICE)
    more = softcap, None if sinks is None else torch.tensor(sinks, device=DEVICE)
    plan = Plan(16, 32, 4, 3, 4)
    out = tree_attention(shared.q, shared.k, shared.v, shared.layout, 0.25, window, *more, plan)
    torch.testing.assert_close(out, shared.alone(window, *more), atol=1e-5, rtol=1e-5)


def test_plans_count_a_tile_for_each_slot():
    """Sixteen slots keep eight key heads of a device busy without splits, however few rows they have."""
    kv, dtype, chip = torch.Size((1, 8, 32768, 128)), torch.bfloat16, Chip(128, True)
    assert [Plan.of(4 * rows, kv, dtype, chip, 16).splits for rows in (16, 64, 256)] == [2, 2, 2]
    assert Plan.of(4 * 16, kv, dtype, chip).splits == 32
    assert [Plan.of(4 * rows, kv, dtype, chip, 16).rows for rows in (64, 256)] == [16, 64]


def test_a_row_that_sees_nothing_is_zeros():
    """Such rows pad a tree; their NaN would reach every row through the caches."""
    layout = geometry("tree", 6, 0)
    q, k, v = inputs(layout, (4, 2), 16)
    live = torch.tensor([1, 1, 0, 1, 0, 1], dtype=torch.int32, device=DEVICE)
    device = replace(layout.on_device, words=layout.on_device.words * live[:, None])
    out = tree_attention(q, k, v, device, 0.25, None)
    for backend in (dense, whole):
        torch.testing.assert_close(backend(q, k, v, device, 0.25, None), out, **CLOSE)
    assert (out.abs().amax(dim=(0, 1, 3)) > 0).int().equal(live)


def test_the_backend_takes_trees_and_leaves_chunks_to_split():
    tree, chunk = geometry("tree", 12, 40), geometry("chain", 65, 40)
    for layout, other in ((tree, dense), (chunk, split)):
        q, k, v = inputs(layout, (4, 2), 16)
        out = BACKENDS["triton"](q, k, v, layout, 0.25, None)
        torch.testing.assert_close(out, other(q, k, v, layout, 0.25, None), **CLOSE)
        assert out.shape == q.shape
    assert torch.equal(out, split(q, k, v, chunk, 0.25, None))


def test_available_names_a_missing_device_or_package(monkeypatch):
    if not torch.cuda.is_available():
        assert available()["triton"] == "no CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert available()["triton"] == "triton is not installed (pip install 'longgraft[triton]')"
    assert "longgraft[flash]" in available()["flash"]


@pytest.fixture(scope="module")
def launches(tmp_path_factory) -> list[dict]:
    """Figures of every launch from `compiled.py`, which runs in a process that does not interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compiled.py"))], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_no_launch_spills(launches):
    assert {launch["chip"] for launch in launches} == {80, 90} and len(launches) >= 36
    assert [launch for launch in launches if launch["spilled"]] == []


@pytest.mark.slow
def test_launches_fit_their_chips(launches):
    """The bounds are the shared memory of a block on an A100 or a card of sm_86 and sm_89, and on an H100."""
    for launch in launches:
        assert launch["shared"] <= {80: 99, 90: 227}[launch["chip"]] * 1024, launch


@pytest.mark.slow
def test_hopper_multiplies_trees_by_warp_groups(launches):
    for launch in launches:
        if launch["kernel"] == "_parts" and launch["chip"] == 90:
            assert (launch["wgmma"] > 0) != launch["case"].startswith("one "), launch


@pytest.mark.slow
@pytest.mark.skipif(DEVICE.type == "cuda", reason="toys are on the CPU, where a kernel runs only interpreted")
def test_a_session_answers_by_the_kernel(monkeypatch):
    """The target has windowed layers and the drafter appends rows to its tree; ids are those without the kernel."""
    rows = set()

    def kernel(q, k, v, layout, scale, window):
        rows.add((q.shape[2], window))
        return BACKENDS["triton"](q, k, v, layout, scale, window)

    monkeypatch.setitem(BACKENDS, "split", kernel)
    session = toy_session("eagle3+levels=3", "mistral-window", budget=6)
    greedy = Sampling(temperature=0)
    assert answered(session, toy_prompt(26), 2, greedy).token_ids == oracle.plain("mistral-window", 26, 2, greedy)
    assert {window for _, window in rows} == {None, 24} and len(rows) > 4

"""Counts what a decoding step does on a GPU, without one: `pretend/counts.py` runs steps on a pretend device.

The pretend device changes torch for its whole process, so it runs in a separate one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import longgraft

pytestmark = pytest.mark.slow  # steps on the pretend device are counted once for all tests
COUNTS = Path(__file__).parents[1] / "pretend" / "counts.py"
TOYS = "toy-float32", "toy-bfloat16", "toy-recorded", "toy-fused", "toy-served"
REAL = "llama", "llama-fused"


class Spent(NamedTuple):
    """Counts of one step, or the most that it may spend.

    reads:    reads of the device by the host, which waits for each
    copies:   copies to the device that the host waits for; sent: those that it does not wait for
    launches: operations launched one by one; replays: replays of recorded regions; held: operations in those
    """

    reads: int
    copies: int
    sent: int
    launches: int
    replays: int = 0
    held: int = 0


# Rounded up to tens, because versions of torch differ in a few operations.
MOST = {
    ("toy-float32", "ar"): Spent(1, 0, 2, 170),
    ("toy-bfloat16", "ar"): Spent(1, 0, 2, 190),
    ("toy-float32", "eagle3"): Spent(2, 0, 6, 1030),
    ("toy-bfloat16", "eagle3"): Spent(2, 0, 6, 1210),
    ("toy-float32", "graft"): Spent(6, 0, 8, 880),
    ("toy-bfloat16", "graft"): Spent(6, 0, 8, 1000),
    ("toy-recorded", "ar"): Spent(1, 0, 1, 2, 4, 280),
    ("toy-recorded", "eagle3"): Spent(1, 0, 2, 20, 7, 1150),
    ("toy-recorded", "graft"): Spent(4, 0, 2, 30, 15, 1110),
    ("toy-recorded", "graft-x"): Spent(11, 0, 3, 60, 15, 1120),
    ("toy-fused", "ar"): Spent(1, 0, 1, 2, 4, 60),
    ("toy-fused", "eagle3"): Spent(1, 0, 2, 20, 7, 420),
    ("toy-fused", "graft"): Spent(4, 0, 2, 30, 15, 540),
    **{("toy-served", f"ar x {lanes}"): Spent(1, 0, 1, 2, 4, 60) for lanes in (4, 8, 16)},
    ("llama", "ar"): Spent(1, 0, 2, 1310),
    ("llama-fused", "ar"): Spent(1, 0, 1, 2, 4, 320),
    ("llama", "eagle3"): Spent(2, 0, 6, 2660),
    ("llama-fused", "eagle3"): Spent(1, 0, 2, 20, 7, 670),
    ("llama", "graft"): Spent(6, 0, 8, 2460),
    ("llama-fused", "graft"): Spent(4, 0, 2, 30, 15, 790),
}


@pytest.fixture(scope="module")
def counts() -> dict[str, Any]:
    ours = {"PYTHONPATH": str(Path(longgraft.__file__).parents[1])}  # the package under test, which may be a copy
    done = subprocess.run(
        [sys.executable, str(COUNTS), *TOYS, *REAL, "toy-sdpa", "toy-window"],
        capture_output=True,
        text=True,
        env=os.environ | ours,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("case, method", MOST)
def test_a_step_stays_within_its_limits_of_waits_and_launches(counts, case, method):
    """Checks toys and models of eight billion parameters."""
    step, most = counts[case][method], MOST[case, method]
    kinds = step["kinds"]
    spent = Spent(
        *(kinds.get(kind, 0) for kind in ("read", "copy", "sent", "launch", "replay")),
        held=sum(step["recorded"].values()),
    )
    within = all(mine <= bound for mine, bound in zip(spent, most, strict=True))
    assert within and "wait" not in kinds, f"{spent}: {step['waits']}"


@pytest.mark.parametrize("method, tokens", [("ar", 1), ("eagle3", 4), ("graft", 4)])
def test_grouped_heads_decode_in_float32_where_kernels_return_transposed_rows(counts, method, tokens):
    assert counts["toy-float32"][method]["tokens"] == tokens


def test_torchs_own_attention_with_a_mask_decodes_in_float32_too(counts):
    assert counts["toy-sdpa"]["eagle3"]["tokens"] == 4


def test_a_windowed_chunk_never_holds_the_scores_of_all_heads(counts):
    heads, rows, columns, float32 = 4, 512, 512, 4
    assert counts["toy-window"]["ar"]["largest"] < heads * rows * columns * float32


@pytest.mark.parametrize(
    "case, kernel",
    [
        ("toy-float32", "_scaled_dot_product_efficient_attention"),
        ("toy-bfloat16", "_scaled_dot_product_flash_attention"),
    ],
)
def test_plain_decoding_uses_one_named_attention_kernel_per_layer(counts, case, kernel):
    taken = {name: n for name, n in counts[case]["ar"]["operations"].items() if "attention" in name}
    assert taken == {kernel: 4}  # one per layer


def test_the_top_k_of_a_fused_pass_is_one_launch(counts):
    retrieval, graft_x = (counts["toy-fused"][method]["recorded"] for method in ("retrieval", "graft-x"))
    assert retrieval["ranked"] == 1 and "topk" not in retrieval
    assert graft_x["ranked"] == 1 and "logsumexp" not in graft_x  # with probabilities


@pytest.mark.parametrize("case", TOYS)
def test_no_step_attends_through_cudnn(counts, case):
    for method, step in counts[case].items():
        assert not [name for name in step["operations"] if "cudnn" in name], method


def test_inputs_of_a_plain_step_are_sent_in_one_copy_without_waiting(counts):
    kinds = counts["toy-recorded"]["ar"]["kinds"]
    assert kinds["sent"] == 1 and kinds["read"] == 1 and "copy" not in kinds


@pytest.mark.parametrize("case", TOYS)
def test_the_allocator_is_asked_once_per_request(counts, case):
    for name, step in counts[case].items():
        requests = int(name.rpartition(" x ")[2]) if " x " in name else 1
        assert step["statistics"] == {"reset_peak_memory_stats": requests, "max_memory_allocated": requests}


@pytest.mark.parametrize(
    "written, kinds",
    {
        "to": ["copy"],
        "to, pinned": ["copy"],
        "to, not blocking": ["copy"],
        "to, pinned and not blocking": ["sent"],
        "to, pinned and not blocking, of another dtype": ["copy"],
        "tensor": ["copy"],
        "index by a list": ["copy", "launch"],
        "index on the device": ["launch"],
        "assign a number": ["copy", "launch"],
        "assign on the device": ["launch"],
        "assign a number to a slice": ["launch"],
        "index_fill_": ["launch"],
        "tolist": ["read"],
        "int": ["read"],
        "cpu": ["read"],
        "arange": ["launch"],
        "views": [],
        "empty": [],
        "reshape of a transposed": ["launch"],
        "linear": ["launch"],
        "synchronize": ["wait"],
    }.items(),
)
def test_the_pretend_device_counts_what_a_gpu_would_do(counts, written, kinds):
    assert counts["probes"][written] == kinds

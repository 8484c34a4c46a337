"""Top-k by Triton equals torch's: in Triton's interpreter, or on the device if there is one."""

from __future__ import annotations

import pytest
import torch

from longgraft.kernels.topk_triton import TILE, children, topk
from longgraft.protocol.observation import Wants
from longgraft.target_model.module_forms import DTYPES
from longgraft.target_model.topk import MOST_CHILDREN, MOST_FUSED, best

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NAN = float("nan")
INF = float("inf")
# numpy warns of values that a device computes silently
pytestmark = pytest.mark.filterwarnings(
    "ignore:overflow encountered", "ignore:invalid value encountered", "ignore:All-NaN slice"
)
EACH = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])


def random_logits(rows: int, vocabulary: int, dtype: torch.dtype, scale: float = 4.0) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(vocabulary)
    return (scale * torch.randn(rows, vocabulary, generator=numbers)).to(DEVICE, dtype)


def check(logits: torch.Tensor, k: int, tile: int = TILE) -> None:
    """Compares with a stable sort, in which the lower id of two equal logits comes first, and with torch's softmax."""
    ids, probabilities = topk(logits, k, True, tile)
    assert ids.dtype == torch.int32 and probabilities.dtype == torch.float32
    assert torch.equal(topk(logits, k, False, tile)[0], ids)
    assert torch.equal(ids.long(), logits.float().sort(dim=-1, descending=True, stable=True).indices[:, :k])
    expected = best(logits, Wants(topk=k, probabilities=True)).probabilities
    torch.testing.assert_close(probabilities, expected, rtol=1e-5, atol=1e-30, equal_nan=True)


@EACH
@pytest.mark.parametrize("k, tile", [(1, 64), (4, TILE), (MOST_CHILDREN, 64)])
def test_children_of_a_head_are_the_best_tokens_with_their_log_probabilities(k, tile, dtype):
    """Half precision has many ties, and the last row has nothing else: the lowest ids come first."""
    logits = random_logits(4, 3001, dtype)
    logits[3] = 0.5
    offsets = (torch.arange(3001) * 7 % 1000).to(DEVICE)
    ids, gains = children(logits, k, offsets, tile)
    known = logits.float().sort(dim=-1, descending=True, stable=True).indices[:, :k]
    assert ids.dtype == torch.int64 and torch.equal(ids, known + offsets[known])
    torch.testing.assert_close(gains, logits.float().log_softmax(-1).gather(1, known), rtol=1e-6, atol=1e-6)


@EACH
@pytest.mark.parametrize("vocabulary", [5, 3000, TILE])
def test_topk_is_that_of_a_stable_sort(vocabulary, dtype):
    """Half precision has many ties among 3,000 logits."""
    for k in {1, 2, min(MOST_FUSED, vocabulary)}:
        check(random_logits(2, vocabulary, dtype), k)


@pytest.mark.parametrize("vocabulary, dtype", [(128_256, torch.bfloat16), (151_936, torch.float16)])
def test_vocabularies_of_large_models_are_no_multiples_of_the_tile(vocabulary, dtype):
    check(random_logits(1, vocabulary, dtype), MOST_FUSED)


@EACH
@pytest.mark.parametrize("k", [2, 7, MOST_FUSED])
def test_columns_of_many_tokens_are_searched(k, dtype):
    """All of a row's best are in one place of the tile, in rising, falling and shuffled order."""
    logits = random_logits(3, 301, dtype)
    for row, order in zip(logits, (torch.arange(10), -torch.arange(10), torch.arange(10) * 3 % 10), strict=True):
        row[5::32] = 40 + order.to(row)
    check(logits, k, tile=32)


@EACH
def test_lowest_ids_of_equal_logits_come_first(dtype):
    ties = torch.randint(-3, 3, (3, 999), generator=torch.Generator().manual_seed(0))
    zeros = torch.zeros(2, 999)
    zeros[1, ::2] = -0.0  # equals 0
    check(torch.cat([ties, zeros]).to(DEVICE, dtype), MOST_FUSED, tile=64)


@EACH
def test_rows_with_infinite_logits_and_nan_are_torchs(dtype):
    """NaN is larger than all numbers, and makes all probabilities NaN; so does a row of -inf alone."""
    logits = random_logits(8, 300, dtype)
    logits[0, 3:] = -INF  # fewer than K finite
    logits[1] = -INF
    logits[2, ::2] = -INF
    logits[3, 70] = INF
    logits[4, [70, 71, 299]] = INF
    logits[5, 130] = NAN
    logits[6, [1, 65, 290]] = NAN
    logits[6, 2] = INF
    logits[7] = NAN
    check(logits, MOST_FUSED, tile=64)


def test_rows_of_a_wider_matrix_and_no_rows():
    wide = random_logits(3, 500, torch.float32)
    check(wide[:, 7:400], 4, tile=64)
    check(wide[:0], 4, tile=64)


def test_the_sum_of_exponentials_is_exact_for_logits_of_any_size():
    logits = random_logits(4, 3000, torch.float32, scale=1e4)
    logits[1] = torch.linspace(-900, 900, 3000)
    logits[2] = -1e30
    exact = logits.double().softmax(-1).topk(MOST_FUSED).values
    probabilities = topk(logits, MOST_FUSED, True, 64)[1]
    torch.testing.assert_close(probabilities.double(), exact, rtol=1e-5, atol=1e-30)

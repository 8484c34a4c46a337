"""An EAGLE-3 beam by Triton equals torch's: in Triton's interpreter, or on the device if there is one."""

from __future__ import annotations

import pytest
import torch

from longgraft.kernels.head_triton import beam
from longgraft.trees import beams

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def nodes(b: int, k: int, m: int) -> tuple[torch.Tensor, ...]:
    """Returns random arguments of `beam` but the offset."""
    seed = torch.Generator().manual_seed(b + k + m)
    scores = torch.randn(37, generator=seed)
    best = torch.randperm(37, generator=seed)[:b]
    gains = torch.randn(b, k, generator=seed)
    visible = torch.rand(b, m, generator=seed) < 0.5
    return tuple(each.to(DEVICE) for each in (scores, best, gains, visible))


@pytest.mark.parametrize("b, k, m", [(1, 1, 1), (10, 10, 10), (10, 10, 80), (3, 3, 5), (7, 7, 14)])
def test_a_beam_is_torchs_to_the_last_bit(b, k, m):
    given = nodes(b, k, m)
    for ours, torchs in zip(beam(*given, 110), beams.beam(*given, 110), strict=True):
        assert ours.dtype == torchs.dtype and torch.equal(ours, torchs)


def test_the_first_of_equal_children_are_chosen():
    scores, best, gains, visible = nodes(10, 10, 10)
    scores.fill_(-1.0)
    gains = gains.round()
    sums, _, chosen, above, following = beam(scores, best, gains, visible, 0)
    assert torch.equal(chosen, sums.sort(descending=True, stable=True).indices[:10])
    assert torch.equal(above, chosen // 10) and torch.equal(following[:, :10], visible[above])

"""The most probable tokens of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from longgraft.protocol.observation import Wants
from longgraft.target_model.module_forms import DTYPES

if TYPE_CHECKING:
    from longgraft.target_model.fused_modules import Kernels

MOST_FUSED = 8  # largest K of the kernel, which searches the row's largest logits once for each
MOST_CHILDREN = 10  # the same for a draft head; 16 have no room in registers


class TopK(NamedTuple):
    """The most probable next tokens of n rows."""

    ids: Tensor  # [n, K] int32, best first
    probabilities: Tensor | None  # [n, K] float32; None if they are not wanted


def children(log_probs: Tensor, k: int, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the k best tokens by a draft head's log-probabilities [n, D]: (target ids [n, k], log-probabilities).

    A token's id in the target's vocabulary is its own plus its offset of [D].
    """
    gains, ids = log_probs.topk(k)
    return ids + offsets[ids], gains


def best(logits: Tensor, wants: Wants, kernels: Kernels | None = None) -> TopK:
    """Returns the wanted K best ids of logits [n, V] and their probabilities if these are wanted.

    The kernels rank equal logits by their ids, and torch in any order.
    """
    k = min(wants.topk, logits.shape[-1])
    if kernels is not None and k <= MOST_FUSED and logits.dtype in DTYPES and logits.stride(-1) == 1:
        return TopK(*kernels.topk(logits, k, wants.probabilities))
    values, ids = logits.topk(k, dim=-1)
    if not wants.probabilities:
        return TopK(ids.int(), None)
    return TopK(ids.int(), (values.float() - logits.float().logsumexp(-1, keepdim=True)).exp())

"""Norms of the heads of queries and keys, as kernels take them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class HeadNorms(NamedTuple):
    """Norms of the heads of queries and keys before their rotation.

    Attributes:
        q: Weight [D] of the queries' norm.
        k: Weight [D] of the keys' norm.
        epsilon: Epsilon of both.
        form: Form of both, one of `target_model.module_forms.NORMS`.
    """

    q: Tensor
    k: Tensor
    epsilon: float
    form: str

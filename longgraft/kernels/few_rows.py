"""Products and attention of 2 to 16 rows in float32 on a CPU, where large weights and long caches are read once.

Knows tensors, layouts and linear modules; knows no model.  What does not fit is torch's to do.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longgraft.attention.backends import split
from longgraft.attention.layout import Layout
from longgraft.kernels.build import NotBuilt, library

MOST = 16               # rows of a pass; beyond, torch's own kernels are as fast
LEAST_PRODUCT = 4       # with fewer, torch's products read the weight as fast
EIGHTS = 8              # head sizes are multiples of it


class FewRows:
    """The compiled functions.  Deterministic: threads share rows of a weight or stretches of a cache in a fixed way."""

    def __init__(self) -> None:
        """NotBuilt where this machine cannot."""
        try:
            compiled = ctypes.CDLL(str(library()))
        except OSError as error:
            raise NotBuilt(f"the built library cannot be loaded ({error})") from error
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._product, self._attention = compiled.few_rows_product, compiled.few_rows_attention
        self._product.argtypes = [pointer] * 4 + [number] * 3 + [ctypes.c_int]
        self._attention.argtypes = [pointer] * 7 + [ctypes.c_float, ctypes.c_int]
        self._product.restype = self._attention.restype = None
        self._sizes = ctypes.c_int64 * 12

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """F.linear: x [.., in], weight [out, in], bias [out] -> [.., out]."""
        size = weight.shape[1]
        rows = x.numel() // size
        if not (LEAST_PRODUCT <= rows <= MOST and x.dtype == weight.dtype == torch.float32 and x.is_contiguous()
                and weight.is_contiguous() and not torch.is_grad_enabled()):
            return F.linear(x, weight, bias)
        y = x.new_empty(*x.shape[:-1], weight.shape[0])
        self._product(x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(), y.data_ptr(),
                      rows, size, weight.shape[0], torch.get_num_threads())
        return y

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float, window: int | None) -> Tensor:
        """A backend of `longgraft.attention`.  One row is torch's: it reads a cache as fast."""
        size = q.shape[3]
        if not (1 < layout.rows <= MOST and q.dtype == k.dtype == torch.float32 and size % EIGHTS == 0
                and v.shape[3] == size and q.stride(3) == k.stride(3) == v.stride(3) == 1):
            return split(q, k, v, layout, scale, window)
        lowest, seen = layout.ranges(window)
        out = q.new_empty(1, layout.rows, q.shape[1], size)
        sizes = self._sizes(k.shape[1], q.shape[1] // k.shape[1], layout.rows, size, layout.prefix, seen.shape[1],
                            q.stride(1), q.stride(2), k.stride(1), k.stride(2), v.stride(1), v.stride(2))
        self._attention(q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), lowest.data_ptr(), seen.data_ptr(),
                        sizes, scale, torch.get_num_threads())
        return out.transpose(1, 2)


@cache
def few_rows() -> FewRows | NotBuilt:
    """One for the process, or why there is none: a build is tried once."""
    try:
        return FewRows()
    except NotBuilt as error:
        return error


class Products:
    """The linear modules of a model, which compute by `kernels` where a pass of ours asks for it, and only there.

    Only plain ones: what a quantised or wrapped module does is its own affair.
    """

    def __init__(self, modules: Iterable[nn.Module], kernels: FewRows) -> None:
        self.kernels = kernels
        self._thread = 0
        self._ours = [(module.__dict__, self._way(module)) for module in modules
                      if type(module) is nn.Linear and type(module.weight) is nn.Parameter]

    def _way(self, module: nn.Linear) -> Callable[[Tensor], Tensor]:
        parameters: Any = module._parameters

        def forward(x: Tensor) -> Tensor:
            product = self.kernels.product if threading.get_ident() == self._thread else F.linear
            return product(x, parameters["weight"], parameters["bias"])
        return forward

    @contextmanager
    def engaged(self) -> Iterator[None]:
        """Until the block ends; one at a time, and only in this thread.

        An instance's `forward` is what calling a module looks up, before its class's.  Modules that have one of their
        own keep it.
        """
        self._thread = threading.get_ident()
        placed = [own for own, _ in self._ours if "forward" not in own]
        try:
            for own, forward in self._ours:
                own.setdefault("forward", forward)
            yield
        finally:
            self._thread = 0
            for own in placed:
                del own["forward"]

"""Products, norms and attention of a pass on a CPU: large weights and long caches are read once.

Products and attention in float32 and bfloat16, norms in float32.  Knows tensors, layouts and linear modules; knows no
model.  Inputs that do not fit go to torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from longgraft.attention.backends import split
from longgraft.attention.layout import Layout
from longgraft.kernels.build import NotBuilt, library
from longgraft.kernels.module_override import ModuleOverride

DTYPES = (torch.float32, torch.bfloat16)
SAMPLES = 32            # numbers of a weight that show whether it has changed


@dataclass(frozen=True)
class _Packed:
    """A weight's packed copy.  state: its address and version when it was packed; sample: of its numbers."""

    state: tuple[int, int]
    sample: Tensor
    tiles: Tensor


def _sample(weight: Tensor) -> Tensor:
    flat = weight.detach().flatten()
    return flat[::max(1, len(flat) // SAMPLES)].clone()


class CpuKernels:
    """The compiled functions.  Deterministic: how threads divide a weight's rows or a cache's columns is fixed."""

    def __init__(self) -> None:
        """NotBuilt if this machine cannot build or load them."""
        try:
            compiled = ctypes.CDLL(str(library()))
        except OSError as error:
            raise NotBuilt(f"the built library cannot be loaded ({error})") from error
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._product, self._attention = compiled.longgraft_product, compiled.longgraft_attention
        self._norm = compiled.longgraft_norm
        self._product.argtypes = [pointer] * 4 + [number] * 3 + [ctypes.c_int] * 2
        self._attention.argtypes = [pointer] * 7 + [ctypes.c_float] + [ctypes.c_int] * 2
        self._norm.argtypes = [pointer] * 3 + [number] * 2 + [ctypes.c_float]
        self._product.restype = self._attention.restype = self._norm.restype = None
        self._sizes = ctypes.c_int64 * 13
        compiled.longgraft_outputs.restype = compiled.longgraft_lanes.restype = number
        self._outputs, self._lanes = compiled.longgraft_outputs(), compiled.longgraft_lanes()
        self._packed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()   # weight -> _Packed

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """F.linear: x [.., in], weight [out, in], bias [out] -> [.., out].

        A row's outputs are the same bits whatever the other rows and the number of threads.  Parameters only: they are
        kept packed, a second copy in memory, made at the first call and again when they have changed; a change through
        `.data` is noticed by `forget_changed` alone.
        """
        given = (x, weight) if bias is None else (x, weight, bias)
        if not (type(weight) is nn.Parameter and weight.ndim == 2 and x.shape[-1] == weight.shape[1] and x.numel()
                and weight.dtype in DTYPES and fits(*given, dtype=weight.dtype)):
            return F.linear(x, weight, bias)
        out, size = weight.shape
        y = x.new_empty(*x.shape[:-1], out)
        self._product(x.data_ptr(), self._packed_of(weight).data_ptr(), None if bias is None else bias.data_ptr(),
                      y.data_ptr(), x.numel() // size, size, out, weight.dtype == torch.bfloat16,
                      torch.get_num_threads())
        return y

    def _packed_of(self, weight: Tensor) -> Tensor:
        """[tiles, steps, outputs of a tile, inputs of a step]: a step is four bytes."""
        state = weight.data_ptr(), 0 if weight.is_inference() else weight._version
        found = self._packed.get(weight)
        if found is None or found.state != state:
            step = 4 // weight.itemsize
            padded = F.pad(weight.detach(), (0, -weight.shape[1] % step, 0, -weight.shape[0] % self._outputs))
            tiles = padded.view(-1, self._outputs, padded.shape[1] // step, step).transpose(1, 2)
            # A copy in any case: its memory is aligned to vectors.
            found = _Packed(state, _sample(weight), tiles.clone(memory_format=torch.contiguous_format))
            self._packed[weight] = found
        return found.tiles

    def forget_changed(self, weight: Tensor) -> None:
        """Drop the packed copy if some numbers of the weight are others, as after `weight.data += ...`."""
        found = self._packed.get(weight)
        if found is not None and not torch.equal(found.sample, _sample(weight)):
            del self._packed[weight]

    def norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """F.rms_norm: x [.., size], weight [size] -> [.., size], in one step instead of six; both must pass `fits`."""
        y = torch.empty_like(x)
        self._norm(x.data_ptr(), weight.data_ptr(), y.data_ptr(), x.numel() // x.shape[-1], x.shape[-1], epsilon)
        return y

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float, window: int | None) -> Tensor:
        """A backend of `longgraft.attention`.  What a row gets is the same bits in any pass that shows it the same
        columns at the same positions, whatever the number of threads."""
        size = q.shape[3]
        if not (size % self._lanes == 0 and v.shape[3] == size and q.stride(3) == 1 and q.dtype in DTYPES and q.is_cpu
                and fits(k, v, dtype=q.dtype)):
            return split(q, k, v, layout, scale, window)
        first, order = layout.by_position(window)
        out = q.new_empty(1, layout.rows, q.shape[1], size)
        slots, own = 0 if order is None else order.shape[1], layout.end - layout.prefix
        sizes = self._sizes(k.shape[1], q.shape[1] // k.shape[1], layout.rows, size, layout.prefix, slots, own,
                            q.stride(1), q.stride(2), k.stride(1), k.stride(2), v.stride(1), v.stride(2))
        self._attention(q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), first.data_ptr(),
                        None if order is None else order.data_ptr(), sizes, scale, q.dtype == torch.bfloat16,
                        torch.get_num_threads())
        return out.transpose(1, 2)


def fits(*tensors: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether the compiled functions can take these: contiguous on the CPU, of this dtype, without gradients."""
    return not torch.is_grad_enabled() and all(t.dtype == dtype and t.is_cpu and t.is_contiguous() for t in tensors)


def packed_bytes(model: nn.Module) -> int:
    """Memory of the packed copies of a model's linear weights."""
    return sum({id(m.weight): m.weight.nbytes for m in model.modules() if type(m) is nn.Linear}.values())


@cache
def cpu_kernels() -> CpuKernels | NotBuilt:
    """The kernels of this process, or why there are none; a build is tried once."""
    try:
        return CpuKernels()
    except NotBuilt as error:
        return error


class Engaged:
    """A model's linear modules and norms, computed by `kernels` inside a `with` block of this object and only there.

    Only plain modules: quantised or wrapped ones keep their own forwards.
    """

    def __init__(self, model: nn.Module, kernels: CpuKernels) -> None:
        self.kernels, self._model = kernels, model
        self._override = ModuleOverride(model, self._replacement)

    def _replacement(self, module: nn.Module) -> Callable[[Tensor], Tensor] | None:
        """A replacement for the module's forward, which reads its parameters at each call; None: no replacement."""
        own: Any = module._parameters
        ordinary = type(module).forward
        if type(module) is nn.Linear and type(module.weight) is nn.Parameter:
            return lambda x: self.kernels.product(x, own["weight"], own["bias"])
        if (epsilon := epsilon_of(module)) is not None:
            return lambda x: (self.kernels.norm(x, own["weight"], epsilon) if fits(x, own["weight"])
                              else ordinary(module, x))
        return None

    def forget_changed(self) -> None:
        """Before an answer: see `CpuKernels.forget_changed`."""
        for parameter in self._model.parameters():
            self.kernels.forget_changed(parameter)

    def __call__(self) -> AbstractContextManager[None]:
        """Active until the block ends, in this thread only; one block at a time."""
        return self._override()


@torch.no_grad()
def epsilon_of(module: nn.Module) -> float | None:
    """The epsilon of a module that computes F.rms_norm, as its outputs for inputs of several scales show; else None."""
    epsilon, own = module.__dict__.get("variance_epsilon"), module._parameters
    weight = own.get("weight")
    if epsilon is None or own.keys() != {"weight"} or type(weight) is not nn.Parameter or weight.dtype != torch.float32:
        return None
    x = torch.linspace(-1.0, 1.5, weight.numel()) * torch.tensor([[0.0], [1e-3], [1.0], [50.0]])
    normed = module.forward(x)
    return epsilon if torch.allclose(normed, F.rms_norm(x, weight.shape, weight, epsilon), rtol=1e-5, atol=0) else None

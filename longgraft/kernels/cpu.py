"""Products, norms, attention and whole decoder layers of a pass on a CPU: large weights and long caches are read once.

Activations are float32 or bfloat16; weights are of the same dtype or blocks of integers.  torch computes
products and attention of inputs that the kernels cannot take.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from longgraft.attention.backends import split
from longgraft.attention.layout import Layout
from longgraft.kernels.build import NotBuilt, loaded, with_memory
from longgraft.kernels.expert_weights import DescribedExperts, StackedWeight
from longgraft.kernels.integers import IntegerWeight, linear_weights
from longgraft.kernels.packed_weight import INT8, SPAN, BlockType, LinearWeight, PackedWeight
from longgraft.runtime.byte_rows import BYTES, numbers_of, packed_size
from longgraft.runtime.weight_state import address_and_version, sample

DTYPES = (torch.float32, torch.bfloat16)
CACHED = {torch.float32: 0, torch.bfloat16: 1, BYTES: 2}  # how the C++ file calls a cache's dtype
# Of a decoder layer, in the C++ structure's order.
LINEAR = ("q", "k", "v", "o", "gate", "up", "down")
NORMS = ("before_attention", "of_q", "of_k", "after_attention", "before_gate", "after_gate")


class _Norm(ctypes.Structure):
    """`Norm` of the C++ file."""

    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("epsilon", ctypes.c_float),
        ("plus", ctypes.c_float),
        ("rounds", ctypes.c_int),
    ]


class _Layer(ctypes.Structure):
    """`Layer` of the C++ file."""

    _fields_ = [
        *((name, LinearWeight) for name in LINEAR),
        *((name, _Norm) for name in NORMS),
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads", "size", "tanh")),
        ("scale", ctypes.c_float),
    ]


class _Part(ctypes.Structure):
    """`Part` of the C++ file."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("keys", "values", "first", "order")),
        *((name, ctypes.c_int64) for name in ("rows", "prefix", "slots", "own", "k_head", "k_row", "v_head", "v_row")),
    ]


@dataclass(frozen=True)
class _Packed:
    """A weight's packed copy.

    Attributes:
        state: The weight's address and version when it was packed.
        sample: A few of its numbers.
        tiles: The copy.
        described: The copy as compiled code reads it, with the address of `tiles`.
    """

    state: tuple[int, int]
    sample: Tensor
    tiles: Tensor
    described: LinearWeight


Linear = tuple[Tensor | PackedWeight, Tensor | None]
"""A linear module's weight and bias."""


@dataclass(frozen=True, eq=False)
class DecoderLayer:
    """A decoder layer of the common form.

    Attributes:
        linear: Linear modules by the names of LINEAR.
        norms: (weight, epsilon, form) by the names of NORMS, those that it has.
        size: Size of a head.
        activation: silu or tanh (of gelu).
        scale: Scale of the scores.
    """

    linear: Mapping[str, Linear]
    norms: Mapping[str, tuple[Tensor, float, str]]
    size: int
    activation: str
    scale: float


@dataclass(frozen=True, eq=False)
class DescribedLayer:
    """A layer as compiled code reads it.

    Attributes:
        kept: Tensors at the addresses in `described`, so that they outlive it.
        described: The addresses, sizes and kinds.
    """

    kept: Any
    described: _Layer


def _norm_of(weight: Tensor, epsilon: float, form: str) -> _Norm:
    return _Norm(weight.data_ptr(), epsilon, form == "from one", form == "rounded")


def _check_sizes(compiled: ctypes.CDLL) -> None:
    """Fails if a structure of the C++ files has another size than its mirror here."""
    mirrors = (LinearWeight, _Norm, _Layer, _Part, DescribedExperts)
    sizes = (ctypes.c_int64 * len(mirrors))()
    compiled.longgraft_sizes(sizes)
    ours = [ctypes.sizeof(kind) for kind in mirrors]
    assert list(sizes) == ours, f"structures of {list(sizes)} bytes are mirrored by ones of {ours}"


class CpuKernels:
    """The compiled functions.  Deterministic: how threads divide a weight's rows or a cache's columns is fixed."""

    def __init__(self, library: Path | None = None) -> None:
        """Loads the compiled functions.

        Args:
            library: Another library than that for this machine.

        Raises:
            NotBuilt: this machine cannot build or load them.
        """
        compiled = loaded() if library is None else ctypes.CDLL(str(library))
        _check_sizes(compiled)
        pointer = ctypes.c_void_p
        number = ctypes.c_int64
        self._product = compiled.longgraft_product
        self._attention = compiled.longgraft_attention
        self._norm = compiled.longgraft_norm
        self._layer = compiled.longgraft_layer
        self._product.argtypes = [pointer] * 3 + [number] + [ctypes.c_int] * 2
        self._attention.argtypes = [pointer] * 7 + [ctypes.c_float] + [ctypes.c_int] * 3
        self._norm.argtypes = [pointer] * 3 + [number] * 2 + [ctypes.c_int]
        self._layer.argtypes = [pointer] * 7 + [number] + [ctypes.c_int] * 3
        self._pack_blocks = compiled.longgraft_pack_blocks
        self._integer_rows = compiled.longgraft_integer_rows
        self._pack_blocks.argtypes = [pointer, pointer, number, number, ctypes.c_int]
        self._integer_rows.argtypes = [pointer, pointer, number, pointer]
        self._experts = compiled.longgraft_experts
        self._experts.argtypes = [pointer] * 5 + [number] * 2 + [ctypes.c_int] * 2
        for function in (
            self._product,
            self._attention,
            self._norm,
            self._layer,
            self._pack_blocks,
            self._integer_rows,
            self._experts,
        ):
            function.restype = ctypes.c_int
            function.errcheck = with_memory
        self._sizes = ctypes.c_int64 * 13
        compiled.longgraft_outputs.restype = compiled.longgraft_lanes.restype = number
        self._outputs = compiled.longgraft_outputs()
        self._lanes = compiled.longgraft_lanes()
        self._packed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # weight -> _Packed

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Computes F.linear: x [.., in], weight [out, in], bias [out] -> [.., out].

        A row's outputs are the same bits whatever the other rows and the number of threads.  Parameters
        only: they are kept packed, a second copy in memory, made at the first call and again when they have
        changed; a change through `.data` is noticed by `forget_changed` alone.
        """
        tensors = (x, weight) if bias is None else (x, weight, bias)
        if not (
            type(weight) is nn.Parameter
            and weight.ndim == 2
            and x.shape[-1] == weight.shape[1]
            and x.numel()
            and weight.dtype in DTYPES
            and fits(*tensors, dtype=weight.dtype)
        ):
            return F.linear(x, weight, bias)
        return self._multiplied(x, self._packed_of(weight).described.with_bias(bias))

    def integer_product(self, x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
        """Computes `PackedWeight.product`."""
        x = x.contiguous()
        return self._multiplied(x, weight.described.with_bias(bias))

    def _multiplied(self, x: Tensor, weight: LinearWeight) -> Tensor:
        y = x.new_empty(*x.shape[:-1], weight.out)
        if x.numel():  # a chunk of a prompt asks for no row of logits
            self._product(
                x.data_ptr(),
                ctypes.byref(weight),
                y.data_ptr(),
                x.numel() // weight.size,
                x.dtype == torch.bfloat16,
                torch.get_num_threads(),
            )
        return y

    def _packed_of(self, weight: Tensor) -> _Packed:
        """Returns the packed copy: tiles [tiles, steps, outputs of a tile, inputs of a step]; a step is four bytes."""
        state = address_and_version(weight)
        packed = self._packed.get(weight)
        if packed is None or packed.state != state:
            outputs, inputs = weight.shape
            step = 4 // weight.itemsize
            padded = F.pad(weight.detach(), (0, -inputs % step, 0, -outputs % self._outputs))
            tiles = padded.view(-1, self._outputs, padded.shape[1] // step, step).transpose(1, 2)
            # A copy in any case: its memory is aligned to vectors.
            tiles = tiles.clone(memory_format=torch.contiguous_format)
            described = LinearWeight(tiles.data_ptr(), None, None, None, inputs, outputs, 0)
            packed = _Packed(state, sample(weight), tiles, described)
            self._packed[weight] = packed
        return packed

    def packed_integers(self, weight: IntegerWeight, dtype: torch.dtype = torch.float32) -> PackedWeight:
        """Returns a weight that was rounded to integers, as the kernels read it.

        Args:
            weight: The weight.
            dtype: Dtype of the model's activations.
        """
        lanes = self._lanes
        out, size = weight.codes.shape
        codes = F.pad(weight.codes, (0, -size % SPAN, 0, -out % lanes))
        scales = F.pad(weight.scales, (0, 0, 0, -out % lanes))
        groups = scales.shape[1]
        codes = codes.view(-1, lanes, groups, SPAN // 4, 4).permute(0, 2, 3, 1, 4)
        scales = scales.view(-1, lanes, groups, 1).permute(0, 2, 3, 1)
        contiguous = torch.contiguous_format  # a copy in any case: its memory is aligned to vectors
        return PackedWeight(
            self,
            INT8,
            (out, size),
            dtype,
            shares=None,
            codes=codes.clone(memory_format=contiguous),
            scales=scales.clone(memory_format=contiguous),
        )

    def packed_blocks(
        self, of: BlockType, shape: tuple[int, int], dtype: torch.dtype, slabs: Iterable[Tensor]
    ) -> PackedWeight:
        """Returns a tensor of a GGUF file as the kernels read it.

        Args:
            of: Its type.
            shape: Rows and inputs, a multiple of the type's block.
            dtype: Dtype of the model's activations.
            slabs: The tensor's rows in order, as bytes [n, bytes of a row]; all but the last a multiple of
                `lanes`.
        """
        packed = PackedWeight.empty(self, of, shape, dtype)
        first = 0
        for raw in slabs:
            self._pack_blocks(
                ctypes.byref(packed.from_row(first)), raw.data_ptr(), len(raw), raw.shape[1], torch.get_num_threads()
            )
            first += len(raw)
        return packed

    def pack_experts(self, stack: StackedWeight, slabs: Iterable[Tensor]) -> None:
        """Fills the matrices of a mixture's experts from a GGUF file.

        Args:
            stack: The matrices.
            slabs: The rows of each expert, as bytes [rows, bytes of a row].
        """
        for expert, raw in enumerate(slabs):
            part = stack.packed.from_row(stack.first_row(expert))
            self._pack_blocks(ctypes.byref(part), raw.data_ptr(), len(raw), raw.shape[1], torch.get_num_threads())

    def mixture(self, experts: DescribedExperts, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Runs x [n, hidden] through a mixture's experts; a row has the same bits beside any other rows.

        Args:
            experts: The experts.
            x: In float32 or bfloat16, as the experts are.
            chosen: [n, k] int64, the experts of each row.
            shares: [n, k], their shares of each row's sum.
        """
        x = x.contiguous()
        chosen = chosen.contiguous()
        shares = shares.float().contiguous()
        y = torch.empty_like(x)
        self._experts(
            ctypes.byref(experts),
            x.data_ptr(),
            chosen.data_ptr(),
            shares.data_ptr(),
            y.data_ptr(),
            len(x),
            chosen.shape[1],
            x.dtype == torch.bfloat16,
            torch.get_num_threads(),
        )
        return y

    def integer_rows(self, weight: PackedWeight, ids: Tensor) -> Tensor:
        """Computes `PackedWeight.rows`: ids [n] -> [n, inputs] float32."""
        ids = ids.contiguous()
        floats = torch.empty(len(ids), weight.shape[1])
        self._integer_rows(ctypes.byref(weight.described), ids.data_ptr(), len(ids), floats.data_ptr())
        return floats

    def forget_changed(self, weight: Tensor) -> None:
        """Drops the packed copy if some numbers of the weight are others, as after `weight.data += ...`."""
        packed = self._packed.get(weight)
        if packed is not None and not torch.equal(packed.sample, sample(weight)):
            del self._packed[weight]

    def norm(self, x: Tensor, weight: Tensor, epsilon: float, form: str) -> Tensor:
        """Computes a root-mean-square norm, in one step instead of six; x and weight must pass `fits`.

        Args:
            x: [.., size].
            weight: [size].
            epsilon: The norm's epsilon.
            form: A form of `module_forms`.
        """
        y = torch.empty_like(x)
        self._norm(
            x.data_ptr(),
            ctypes.byref(_norm_of(weight, epsilon, form)),
            y.data_ptr(),
            x.numel() // x.shape[-1],
            x.shape[-1],
            x.dtype == torch.bfloat16,
        )
        return y

    def layer(self, layer: DecoderLayer) -> DescribedLayer:
        """Returns a decoder layer with its weights as they are now, for `pass_layer`."""
        kept = {}  # what the addresses below point to
        linear = {}
        for name, (weight, bias) in layer.linear.items():
            packed = weight if isinstance(weight, PackedWeight) else self._packed_of(weight)
            kept[name] = packed
            linear[name] = LinearWeight.from_buffer_copy(packed.described).with_bias(bias)
        norms = {name: _norm_of(*norm) for name, norm in layer.norms.items()}
        described = _Layer(**linear, **norms)
        described.heads, described.kv_heads = (layer.linear[name][0].shape[0] // layer.size for name in "qk")
        described.size = layer.size
        described.tanh = layer.activation == "tanh"
        described.scale = layer.scale
        return DescribedLayer((layer, kept), described)

    def pass_layer(
        self,
        layer: DescribedLayer,
        x: Tensor,
        tables: tuple[Tensor, Tensor],
        parts: Sequence[tuple[Layout, Tensor, Tensor]],
        window: int | None,
        queries: Tensor | None,
    ) -> Tensor:
        """Computes a layer: x [1, n, hidden] -> [1, n, hidden], and writes the new rows to the parts' keys and values.

        All are of x's dtype, keys and values of it, bfloat16 or packed; contiguous but for the buffers.

        Args:
            layer: The layer.
            x: Rows of all sequences, one sequence after another.
            tables: Cos and sin [1, n, D].
            parts: For each sequence the layout, and the cache's keys and values [1, Hkv, capacity, row].
            window: Window of the layer; None: none.
            queries: [n, H, D] to be filled with the rotated queries; None: they are not wanted.
        """
        y = torch.empty_like(x)
        cos, sin = tables
        cached = CACHED[parts[0][1].dtype]
        described = (_Part * len(parts))()
        for part, (layout, keys, values) in zip(described, parts, strict=True):
            first, order = layout.by_position(window)
            part.keys = keys.data_ptr()
            part.values = values.data_ptr()
            part.first = first.data_ptr()
            part.order = None
            part.slots = 0
            if order is not None:
                part.order = order.data_ptr()
                part.slots = order.shape[1]
            part.rows = layout.rows
            part.prefix = layout.prefix
            part.own = layout.end - layout.prefix
            part.k_head, part.k_row, part.v_head, part.v_row = (*keys.stride()[1:3], *values.stride()[1:3])
        self._layer(
            ctypes.byref(layer.described),
            x.data_ptr(),
            y.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            None if queries is None else queries.data_ptr(),
            described,
            len(parts),
            x.dtype == torch.bfloat16,
            cached,
            torch.get_num_threads(),
        )
        return y

    @property
    def lanes(self) -> int:
        """Heads have a multiple of that many numbers."""
        return self._lanes

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float, window: int | None) -> Tensor:
        """Computes attention, as a backend of `longgraft.attention`.

        k and v may be bfloat16 where q is float32, or packed rows of bytes.  What a row gets is the same
        bits in any pass that shows it the same columns at the same positions, whatever the number of
        threads.
        """
        size = q.shape[3]
        row = packed_size(size) if k.dtype == BYTES else size
        if not (
            size % self._lanes == 0
            and v.shape[3] == row
            and q.stride(3) == 1
            and q.dtype in DTYPES
            and q.is_cpu
            and k.dtype in (q.dtype, torch.bfloat16, BYTES)
            and fits(k, v, dtype=k.dtype)
        ):
            return split(q, numbers_of(k, q.dtype), numbers_of(v, q.dtype), layout, scale, window)
        first, order = layout.by_position(window)
        out = q.new_empty(1, layout.rows, q.shape[1], size)
        slots = 0 if order is None else order.shape[1]
        own = layout.end - layout.prefix
        sizes = self._sizes(
            k.shape[1],
            q.shape[1] // k.shape[1],
            layout.rows,
            size,
            layout.prefix,
            slots,
            own,
            q.stride(1),
            q.stride(2),
            k.stride(1),
            k.stride(2),
            v.stride(1),
            v.stride(2),
        )
        self._attention(
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            out.data_ptr(),
            first.data_ptr(),
            None if order is None else order.data_ptr(),
            sizes,
            scale,
            q.dtype == torch.bfloat16,
            CACHED[k.dtype],
            torch.get_num_threads(),
        )
        return out.transpose(1, 2)


def fits(*tensors: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Returns whether the kernels can take these: contiguous, on the CPU, of this dtype, without gradients."""
    return not torch.is_grad_enabled() and all(t.dtype == dtype and t.is_cpu and t.is_contiguous() for t in tensors)


def packed_bytes(model: nn.Module, integers: bool = False) -> int:
    """Returns the memory of the packed copies of a model's linear weights.

    Args:
        model: The model.
        integers: Count weights rounded to bytes and their scales, at most.
    """
    if integers:
        return sum(weight.numel() * 3 // 2 for _, weight in linear_weights(model))
    return sum(weight.nbytes for _, weight in linear_weights(model))


@cache
def cpu_kernels() -> CpuKernels | NotBuilt:
    """Returns the kernels of this process, or why there are none; a build is tried once."""
    try:
        return CpuKernels()
    except NotBuilt as error:
        return error

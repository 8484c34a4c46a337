"""A GGUF file's own integers, for the weights of the model that transformers makes of it.

Knows the blocks' layouts (ggml-common.h and `dequantize_row_*` of ggml) and the file's names; knows no kernel.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from longgraft.kernels.integers import IntegerWeight

FILE = "blocks.safetensors"     # in the dequantised model's folder


class _Blocks(NamedTuple):
    """n blocks.  codes [n, inputs] uint8; scales, lows [n, groups] float32, as in `IntegerWeight`."""

    codes: Tensor
    scales: Tensor
    lows: Tensor | None
    zero: int


def _half(raw: Tensor) -> Tensor:
    """[n, 2 m] bytes -> [n, m] float32."""
    return raw.contiguous().view(torch.float16).float()


def _nibbles(raw: Tensor) -> Tensor:
    """[.., m] bytes -> [.., 2 m]: first the low halves, then the high ones."""
    return torch.cat([raw & 15, raw >> 4], -1)


def _fifth(raw: Tensor) -> Tensor:
    """[n, 4] bytes -> [n, 32]: each bit, in its place as the fifth of a code."""
    bits = raw[:, :, None] >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.flatten(1) << 4


def _six_bits(raw: Tensor) -> tuple[Tensor, Tensor]:
    """[n, 12] bytes -> scales and lows [n, 8], of six bits each."""
    first, second, third = raw.split(4, 1)
    return (torch.cat([first & 63, third & 15 | first >> 6 << 4], 1).float(),
            torch.cat([second & 63, third >> 4 | second >> 6 << 4], 1).float())


def _k_blocks(raw: Tensor, high: Tensor | None, nibbles: Tensor) -> _Blocks:
    """Of Q4_K and Q5_K.  high: [n, 32], of which bit g is the fifth of group g."""
    scales, lows = _six_bits(raw[:, 4:16])
    codes = _nibbles(nibbles.unflatten(1, (4, 32))).view(-1, 8, 32)
    if high is not None:
        codes = codes | (high[:, None] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1) << 4
    return _Blocks(codes.flatten(1), _half(raw[:, :2]) * scales, _half(raw[:, 2:4]) * lows, 0)


def _q6_k(raw: Tensor) -> _Blocks:
    low, high, scales = raw[:, :128].view(-1, 2, 64), raw[:, 128:192].view(-1, 2, 32), raw[:, 192:208]
    upper = torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], -1)        # [n, 2, 128]
    codes = _nibbles(low) | upper << 4
    return _Blocks(codes.flatten(1), _half(raw[:, 208:]) * scales.view(torch.int8).float(), None, 32)


READ: dict[str, tuple[int, int, Callable[[Tensor], _Blocks]]] = {       # type -> group, bits, of blocks [n, bytes]
    "Q8_0": (32, 8, lambda raw: _Blocks(raw[:, 2:] ^ 128, _half(raw[:, :2]), None, 128)),
    "Q4_0": (32, 4, lambda raw: _Blocks(_nibbles(raw[:, 2:]), _half(raw[:, :2]), None, 8)),
    "Q4_1": (32, 4, lambda raw: _Blocks(_nibbles(raw[:, 4:]), _half(raw[:, :2]), -_half(raw[:, 2:4]), 0)),
    "Q5_0": (32, 8, lambda raw: _Blocks(_nibbles(raw[:, 6:]) | _fifth(raw[:, 2:6]), _half(raw[:, :2]), None, 16)),
    "Q5_1": (32, 8, lambda raw: _Blocks(_nibbles(raw[:, 8:]) | _fifth(raw[:, 4:8]), _half(raw[:, :2]),
                                        -_half(raw[:, 2:4]), 0)),
    "Q4_K": (32, 4, lambda raw: _k_blocks(raw, None, raw[:, 16:])),
    "Q5_K": (32, 8, lambda raw: _k_blocks(raw, raw[:, 16:48], raw[:, 48:])),
    "Q6_K": (16, 8, _q6_k),
}


def integers_of(kind: str, raw: Tensor) -> IntegerWeight | None:
    """A file's tensor [out, bytes of a row]; None for a type that is no blocks of integers, or of unknown ones."""
    if kind not in READ:
        return None
    import gguf

    group, bits, read = READ[kind]
    found = read(raw.reshape(-1, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]))
    rows = len(raw), -1
    return IntegerWeight(found.codes.reshape(rows), found.scales.reshape(rows),
                         None if found.lows is None else found.lows.reshape(rows), group, bits, found.zero)


def write_blocks(reader: Any, folder: Path, out: Path) -> None:
    """Write to `out` the integers of all weights of a dequantised model's folder that are the file's, row by row.

    transformers reorders rows of some, and rounds some to another dtype: which row is which is found by its numbers.
    A weight that is not the file's is left out.
    """
    import gguf

    arch = reader.fields["general.architecture"].contents()
    layers = int(reader.fields[f"{arch}.block_count"].contents())
    names = gguf.get_tensor_name_map({name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[arch], layers)
    theirs = {tensor.name: tensor for tensor in reader.tensors}
    parts: dict[str, Tensor] = {}
    forms: dict[str, list[int]] = {}
    with safe_open(folder / "model.safetensors", "pt") as weights:
        for name in weights.keys():     # noqa: SIM118 - no dictionary
            tensor = theirs.get(names.get_name(name, try_suffixes=(".weight",)))
            found = None if tensor is None else integers_of(tensor.tensor_type.name, torch.tensor(tensor.data))
            order = None if found is None else _order(found, weights.get_tensor(name))
            if found is not None and order is not None:
                of = {"codes": found.codes, "scales": found.scales, "lows": found.lows}
                parts |= {f"{name}.{part}": all_[order] for part, all_ in of.items() if all_ is not None}
                forms[name] = [found.group, found.bits, found.zero]
    save_file(parts, out, {"forms": json.dumps(forms)})


def _order(found: IntegerWeight, weight: Tensor) -> Tensor | None:
    """For each row of the weight the file's row that equals it; None where one has none."""
    rows = found.floats().to(weight.dtype)
    if rows.shape != weight.shape:
        return None
    if torch.equal(rows, weight):
        return torch.arange(len(rows))
    place = {row.numpy().tobytes(): i for i, row in enumerate(rows.view(torch.uint8))}
    order = [place.get(row.numpy().tobytes(), -1) for row in weight.contiguous().view(torch.uint8)]
    return None if -1 in order else torch.tensor(order)


def read_blocks(folder: Path) -> dict[str, IntegerWeight]:
    """What `write_blocks` kept, by the weight's name."""
    with safe_open(folder / FILE, "pt") as file:
        keys = set(file.keys())

        def part(name: str, kind: str) -> Any:
            return file.get_tensor(f"{name}.{kind}") if f"{name}.{kind}" in keys else None

        return {name: IntegerWeight(part(name, "codes"), part(name, "scales"), part(name, "lows"), *form)
                for name, form in json.loads(file.metadata()["forms"]).items()}

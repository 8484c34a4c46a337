"""The `gguf` package's reader, changed so that arrays are read at once and every size is checked before it is used.

The package makes two numpy arrays for each token and each merge of a vocabulary: half a gigabyte and ten
seconds for 150,000 tokens.  It also believes each count and each length of a file.
"""

from __future__ import annotations

import math
from typing import Any

import gguf
import numpy as np

from longgraft.models.gguf_types import foreign

MOST_ELEMENTS = 1 << 22  # of an array: 8 times Gemma's merges, the most in known files; each takes 200 bytes here
MOST_DIMENSIONS = 4  # of a tensor, as in llama.cpp (GGML_MAX_DIMS)
STRING = 8  # bytes of an empty string: its length


class FastGGUFReader(gguf.GGUFReader):
    """Reads a GGUF file's metadata and tensors, as `gguf.GGUFReader` does.

    Raises:
        ForeignType: a tensor's type is unknown.
        ValueError: a count, length, place or type contradicts the file.
    """

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        """Returns numbers of the file.  Since none lies beyond its end, a loop over any count ends there."""
        if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
            raise ValueError(f"an entry from byte {offset:,} on ends beyond the file's {len(self.data):,}")
        return super()._get(offset, dtype, count, override_order)

    def _push_field(self, field: gguf.ReaderField, skip_sum: bool = False) -> int:
        if field.name in self.fields:
            raise ValueError(f"its metadata has {field.name} twice")
        return super()._push_field(field, skip_sum)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        """Returns (bytes, parts, indices of the values among the parts, types), as the package's method does."""
        if raw_type != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, int(raw_type))
        kind = gguf.GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        if kind == gguf.GGUFValueType.ARRAY:
            raise ValueError("it has an array of arrays, which llama.cpp does not read either")
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        at = orig_offs + 12
        size = STRING if kind == gguf.GGUFValueType.STRING else np.dtype(self.gguf_scalar_to_np[kind]).itemsize
        if count > min(MOST_ELEMENTS, (len(self.data) - at) // size):
            raise ValueError(f"an array from byte {orig_offs:,} on has {count:,} elements, too many for the file")
        if kind == gguf.GGUFValueType.STRING:
            at, parts = self._strings(at, count)
        else:
            values = self._get(at, self.gguf_scalar_to_np[kind], count)
            parts = list(values[:, None])
            at += values.nbytes
        types = [gguf.GGUFValueType.ARRAY]
        if count:
            types.append(kind)
        return at - orig_offs, parts, list(range(count)), types

    def _strings(self, at: int, count: int) -> tuple[int, list[Any]]:
        """Returns (the place after these strings, their bytes)."""
        whole = memoryview(self.data)  # type: ignore[arg-type]
        parts: list[Any] = []
        for _ in range(count):
            start = at + STRING
            at = start + int.from_bytes(whole[at:start], "little")
            if at > len(whole):
                raise ValueError("an array ends beyond the file")
            parts.append(whole[start:at])
        return at, parts

    def _get_tensor_info_field(self, orig_offs: int) -> gguf.ReaderField:
        """Returns a tensor's entry, after a check that such a tensor exists and fits into the file."""
        field = super()._get_tensor_info_field(orig_offs)
        _, _, _, dimensions, (number,), _ = field.parts
        if number not in list(gguf.GGMLQuantizationType):
            raise foreign(field.name, int(number))
        inputs, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)]
        shape = dimensions.tolist()
        if not 0 < len(shape) <= MOST_DIMENSIONS or 0 in shape or shape[0] % inputs:
            raise ValueError(f"tensor {field.name} has the dimensions {shape}, which none of its type can have")
        if math.prod(shape) // inputs * size > len(self.data):
            raise ValueError(f"tensor {field.name} has the dimensions {shape}, and is larger than the file")
        return field

    def _build_tensors(self, start_offs: int, fields: list[gguf.ReaderField]) -> None:
        """Adds the tensors, and checks that each has a place of its own."""
        super()._build_tensors(start_offs, fields)
        end = start_offs
        for tensor in sorted(self.tensors, key=lambda tensor: tensor.data_offset):
            if tensor.data_offset < end or (tensor.data_offset - start_offs) % self.alignment:
                raise ValueError(f"tensor {tensor.name} overlaps the one before it, or is not aligned")
            end = tensor.data_offset + tensor.n_bytes

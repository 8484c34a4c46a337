"""Models whose linear weights are the integer blocks of their GGUF file, without a float copy.

transformers tells which tensor belongs where, and how it must be changed (`modeling_gguf_pytorch_utils`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel

from longgraft.kernels.block_weight import BlockWeight, NeedsFloats, put_weight
from longgraft.kernels.cpu import CpuKernels
from longgraft.kernels.packed_weight import BLOCK_TYPES

TENSORS = "tensors.json"        # the table of tensors, in the folder that describes a file
SLAB = 1 << 23                  # bytes of a tensor that are read at once
EMBEDDING = "token_embd.weight"
UNUSED = ("rope_freqs.weight",)     # tensors whose content goes into the configuration


class NoBlocks(ValueError):
    """The model cannot be decoded in its file's blocks; the message is the reason, in one clause."""


@dataclass(frozen=True)
class FileTensor:
    """A tensor's place in a GGUF file.  type: ggml's name; shape: as in torch; row: bytes of a row."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    row: int

    @property
    def rows(self) -> int:
        return int(np.prod(self.shape[:-1], dtype=int))

    @property
    def packed_bytes(self) -> int:
        """Memory that it takes: packed for the kernels if it is in blocks, otherwise as float32."""
        numbers = int(np.prod(self.shape, dtype=int))
        if self.type not in BLOCK_TYPES:
            return numbers * 4
        return BLOCK_TYPES[self.type].packed_bytes(numbers)

    def bytes_of(self, file: Path, first: int = 0, count: int | None = None) -> Any:
        """Returns rows as bytes [count, row]."""
        count = self.rows - first if count is None else count
        return np.fromfile(file, np.uint8, count * self.row, offset=self.offset + first * self.row).reshape(count, -1)


@dataclass(frozen=True)
class TensorTable:
    """The tensors of a file.  architecture: name by which transformers knows how to change them."""

    architecture: str
    tensors: tuple[FileTensor, ...]

    @classmethod
    def of(cls, reader: Any) -> TensorTable:
        """Returns the table of an open file."""
        return cls(reader.fields["general.architecture"].contents(), tuple(
            FileTensor(t.name, t.tensor_type.name, tuple(int(n) for n in reversed(t.shape)), int(t.data_offset),
                       int(t.n_bytes) * int(t.shape[0]) // int(t.n_elements)) for t in reader.tensors))

    @classmethod
    def read(cls, folder: Path) -> TensorTable:
        """Reads what `write` wrote."""
        kept = json.loads((folder / TENSORS).read_text(encoding="utf-8"))
        return cls(kept["architecture"], tuple(
            FileTensor(name, type_, tuple(shape), offset, row) for name, type_, shape, offset, row in kept["tensors"]))

    @property
    def in_blocks(self) -> bool:
        """True if a matrix other than the embedding is in blocks that the kernels multiply with."""
        return any(tensor.type in BLOCK_TYPES for tensor in self.tensors if tensor.name != EMBEDDING)

    @property
    def packed_bytes(self) -> int:
        """Memory of a model with these tensors, if all matrices but the embedding are packed for the kernels."""
        return sum(tensor.packed_bytes for tensor in self.tensors if tensor.name != EMBEDDING)

    def write(self, folder: Path) -> None:
        (folder / TENSORS).write_text(json.dumps({
            "architecture": self.architecture, "tensors": [list(vars(t).values()) for t in self.tensors]}),
            encoding="utf-8")


class FileRows(BlockWeight):
    """An embedding in a file's blocks; a lookup reads only the rows that it needs."""

    def __init__(self, file: Path, tensor: FileTensor, dtype: torch.dtype) -> None:
        super().__init__((tensor.shape[0], tensor.shape[1]), dtype)
        self.tensor = tensor
        self._raw = np.memmap(file, np.uint8, "r", tensor.offset, (tensor.rows, tensor.row))

    def rows(self, ids: Tensor) -> Tensor:
        return _floats(self.tensor.type, self._raw[ids.numpy()])

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        raise NeedsFloats("a product with the embedding")

    @property
    def sample(self) -> Tensor:
        return torch.tensor(self._raw[:: max(1, len(self) // 32), 0])


def model_in_blocks(file: Path, folder: Path, name: str, config: PretrainedConfig, dtype: torch.dtype,
                    kernels: CpuKernels) -> PreTrainedModel:
    """Makes the model of a GGUF file, on the CPU and in eval mode.

    Args:
        file: The GGUF file, which stays open, because embeddings are read from it.
        folder: The folder that describes it (`gguf_files.described`).
        name: Name of the model in messages.
        config: Its configuration.
        dtype: Dtype of activations, norms and biases; matrices of types that are no blocks become floats of it.
        kernels: Pack the blocks.

    Raises:
        NoBlocks: transformers changes a matrix by more than the order of its rows.
        ValueError: a tensor is missing or has another shape.
    """
    from accelerate import init_empty_weights
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    with init_empty_weights(include_buffers=False):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    table = TensorTable.read(folder)
    processor = TENSOR_PROCESSORS.get(table.architecture, TensorProcessor)(config.to_dict())
    names = _parameters(model, table) or get_gguf_hf_weights_map(model, processor)
    filler = _Filler(file, model, dtype, kernels, processor)
    for tensor in table.tensors:
        if parameter := names.get(tensor.name):
            filler.fill(parameter, tensor)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if config.tie_word_embeddings and isinstance(embedding.weight, FileRows):
        filler.fill_product(head, embedding.weight.tensor)
    elif config.tie_word_embeddings:
        head.weight = embedding.weight
    if missing := sorted(key for key, parameter in model.named_parameters() if parameter.is_meta):
        raise ValueError(f"{name}: the weights lack {', '.join(missing[:3])}.\nThe file is not whole: download it "
                         "again.")
    model.generation_config = GenerationConfig.from_pretrained(folder)
    return model.eval()


def _parameters(model: PreTrainedModel, table: TensorTable) -> dict[str, str]:
    """Returns the model's parameter for each tensor of the file; {} if some tensor has none by its full name.

    transformers' own function also tries parts of names, and for that makes the package's table 300 times.
    """
    import gguf

    kinds = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    if table.architecture not in kinds:
        return {}
    stems = gguf.get_tensor_name_map(kinds[table.architecture], model.config.num_hidden_layers)
    found = {}
    for parameter in model.state_dict():
        stem, _, suffix = parameter.rpartition(".")
        found[f"{stems.get_name(stem)}.{suffix}"] = parameter
    return found if all(tensor.name in found or tensor.name in UNUSED for tensor in table.tensors) else {}


@dataclass
class _Filler:
    """Puts the tensors of a file into a model without weights."""

    file: Path
    model: Any
    dtype: torch.dtype
    kernels: CpuKernels
    processor: Any

    def fill(self, parameter: str, tensor: FileTensor) -> None:
        path, _, last = parameter.rpartition(".")
        module = self.model.get_submodule(path)
        matrix = last == "weight" and isinstance(module, nn.Linear | nn.Embedding)
        if tensor.type in BLOCK_TYPES and not matrix:
            raise NoBlocks(f"{tensor.name} is the weight of a {type(module).__name__}")
        if tensor.type not in BLOCK_TYPES:
            floats = _floats(tensor.type, tensor.bytes_of(self.file)).view(tensor.shape)
            changed = self.processor.process(floats.numpy(), tensor.name)
            if changed.name != tensor.name or changed.weights.shape != getattr(module, last).shape:
                raise NoBlocks(f"transformers changes {tensor.name}")
            setattr(module, last, nn.Parameter(torch.tensor(changed.weights, dtype=self.dtype), requires_grad=False))
        elif tensor.shape != tuple(module.weight.shape):
            raise NoBlocks(f"{tensor.name} is {list(tensor.shape)}, and {list(module.weight.shape)} in the model")
        elif isinstance(module, nn.Embedding):
            put_weight(module, FileRows(self.file, tensor, self.dtype))
        else:
            self.fill_product(module, tensor)

    def fill_product(self, module: nn.Module, tensor: FileTensor) -> None:
        """Sets the weight of a linear module."""
        slabs = self._slabs(tensor, self._order(tensor))
        rows, inputs = tensor.shape
        packed = self.kernels.packed_blocks(BLOCK_TYPES[tensor.type], (rows, inputs), self.dtype, slabs)
        if not packed.scales.isfinite().all():
            raise ValueError(f"{tensor.name} holds NaN or infinite numbers. Download the file again.")
        put_weight(module, packed)

    def _order(self, tensor: FileTensor) -> np.ndarray:
        """Returns for each row of the model's matrix the number of the file's row; raises NoBlocks if there is none."""
        rows = np.arange(tensor.rows)[:, None]
        changed = self.processor.process(rows, tensor.name)
        if changed.name != tensor.name or changed.weights.shape != rows.shape or (
                not np.array_equal(np.sort(changed.weights, 0), rows)):
            raise NoBlocks(f"transformers changes {tensor.name}")
        return changed.weights[:, 0]

    def _slabs(self, tensor: FileTensor, order: np.ndarray) -> Iterator[Tensor]:
        """Yields the rows in this order, as `CpuKernels.packed_blocks` takes them."""
        if not np.array_equal(order, np.arange(tensor.rows)):
            yield torch.from_numpy(tensor.bytes_of(self.file)[order])
            return
        step = max(1, SLAB // tensor.row // self.kernels.lanes) * self.kernels.lanes
        for first in range(0, tensor.rows, step):
            yield torch.from_numpy(tensor.bytes_of(self.file, first, min(step, tensor.rows - first)))


def _floats(type_: str, raw: Any) -> Tensor:
    """Dequantizes rows of bytes [n, bytes] to [n, inputs] float32."""
    import gguf

    return torch.from_numpy(np.array(gguf.dequantize(raw, gguf.GGMLQuantizationType[type_]), np.float32))

"""Makes the model of a GGUF file, with the file's integer blocks as its linear weights or with all weights as floats.

transformers tells which tensor belongs where, and how it must be changed (`modeling_gguf_pytorch_utils`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from longgraft.kernels.block_weight import put_weight
from longgraft.kernels.cpu import CpuKernels
from longgraft.kernels.expert_weights import StackedWeight
from longgraft.kernels.packed_weight import BLOCK_TYPES, JoinedWeight, PackedWeight, ReorderedWeight, Zeros
from longgraft.models.gguf_architecture import JOINED, LATENTS, PARTS, Processor
from longgraft.models.gguf_names import BOTH, parameters_of, processor_of
from longgraft.models.gguf_tensors import FileRows, FileTensor, floats_of
from longgraft.runtime.device_memory import free_bytes
from longgraft.target_model.experts import BlockExperts, gate_of_experts, is_router, joined_parts

if TYPE_CHECKING:
    from longgraft.models.files import Files

SLAB = 1 << 23  # bytes of a tensor that are read at once
MULTIPLIED = ".ssm_dt.weight"  # Mamba's own code multiplies with this weight, outside of its module
FULL = 0.9  # share of the free memory that weights may take, beside the cache and passes


class NoBlocks(ValueError):
    """The model cannot be decoded in its file's blocks, or as floats; the message is the reason, in one clause."""


def filled_model(files: Files, dtype: torch.dtype, kernels: CpuKernels | None = None) -> PreTrainedModel:
    """Makes the model of a GGUF file, on the CPU and in eval mode.

    Args:
        files: Files with a GGUF file, which stays open, because embeddings are read from it.
        dtype: Dtype of activations, norms and biases, and of matrices that are not in blocks.
        kernels: Pack the blocks; None: all weights become floats.

    Raises:
        NoBlocks: transformers changes a matrix by more than the order of its rows.
        ValueError: a tensor is missing or has another shape.
    """
    from accelerate import init_empty_weights

    config = files.config
    table = files.table
    assert files.gguf is not None and table is not None
    with init_empty_weights(include_buffers=False):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    processor = processor_of(table.architecture, config)
    names = parameters_of(model, table, processor)
    filler = _Filler(files.gguf(), model, dtype, processor, kernels)
    if kernels is not None and table.packed_bytes > FULL * free_bytes(torch.device("cpu")):
        filler.zeros = table.experts_on_disk(Path(files.path).parent, files.name).zeros
    for tensor in table.tensors:
        parameter = names.get(tensor.name)
        if parameter:
            filler.fill(parameter, tensor)
    filler.fill_experts()
    filler.fill_parts()
    head = model.get_output_embeddings()
    embedding = model.get_input_embeddings()
    if config.tie_word_embeddings and isinstance(embedding.weight, FileRows):
        filler.fill_product(head, embedding.weight.tensor)
    elif config.tie_word_embeddings:
        head.weight = embedding.weight
    missing = sorted(key for key, parameter in model.named_parameters() if parameter.is_meta)
    if missing:
        raise ValueError(
            f"{files.name}: the weights lack {', '.join(missing[:3])}.\nThe file is not whole: download it again."
        )
    model.generation_config = files.generation
    return model.eval()


@dataclass
class _Filler:
    """Puts the tensors of a file into a model without weights."""

    file: Path
    model: Any
    dtype: torch.dtype
    processor: Any
    kernels: CpuKernels | None  # None: all weights become floats
    experts: dict[str, dict[str, FileTensor]] = field(default_factory=dict)  # by module, part and suffix
    parts: dict[str, dict[str, FileTensor]] = field(default_factory=dict)  # by module and part
    zeros: Zeros = torch.zeros  # allocates the experts

    def fill(self, parameter: str, tensor: FileTensor) -> None:
        """Sets a parameter, or keeps a tensor for `fill_experts` or `fill_parts`."""
        path, _, last = parameter.rpartition(".")
        module_path, _, part = path.rpartition(".")
        if part in (*PARTS, BOTH) and hasattr(self.model.get_submodule(module_path), "down_proj"):
            self.experts.setdefault(module_path, {})[f"{part}.{last}"] = tensor
            return
        module = self.model.get_submodule(path)
        if last in (*LATENTS, *JOINED):
            self.parts.setdefault(path, {})[last] = tensor
            return
        if not self._packs(tensor) or is_router(module) or tensor.name.endswith(MULTIPLIED):
            self._fill_floats(module, last, tensor)
        elif last != "weight" or not isinstance(module, nn.Linear | nn.Embedding):
            raise NoBlocks(f"{tensor.name} is the weight of a {type(module).__name__}")
        elif tensor.shape != tuple(module.weight.shape):
            model_shape = list(module.weight.shape)
            raise NoBlocks(f"{tensor.name} is {list(tensor.shape)}, and {model_shape} in the model")
        elif isinstance(module, nn.Embedding):
            put_weight(module, FileRows(self.file, tensor, self.dtype))
        else:
            self.fill_product(module, tensor)

    def _packs(self, tensor: FileTensor) -> bool:
        return self.kernels is not None and tensor.type in BLOCK_TYPES

    @property
    def _packer(self) -> CpuKernels:
        assert self.kernels is not None
        return self.kernels

    def _fill_floats(self, module: Any, name: str, tensor: FileTensor) -> None:
        """Sets a parameter or buffer of a module to floats."""
        floats = self._floats(tensor)
        columns = self._columns(tensor)
        if columns is not None:
            floats = floats[:, torch.from_numpy(np.argsort(columns))]
        changed = self._changed(floats.numpy(), tensor)
        shape = getattr(module, name).shape
        if changed.shape != shape:
            raise NoBlocks(f"{tensor.name} is {list(tensor.shape)}, and {list(shape)} in the model")
        if name in module._buffers:
            module._buffers[name] = torch.tensor(changed)
        else:
            self._set_floats(module, name, torch.tensor(changed))

    def _changed(self, weights: np.ndarray, tensor: FileTensor) -> np.ndarray:
        """Undoes what the converter changed; raises NoBlocks if transformers makes another tensor of it."""
        changed = self.processor.process(weights, tensor.name, parsed_parameters={"tensors": {}})
        if changed.name not in (tensor.name, None):  # None: GPT-2's output embedding, which stays as it is
            raise NoBlocks(f"transformers changes {tensor.name}")
        return changed.weights

    def fill_product(self, module: nn.Module, tensor: FileTensor) -> None:
        """Sets the weight of a linear module."""
        packed = self._packed(tensor)
        columns = self._columns(tensor)
        if columns is None:
            put_weight(module, packed)
        else:
            put_weight(module, ReorderedWeight(packed, torch.from_numpy(columns)))

    def _packed(self, tensor: FileTensor) -> PackedWeight:
        """Returns a matrix in blocks, with its rows in the model's order."""
        slabs = self._slabs(tensor, self._order(tensor))
        rows, inputs = tensor.shape
        packed = self._packer.packed_blocks(BLOCK_TYPES[tensor.type], (rows, inputs), self.dtype, slabs)
        _check_scales(packed, tensor)
        return packed

    def _columns(self, tensor: FileTensor) -> np.ndarray | None:
        """Returns the model's number of each column of a file's matrix; None if they are alike."""
        if not isinstance(self.processor, Processor):
            return None
        return self.processor.architecture.columns(tensor.name, self.processor.config)

    def fill_experts(self) -> None:
        """Puts experts in blocks in the place of the model's own."""
        for path, tensors in self.experts.items():
            parent, _, name = path.rpartition(".")
            experts: Any = self.model.get_submodule(path)
            if self.kernels is None:
                floats = {name: self._floats(tensor) for name, tensor in tensors.items()}
                for parameter, values in joined_parts(experts, floats).items():
                    self._set_floats(experts, parameter, values)
                continue
            gate = gate_of_experts(experts)
            if gate is None:
                raise NoBlocks(f"the experts of {type(experts).__name__} join their gates in a way that is not known")
            weights = {part: self._stack(tensors, part, experts.num_experts) for part in PARTS}
            inner, hidden = weights["gate"].shape[1:]
            if weights["up"].shape[1:] != (inner, hidden) or weights["down"].shape[1:] != (hidden, inner):
                raise NoBlocks(f"the matrices of {path} do not fit each other")
            biases = {}
            for part in PARTS:
                bias = tensors.get(f"{part}.bias")
                if bias is not None:
                    biases[part] = self._floats(bias).to(self.dtype)
            setattr(self.model.get_submodule(parent), name, BlockExperts(self.kernels, weights, biases, gate))

    def fill_parts(self) -> None:
        """Sets the matrices that a file has as two; without one of its parts, a matrix has no weight."""
        for path, tensors in self.parts.items():
            module = self.model.get_submodule(path)
            if set(tensors) == set(JOINED):
                self._fill_joined(path, module, tensors["first"], tensors["second"])
            elif set(tensors) == set(LATENTS):
                keys = self._floats(tensors["keys"])
                values = self._floats(tensors["values"])
                # The file has keys [heads, latents, numbers] transposed.  Blocks cannot be transposed.
                heads = torch.cat([keys.transpose(1, 2), values], dim=1)
                self._set_floats(module, "weight", heads.flatten(0, 1))

    def _fill_joined(self, path: str, module: Any, first: FileTensor, second: FileTensor) -> None:
        """Joins the rows of two matrices, in blocks if both are."""
        order = self.processor.architecture.joined_rows(path, self.processor.config)
        numbers = None if order is None else torch.from_numpy(order)
        if (first.rows + second.rows, first.shape[1]) != tuple(module.weight.shape):
            raise NoBlocks(
                f"{first.name} and {second.name} have {first.rows} and {second.rows} rows, and "
                f"the model {module.weight.shape[0]}"
            )
        if self._packs(first) and self._packs(second):
            put_weight(module, JoinedWeight(self._packed(first), self._packed(second), numbers))
            return
        floats = torch.cat([self._floats(first), self._floats(second)])
        if numbers is not None:
            floats = floats[numbers]
        self._set_floats(module, "weight", floats)

    def _floats(self, tensor: FileTensor) -> Tensor:
        try:
            return floats_of(tensor.type, tensor.bytes_of(self.file)).view(tensor.shape)
        except NotImplementedError as error:
            raise NoBlocks(f"{tensor.name} is {tensor.type}, which the package gguf does not dequantise") from error

    def _set_floats(self, module: Any, name: str, values: Tensor) -> None:
        setattr(module, name, nn.Parameter(values.to(self.dtype).contiguous(), requires_grad=False))

    def _stack(self, tensors: dict[str, FileTensor], part: str, experts: int) -> StackedWeight:
        """Returns one of the matrices of all experts."""
        tensor = tensors.get(f"{part}.weight")
        both = tensors.get(f"{BOTH}.weight")
        matrices = 1  # matrices of an expert in the tensor
        first = 0  # the matrix's first row among those of an expert
        if tensor is None and both is not None and part != "down":
            matrices = 2
            half = both.shape[1] // 2
            if part == "up":
                first = half
            tensor = replace(both, shape=(both.shape[0], half, both.shape[2]))
        if tensor is None:
            raise ValueError(f"The file lacks a layer's experts (ffn_{part}_exps): it is not whole. Download it again.")
        if tensor.type not in BLOCK_TYPES:
            raise NoBlocks(f"{tensor.name} is {tensor.type}")
        if tensor.shape[0] != experts:
            raise NoBlocks(f"{tensor.name} has {tensor.shape[0]} experts, and the model {experts}")
        _, rows, inputs = tensor.shape
        slabs = (
            torch.from_numpy(tensor.bytes_of(self.file, expert * matrices * rows + first, rows))
            for expert in range(experts)
        )
        stack = StackedWeight(self._packer, BLOCK_TYPES[tensor.type], (experts, rows, inputs), self.dtype, self.zeros)
        self._packer.pack_experts(stack, slabs)
        _check_scales(stack.packed, tensor)
        return stack

    def _order(self, tensor: FileTensor) -> np.ndarray:
        """Returns the file's row for each row of the model's matrix; raises NoBlocks if more than rows changes."""
        rows = np.arange(tensor.rows)[:, None]
        changed = self._changed(rows, tensor)
        if not np.array_equal(np.sort(changed, axis=0), rows):
            raise NoBlocks(f"transformers changes {tensor.name}")
        return changed[:, 0]

    def _slabs(self, tensor: FileTensor, order: np.ndarray) -> Iterator[Tensor]:
        """Yields the rows in this order, as `CpuKernels.packed_blocks` takes them."""
        if not np.array_equal(order, np.arange(tensor.rows)):
            yield torch.from_numpy(tensor.bytes_of(self.file)[order])
            return
        step = max(1, SLAB // tensor.row // self._packer.lanes) * self._packer.lanes
        for first in range(0, tensor.rows, step):
            yield torch.from_numpy(tensor.bytes_of(self.file, first, min(step, tensor.rows - first)))


def _check_scales(packed: PackedWeight, tensor: FileTensor) -> None:
    """Raises ValueError if a block's scale is no number."""
    if not packed.scales.isfinite().all():
        raise ValueError(f"{tensor.name} holds NaN or infinite numbers. Download the file again.")

"""Medusa's heads (arXiv 2401.10774): each predicts one token further ahead from the target's last hidden state alone.

Letters: K heads, H hidden size, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longgraft.config.options import Checked, Count
from longgraft.files.whole_files import write_weights
from longgraft.yarn_drafters.files import folder_of, read_config, read_tensors

FOLDER = "medusa"  # subfolder that trained heads are written to
WEIGHTS = "medusa_lm_head.pt"
PREFIX = "medusa_head."  # prefix of the heads' tensors in files that also hold the target's
TIED = "tie_output"  # field of config.json: the heads share the target's output embedding
NAME = re.compile(r"(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)")


@dataclass(frozen=True)
class MedusaConfig(Checked):
    """Shape of Medusa heads."""

    hidden_size: Count
    vocab_size: Count
    heads: Count = 4
    blocks: Count = 1
    tied: bool = True  # True if they share the target's output embedding


class ResidualBlock(nn.Module):
    """Residual block x + SiLU(Wx + b), initialised to the identity."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class MedusaHeads(nn.Module):
    """Medusa heads: head i reads the hidden state of token t and predicts token t + 2 + i."""

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size

        def last() -> list[nn.Module]:
            if config.tied:
                return []
            return [nn.Linear(size, config.vocab_size, bias=False)]

        # Typed Any: a head is sliced for its blocks, and its last module is the output layer.
        self.heads: Any = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(size) for _ in range(config.blocks)), *last()) for _ in range(config.heads)
        )

    def states(self, hidden: Tensor) -> list[Tensor]:
        """Returns for each head the input [.., H] of its output layer; hidden: the target's, after its final norm."""
        return [head[: self.config.blocks](hidden) for head in self.heads]

    def logits(self, hidden: Tensor, read_out: Callable[[Tensor], Tensor]) -> Tensor:
        """hidden [n, H] -> [n, K, V]; read_out: the target's output layer, states [.., H] -> logits [.., V]."""
        states = self.states(hidden)
        if self.config.tied:
            return read_out(torch.stack(states, 1))
        return torch.stack([head[-1](state) for head, state in zip(self.heads, states, strict=True)], 1)


def load_medusa(
    path: str | Path, hidden: int, vocab: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> MedusaHeads:
    """Loads the heads of a folder or hub id for a target of these sizes.

    Raises:
        ValueError: a tensor is missing, unknown or of another shape.
    """
    folder = folder_of(path)
    config = read_config(folder)
    loaded = read_tensors(folder, WEIGHTS)
    try:
        tensors = {name.removeprefix(PREFIX): tensor for name, tensor in loaded.items() if name.startswith(PREFIX)}
        tensors = tensors or loaded
        shape = _shape(tensors, config.get(TIED, False), hidden, vocab)
        with torch.device("meta"):
            heads = MedusaHeads(shape)
        _check_tensors(heads, tensors)
    except ValueError as error:
        raise ValueError(f"Medusa heads {path}: {error}") from error
    cast_tensors = {f"heads.{name}": tensor.to(dtype) for name, tensor in tensors.items()}
    broken = [name for name, tensor in cast_tensors.items() if not bool(tensor.isfinite().all())]
    if broken:
        raise ValueError(
            f"Medusa heads {path}: NaN or infinite weights in {', '.join(broken[:3])}, read as "
            f"{str(dtype)[6:]}. The file is damaged, or too large for that: use another."
        )
    heads.load_state_dict(cast_tensors, strict=True, assign=True)
    return heads.to(device).eval().requires_grad_(False)


def save_medusa(heads: MedusaHeads, folder: str | Path, target: str) -> None:
    """Writes config.json and model.safetensors with FasterDecoding's names, in the weights' own dtype."""
    config = heads.config
    described = {
        "medusa_num_heads": config.heads,
        "medusa_num_layers": config.blocks,
        "base_model_name_or_path": target,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        TIED: config.tied,
    }
    tensors = {name.removeprefix("heads."): tensor for name, tensor in heads.state_dict().items()}
    write_weights(Path(folder), described, tensors)


def _shape(tensors: Mapping[str, Tensor], tied: object, hidden: int, vocab: int) -> MedusaConfig:
    """Counts heads and blocks by tensor names: published configurations give other numbers than their files hold."""
    matches = map(NAME.fullmatch, tensors)
    parts = [match.groups() for match in matches if match]
    if not parts:
        raise ValueError(
            f"no tensor is a head's ({', '.join(sorted(tensors)[:3])}, ...). Give the folder "
            f"with {WEIGHTS}, or with safetensors of its names."
        )
    if tied is None:
        tied = False
    if not isinstance(tied, bool):
        raise ValueError(f"{TIED} is {tied!r} in config.json; true or false is needed.")
    blocks = 1 + max((int(place) for _, place, kind in parts if kind == "linear.weight"), default=0)
    return MedusaConfig(hidden, vocab, 1 + max(int(head) for head, _, _ in parts), blocks, tied)


def _check_tensors(heads: MedusaHeads, tensors: Mapping[str, Tensor]) -> None:
    """Raises ValueError unless names and shapes are exactly the heads'."""
    wanted = {name.removeprefix("heads."): tensor.shape for name, tensor in heads.state_dict().items()}
    missing = sorted(set(wanted) - set(tensors))
    unknown = sorted(set(tensors) - set(wanted))
    if missing or unknown:
        raise ValueError(
            f"{heads.config.heads} heads of {heads.config.blocks} blocks: missing {', '.join(missing) or 'nothing'}; "
            f"unknown {', '.join(unknown) or 'nothing'}. Without an output layer of their own, heads need {TIED}: true "
            "in config.json; else the file is cut, or of another kind: download it again."
        )
    for name, shape in wanted.items():
        if tensors[name].shape != shape or not tensors[name].is_floating_point():
            raise ValueError(
                f"{name} is {str(tensors[name].dtype)[6:]} {tuple(tensors[name].shape)}; "
                f"numbers of shape {tuple(shape)} are needed. These heads are another target's."
            )

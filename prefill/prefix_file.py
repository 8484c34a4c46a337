"""A prefix in a file: the rows that a session made of a text, for sessions of the same models.

Knows files, cells and what they must belong to; knows no model, no tokenizer and no method.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longgraft.config.file_errors import reason
from longgraft.prefill.prefixes import FINAL, HIDDEN, RANKED, RANKS, Cell, report_names
from longgraft.protocol.observation import Wants

KIND, VERSION = "longgraft prefix", "1"     # of the file
IDS = "ids"
OPTIONS = {"dtype": "dtype", "drafter window": "draft_window"}      # what a session can be loaded with instead


@dataclass(frozen=True)
class Needed:
    """What a session asks of a prefix.

    identity: what rows depend on beside the tokens, by name; caches: by whose they are; wants: reports; cell: tokens;
    vocab: ids are below; model, method: for messages
    """

    identity: Mapping[str, str]
    caches: Collection[str]
    wants: Wants
    cell: int
    vocab: int
    model: str
    method: str

    @property
    def tensors(self) -> Collection[str]:
        """Of reports, as a file names them."""
        return [f"/{name}" for name in report_names(self.wants)]


def save(path: Path, ids: Sequence[int], rows: Cell, made: Needed) -> int:
    """One safetensors file, whole or not at all; its bytes.  rows: on the host; made: what the session that read it
    would need."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {IDS: torch.tensor(ids)}
    for whose, found in (*rows.caches.items(), ("", rows.reports)):
        tensors |= {f"{whose}/{name}": one for name, one in found.items()}
    about = {KIND: VERSION, "longgraft": importlib.metadata.version("longgraft"), "model": made.model,
             "method": made.method, "identity": json.dumps(dict(made.identity)), "cell": str(made.cell),
             "digest": _digest(tensors)}
    part = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        save_file(tensors, part, about)
        part.replace(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"Prefix {path} could not be written: {reason(error)}. Free some space, or give another "
                         "file.") from error
    finally:
        part.unlink(missing_ok=True)
    return path.stat().st_size


@torch.inference_mode()
def load(path: Path, needed: Needed, device: torch.device) -> tuple[list[int], Cell]:
    """(token ids, rows of all of them that are needed), mapped where the device is the CPU.  ValueError where the file
    is damaged, or belongs to something else."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = dict(file.metadata() or {})
            if about.get(KIND) != VERSION:
                found = f"has format {about[KIND]}" if KIND in about else "is a file of something else"
                raise _unfit(path, f"{found}, and a prefix of format {VERSION} is needed")
            _check(path, about, needed, file)
            tensors = {name: file.get_tensor(name) for name in file.keys()}     # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise _unfit(path, f"cannot be read: {reason(error)}") from error
    ids = tensors.pop(IDS, torch.empty(0))
    if _digest({IDS: ids, **tensors}) != about.get("digest"):
        raise _unfit(path, "was changed after it was made")
    if not 0 <= int(ids.min()) <= int(ids.max()) < needed.vocab:
        raise _unfit(path, f"holds ids from {int(ids.min())} to {int(ids.max())}, and the vocabulary has "
                           f"{needed.vocab:,}")
    if (ranks := f"/{RANKS}") in tensors:
        tensors[ranks] = tensors[ranks][:, :needed.wants.topk]      # the best come first
    wanted = {name: rows if name == f"/{RANKED}" else rows.to(device) for name, rows in tensors.items()
              if name in needed.tensors or name.split("/")[0] in needed.caches}
    finite = [rows.isfinite().all() for rows in wanted.values() if rows.is_floating_point()]
    if finite and not bool(torch.stack(finite).all()):
        raise _unfit(path, "holds NaN or infinite numbers")
    return ids.tolist(), _cell(wanted)


def _check(path: Path, about: Mapping[str, str], needed: Needed, file: Any) -> None:
    """Before a row is read: ValueError names the first thing that does not fit."""
    names = set(file.keys())
    had, identity = {name.split("/")[0] for name in names}, json.loads(about["identity"])
    of = f"(model {about['model']}, method {about['method']})"
    if not isinstance(identity, dict):
        raise _unfit(path, "was changed after it was made")
    lacks = [f"rows of the {whose}" for whose in needed.caches if whose not in had]
    for label, value in needed.identity.items():
        if (found := identity.get(label)) != value and not lacks:
            other = f", or load with {OPTIONS[label]}={found}" if label in OPTIONS and found != "none" else ""
            raise _unfit(path, f"was made for {label} {found} {of}, and this session has {value}", other=other)
    if about["cell"] != str(needed.cell):
        raise _unfit(path, f"has cells of {about['cell']} tokens, and {needed.cell} are needed")
    lacks += [_words(name) for name in needed.tensors if name not in names]
    if not lacks and needed.wants.topk and file.get_slice(f"/{RANKS}").get_shape()[1:] < [needed.wants.topk]:
        lacks.append(f"{needed.wants.topk} top tokens of each")
    if lacks:
        raise _unfit(path, f"holds no {lacks[0]} {of}, and method {needed.method} needs them", needed.method)


def _words(tensor: str) -> str:
    """A report's name for people."""
    name = tensor[1:]
    if name.startswith(HIDDEN):
        return f"hidden states of layer {name.removeprefix(HIDDEN)}"
    return "final hidden states" if name == FINAL else "top tokens"


def _cell(tensors: Mapping[str, Tensor]) -> Cell:
    """By a file's names."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, rows in tensors.items():
        whose, what = name.split("/")
        found.setdefault(whose, {})[what] = rows
    return Cell({whose: rows for whose, rows in found.items() if whose}, found.get("", {}))


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Of names, types, shapes and, by their CRC-32, of all rows."""
    def described(name: str, rows: Tensor) -> tuple[str, str, tuple[int, ...], int]:
        return name, str(rows.dtype), tuple(rows.shape), zlib.crc32(rows.contiguous().view(torch.uint8).numpy().data)

    return hashlib.sha256(repr(sorted(map(described, tensors, tensors.values()))).encode()).hexdigest()[:16]


def _unfit(path: Path, why: str, method: str = "", other: str = "") -> ValueError:
    again = f"longgraft prefill TEXT {f'--method {method} ' if method else ''}--save FILE"
    return ValueError(f"Prefix {path} {why}. Make it again with `{again}`{other}.")

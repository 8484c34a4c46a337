"""Prefix files: the rows that a session computed for a text, for other sessions of the same models."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longgraft.config.file_errors import reason
from longgraft.config.identified_file import save_identified
from longgraft.prefill.prefixes import FINAL, HIDDEN, RANKED, RANKS, Cell, report_names
from longgraft.protocol.observation import Wants

KIND, VERSION = "longgraft prefix", "1"     # the file's metadata key and format
IDS = "ids"
OPTIONS = {"dtype": "dtype", "cache": "kv_dtype", "drafter window": "draft_window"}     # label -> the option of load
UNSAID = {"cache": "the model's dtype", "linear weights": "floats"}    # what an identity without these labels means


@dataclass(frozen=True)
class Needed:
    """The properties that a prefix file must have for a session.

    identity: label -> value, all that rows depend on besides the tokens; caches: names of their owners; wants: reports;
    cell: tokens per cell; vocab: bound of the ids; model, method: names for messages
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
        """Names of the reports' tensors in a file."""
        return [f"/{name}" for name in report_names(self.wants)]


def save(path: Path, ids: Sequence[int], rows: Cell, made: Needed) -> int:
    """Writes one safetensors file, complete or not at all; returns its bytes.

    rows: on the host; made: what the session that read them needs
    """
    tensors = {IDS: torch.tensor(ids)}
    for owner, found in (*rows.caches.items(), ("", rows.reports)):
        tensors |= {f"{owner}/{name}": one for name, one in found.items()}
    about = {KIND: VERSION, "longgraft": importlib.metadata.version("longgraft"), "model": made.model,
             "method": made.method, "cell": str(made.cell), "digest": _digest(tensors)}
    save_identified(path, tensors, about, made.identity)
    return path.stat().st_size


@torch.inference_mode()
def load(path: Path, needed: Needed, device: torch.device) -> tuple[list[int], Cell]:
    """Returns (token ids, their needed rows), memory-mapped on the CPU.

    Raises:
        ValueError: the file is damaged or does not fit the session.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = dict(file.metadata() or {})
            if about.get(KIND) != VERSION:
                found = f"has format {about[KIND]}" if KIND in about else "is not a prefix file"
                raise _unfit(path, f"{found}; a prefix of format {VERSION} is needed")
            _check(path, about, needed, file)
            tensors = {name: file.get_tensor(name) for name in file.keys()}     # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise _unfit(path, f"cannot be read: {reason(error)}") from error
    ids = tensors.pop(IDS, torch.empty(0))
    if _digest({IDS: ids, **tensors}) != about.get("digest"):
        raise _unfit(path, "was changed after it was made")
    if not 0 <= int(ids.min()) <= int(ids.max()) < needed.vocab:
        raise _unfit(path, f"holds ids from {int(ids.min())} to {int(ids.max())}, and the vocabulary has "
                           f"{needed.vocab:,}")
    if (ranks := f"/{RANKS}") in tensors:
        tensors[ranks] = tensors[ranks][:, :needed.wants.topk]      # best first
    wanted = {name: rows if name == f"/{RANKED}" else rows.to(device) for name, rows in tensors.items()
              if name in needed.tensors or name.split("/")[0] in needed.caches}
    finite = [rows.isfinite().all() for rows in wanted.values() if rows.is_floating_point()]
    if finite and not bool(torch.stack(finite).all()):
        raise _unfit(path, "holds NaN or infinite numbers")
    return ids.tolist(), _cell(wanted)


def _check(path: Path, about: Mapping[str, str], needed: Needed, file: Any) -> None:
    """Raises ValueError with the first thing in a file that does not fit; reads no rows."""
    names = set(file.keys())
    had, identity = {name.split("/")[0] for name in names}, json.loads(about["identity"])
    of = f"(model {about['model']}, method {about['method']})"
    if not isinstance(identity, dict):
        raise _unfit(path, "was changed after it was made")
    lacks = [f"rows of the {owner}" for owner in needed.caches if owner not in had]
    for label, value in (UNSAID | dict(needed.identity)).items():
        found = identity.get(label, UNSAID.get(label))
        if found != value and not lacks:
            settable = label in OPTIONS and found not in ("none", UNSAID.get(label))
            other = f", or load with {OPTIONS[label]}={found}" if settable else ""
            raise _unfit(path, f"was made for {label} {found} {of}, and this session has {value}", other=other)
    if about["cell"] != str(needed.cell):
        raise _unfit(path, f"has cells of {about['cell']} tokens, and {needed.cell} are needed")
    lacks += [_words(name) for name in needed.tensors if name not in names]
    if not lacks and needed.wants.topk and file.get_slice(f"/{RANKS}").get_shape()[1:] < [needed.wants.topk]:
        lacks.append(f"{needed.wants.topk} top tokens of each")
    if lacks:
        raise _unfit(path, f"holds no {lacks[0]} {of}, and method {needed.method} needs them", needed.method)


def _words(tensor: str) -> str:
    """Returns a report's name for messages."""
    name = tensor[1:]
    if name.startswith(HIDDEN):
        return f"hidden states of layer {name.removeprefix(HIDDEN)}"
    return "final hidden states" if name == FINAL else "top tokens"


def _cell(tensors: Mapping[str, Tensor]) -> Cell:
    """Returns the cell of a file's tensors, named "owner/rows" in caches and "/report" in reports."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, rows in tensors.items():
        owner, kind = name.split("/")
        found.setdefault(owner, {})[kind] = rows
    return Cell({owner: rows for owner, rows in found.items() if owner}, found.get("", {}))


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Returns a fingerprint of names, dtypes, shapes and the CRC-32 of all values."""
    def described(name: str, rows: Tensor) -> tuple[str, str, tuple[int, ...], int]:
        return name, str(rows.dtype), tuple(rows.shape), zlib.crc32(rows.contiguous().view(torch.uint8).numpy().data)

    return hashlib.sha256(repr(sorted(map(described, tensors, tensors.values()))).encode()).hexdigest()[:16]


def _unfit(path: Path, why: str, method: str = "", other: str = "") -> ValueError:
    again = f"longgraft prefill TEXT {f'--method {method} ' if method else ''}--save FILE"
    return ValueError(f"Prefix {path} {why}. Make it again with `{again}`{other}.")

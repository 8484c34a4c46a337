"""Prefix files: the rows that a session computed for a text, for other sessions of the same models."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longgraft.files.file_errors import reason
from longgraft.files.identified_file import save_identified
from longgraft.prefill.prefixes import FINAL, HIDDEN, PROBABILITIES, RANKED, RANKS, Cell, report_names
from longgraft.protocol.observation import Wants
from longgraft.runtime.byte_rows import BYTES

# The file's metadata key and format.
KIND = "longgraft prefix"
VERSION = "1"
IDS = "ids"
RANK_TYPES = torch.int32, torch.int64
# Label -> the option of load.
OPTIONS = {"dtype": "dtype=", "cache": "kv_dtype=", "drafter window": "method=...+window="}
MODEL_LABELS = {"configuration", "weights", "tokenizer"}  # one of them differs if the model does
# What an identity without these labels means.
UNSAID = {"cache": "the model's dtype", "linear weights": "floats"}


@dataclass(frozen=True)
class Needed:
    """The properties that a prefix file must have for a session.

    Attributes:
        identity: Label -> value, all that rows depend on besides the tokens.
        caches: Names of the caches' owners.
        wants: Wanted reports.
        cell: Tokens per cell.
        vocab: Bound of the ids.
        model: Name of the model, for messages.
        method: Name of the method, for messages.
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

    Args:
        path: The new file.
        ids: Token ids of the prefix.
        rows: Their rows, on the host.
        made: What the session that read them needs.
    """
    tensors = {IDS: torch.tensor(ids)}
    for owner, owned_rows in (*rows.caches.items(), ("", rows.reports)):
        tensors |= {f"{owner}/{name}": tensor for name, tensor in owned_rows.items()}
    about = {
        KIND: VERSION,
        "longgraft": importlib.metadata.version("longgraft"),
        "model": made.model,
        "method": made.method,
        "cell": str(made.cell),
        "digest": _digest(tensors),
    }
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
                problem = "is not a prefix file"
                if KIND in about:
                    problem = f"has format {about[KIND]}"
                raise _unfit(path, f"{problem}; a prefix of format {VERSION} is needed")
            _check(path, about, needed, file)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError, KeyError, TypeError, RecursionError, json.JSONDecodeError) as error:
        raise _unfit(path, f"cannot be read: {reason(error)}") from error
    ids = tensors.pop(IDS, torch.empty(0))
    if _digest({IDS: ids, **tensors}) != about.get("digest"):
        raise _unfit(path, "was changed after it was made")
    if ids.ndim != 1 or ids.dtype != torch.int64 or not len(ids):
        raise _unfit(path, f"holds token ids as {ids.dtype} {list(ids.shape)}, and a list of int64 is needed")
    for name, rows in tensors.items():
        if not _is_rows(name, rows, len(ids)):
            raise _unfit(
                path, f"holds {name} as {rows.dtype} {list(rows.shape)}, which are no rows of {len(ids):,} tokens"
            )
    ranks = f"/{RANKS}"
    for tokens in (ids, tensors.get(ranks, ids)):
        least = int(tokens.min())
        most = int(tokens.max())
        if not 0 <= least <= most < needed.vocab:
            raise _unfit(path, f"holds ids from {least} to {most}, and the vocabulary has {needed.vocab:,}")
    for name in (ranks, f"/{PROBABILITIES}"):
        if name in tensors:
            tensors[name] = tensors[name][:, : needed.wants.topk]  # best first
    wanted = {}
    for name, rows in tensors.items():
        if name == f"/{RANKED}" and name in needed.tensors:
            wanted[name] = rows  # read on the host
        elif name in needed.tensors or name.split("/")[0] in needed.caches:
            wanted[name] = rows.to(device)
    finite = [rows.isfinite().all() for rows in wanted.values() if rows.is_floating_point()]
    if finite and not bool(torch.stack(finite).all()):
        raise _unfit(path, "holds NaN or infinite numbers")
    return ids.tolist(), _cell(wanted)


def _check(path: Path, about: Mapping[str, str], needed: Needed, file: Any) -> None:
    """Raises ValueError with the first thing in a file that does not fit; reads no rows."""
    names = set(file.keys())
    owners = {name.split("/")[0] for name in names}
    identity = json.loads(about["identity"])
    source = f"(model {about['model']}, method {about['method']})"
    if not isinstance(identity, dict):
        raise _unfit(path, "was changed after it was made")
    lacks = [f"rows of the {owner}" for owner in needed.caches if owner not in owners]
    made = UNSAID | identity
    wanted = UNSAID | dict(needed.identity)
    differing = [label for label in wanted if made.get(label) != wanted[label]]
    if about["model"] != needed.model and MODEL_LABELS.intersection(differing):
        raise _unfit(path, f"was made for model {about['model']}, and this session has {needed.model}")
    if differing and not lacks:
        label = differing[0]
        remedy = ""
        if label in OPTIONS and made.get(label) not in ("none", UNSAID.get(label)):
            remedy = f", or load with {OPTIONS[label]}{made.get(label)}"
        words = f"was made for {label} {made.get(label)} {source}, and this session has {wanted[label]}"
        raise _unfit(path, words, remedy=remedy)
    if about["cell"] != str(needed.cell):
        raise _unfit(path, f"has cells of {about['cell']} tokens, and {needed.cell} are needed")
    lacks += [_words(name) for name in needed.tensors if name not in names]
    for name in (f"/{RANKS}", f"/{PROBABILITIES}"):
        if name in needed.tensors and not lacks and file.get_slice(name).get_shape()[1:] < [needed.wants.topk]:
            lacks.append(f"{needed.wants.topk} {_words(name)} of each")
    if lacks:
        raise _unfit(path, f"holds no {lacks[0]} {source}, and method {needed.method} needs them", needed.method)


def _is_rows(name: str, rows: Tensor, tokens: int) -> bool:
    """Tells if a tensor of this name, and of a file with so many tokens, has the right form.

    Rows of a cache are [1, heads, tokens, size]; those of reports are [tokens, ...].
    """
    owner, _, kind = name.partition("/")
    if owner:
        right_type = rows.is_floating_point() or rows.dtype == BYTES
        known = re.fullmatch(r"\d+\.(keys|values)", kind)
        return bool(known) and right_type and rows.ndim == 4 and rows.shape[0] == 1 and rows.shape[2] == tokens
    if kind == RANKED:
        return rows.dtype == torch.bool and rows.shape == (tokens,)
    right_type = rows.dtype in RANK_TYPES if kind == RANKS else rows.is_floating_point()
    return right_type and rows.ndim == 2 and len(rows) == tokens and bool(rows.shape[1])


def _words(tensor: str) -> str:
    """Returns a report's name for messages."""
    name = tensor[1:]
    if name.startswith(HIDDEN):
        return f"hidden states of layer {name.removeprefix(HIDDEN)}"
    if name == FINAL:
        return "final hidden states"
    if name == PROBABILITIES:
        return "probabilities of top tokens"
    return "top tokens"


def _cell(tensors: Mapping[str, Tensor]) -> Cell:
    """Returns the cell of a file's tensors, named "owner/rows" in caches and "/report" in reports."""
    caches: dict[str, dict[str, Tensor]] = {}
    for name, rows in tensors.items():
        owner, kind = name.split("/")
        caches.setdefault(owner, {})[kind] = rows
    reports = caches.pop("", {})
    return Cell(caches, reports)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Returns a fingerprint of names, dtypes, shapes and the CRC-32 of all values."""

    def described(name: str, rows: Tensor) -> tuple[str, str, tuple[int, ...], int]:
        return name, str(rows.dtype), tuple(rows.shape), zlib.crc32(rows.flatten().view(torch.uint8).numpy().data)

    return hashlib.sha256(repr(sorted(map(described, tensors, tensors.values()))).encode()).hexdigest()[:16]


def check_alike(path: Path, rows: Cell, own: Cell) -> None:
    """Raises ValueError if a file's rows differ in names, sizes or dtypes from rows that the session made itself.

    Args:
        path: The file.
        rows: Its rows.
        own: Rows of other tokens, of the same caches and reports or of some.
    """
    for owner, own_rows in (*own.caches.items(), ("", own.reports)):
        file_rows = rows.caches[owner] if owner else rows.reports
        if owner and set(file_rows) != set(own_rows):
            raise _unfit(path, f"holds rows of the {owner} for other layers than it has")
        axis = 2 if owner else 0
        for name, made in own_rows.items():
            found = file_rows[name]
            if found.dtype != made.dtype or found.select(axis, 0).shape != made.select(axis, 0).shape:
                raise _unfit(
                    path,
                    f"holds {owner}/{name} as {found.dtype} {list(found.shape)}, and this session makes {made.dtype} "
                    f"{list(made.shape)}",
                )


def _unfit(path: Path, why: str, method: str = "", remedy: str = "") -> ValueError:
    option = ""
    if method:
        option = f"--method {method} "
    return ValueError(f"Prefix {path} {why}. Make it again with `longgraft prefill TEXT {option}--save FILE`{remedy}.")

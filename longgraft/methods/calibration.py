"""Calibrations: the result of a warm-up (thresholds, the best fixed split, warm matrix rows) in one file.

`longgraft.eval.checks.calibrate` chooses the numbers.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longgraft.config.settings import Drafting
from longgraft.drafters.pruning import DEFAULT_THRESHOLDS
from longgraft.files.cache import cache_folder
from longgraft.files.file_errors import reason
from longgraft.files.identified_file import read_identified, save_identified
from longgraft.memories.adjacency import UNSEEN, WIDTH
from longgraft.models.catalogue import EMBEDDED, embedded
from longgraft.runtime.fingerprint import digest, vocabulary
from longgraft.target_model.model import Target
from longgraft.yarn_drafters.network import Eagle3Network

VERSION = "1"
NODES = 60  # nodes of the tree that `split` divides


@dataclass(frozen=True, eq=False)
class Calibration:
    """The numbers that a warm-up has chosen.

    Attributes:
        thresholds: tau per checkpoint.
        split: Drafted nodes kept of 60 if no gate prunes.
        snapshot: Matrix rows, [V + 1, K] int32; None: the matrix starts empty.
        source: Where the numbers come from, in words.
        about: The settings that they were chosen for.
    """

    thresholds: Mapping[int, float] = field(default_factory=lambda: dict(DEFAULT_THRESHOLDS))
    split: int = 40
    snapshot: Tensor | None = None
    source: str = "default thresholds (Qwen3-8B's, Graft Table 11)"
    about: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """Returns one clause for people."""
        taus = ", ".join(f"d{d} {tau:.2f}" for d, tau in sorted(self.thresholds.items()))
        at = ""
        if "temperature" in self.about:
            at = f" at temperature {self.about['temperature']}"
        return f"{self.source}{at}: {taus}"

    def differs(self, settings: Mapping[str, str]) -> list[str]:
        """Describes how a session's settings differ from those that this was made for; missing fields are ignored.

        Args:
            settings: Any of the keys of `made_for`.
        """
        return [
            f"{key.replace('_', ' ')} {self.about[key]}, now {value}"
            for key, value in settings.items()
            if self.about.get(key, value) != value
        ]

    def save(self, path: Path, identity: Mapping[str, str]) -> None:
        """Writes one file; `identity` names the target and the tokenizer that the ids belong to."""
        assert self.snapshot is not None
        save_identified(
            path,
            _seen_rows(self.snapshot),
            {
                "version": VERSION,
                "split": str(self.split),
                "thresholds": json.dumps({str(d): tau for d, tau in self.thresholds.items()}),
                "about": json.dumps(dict(self.about)),
            },
            identity,
        )

    @classmethod
    def load(cls, path: Path, identity: Mapping[str, str], device: torch.device) -> Calibration:
        """Reads a file; raises ValueError if it is damaged or belongs to another target or tokenizer."""
        meta, tensors = read_identified(path, identity, VERSION, _unfit)
        try:
            snapshot = _snapshot(tensors, int(identity["vocab_size"])).to(device)
            return cls(_thresholds(meta), _split(meta), snapshot, f"calibrated ({path.name})", _about(meta))
        except Exception as error:  # a foreign file can raise half a dozen types
            raise _unfit(path, f"cannot be read: {reason(error)}") from error


def made_for(budget: int, draft: Drafting) -> dict[str, str]:
    """Returns the settings that thresholds depend on, besides the temperature, as a calibration's `about`
    holds them."""
    return {
        "budget": str(budget),
        "draft_levels": str(draft.levels),
        "draft_top_k": str(draft.top_k),
        "draft_window": "all" if draft.window is None else str(draft.window),
    }


def _unfit(path: Path, why: str) -> ValueError:
    return ValueError(
        f"Calibration file {path} {why}. Delete it or make it again with `longgraft "
        "calibrate`, or pass --calibration none."
    )


def _seen_rows(snapshot: Tensor) -> dict[str, Tensor]:
    """Returns the matrix rows that hold anything, and their tokens: few of a large vocabulary."""
    rows = snapshot[:-1].cpu()
    learnt = (rows != UNSEEN).any(1).nonzero().flatten()
    return {"tokens": learnt.int(), "rows": rows[learnt].contiguous()}


def _snapshot(tensors: Mapping[str, Tensor], vocab: int) -> Tensor:
    """Returns [V + 1, K] int32, the inverse of `_seen_rows`."""
    tokens = tensors.get("tokens", torch.empty(0))
    rows = tensors.get("rows", torch.empty(0))
    width = min(WIDTH, vocab)
    fits = rows.shape[1:] == (width,) and tokens.shape == rows.shape[:1]
    if not fits or {tokens.dtype, rows.dtype} != {torch.int32}:
        raise ValueError(
            "it holds "
            f"{', '.join(f'{k} {v.dtype} {tuple(v.shape)}' for k, v in tensors.items())}; "
            f"tokens int32 (n,) and rows int32 (n, {width}) are needed"
        )
    # These ids become indices on the device, where one that is out of range ends the process.
    for ids in (tokens, rows):
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
            raise ValueError(f"it holds ids from {int(ids.min())} to {int(ids.max())}; the vocabulary has {vocab}")
    snapshot = torch.full((vocab + 1, width), UNSEEN, dtype=torch.int32)
    snapshot[tokens.long()] = rows
    return snapshot


def _thresholds(meta: Mapping[str, str]) -> dict[int, float]:
    thresholds = {int(depth): float(tau) for depth, tau in json.loads(meta["thresholds"]).items()}
    if not thresholds or not all(depth >= 0 and 0 <= tau <= 1 for depth, tau in thresholds.items()):
        raise ValueError(f"thresholds are {thresholds}; probabilities by depth are needed")
    return thresholds


def _split(meta: Mapping[str, str]) -> int:
    split = int(meta["split"])
    if not 1 <= split <= NODES:
        raise ValueError(f"split is {split}; 1 to {NODES} are needed")
    return split


def _about(meta: Mapping[str, str]) -> dict[str, str]:
    return {str(key): str(value) for key, value in json.loads(meta["about"]).items()}


def any_kept_for(target: str) -> bool:
    """True if `longgraft calibrate` has written any file for a target of this name."""
    return any(cache_folder().glob(f"{glob.escape(Path(target).name)}-*.safetensors"))


def default_path(identity: Mapping[str, str]) -> Path:
    """Returns the path at which `longgraft calibrate` writes and `load` looks, by target, tokenizer and drafter."""
    name = "-".join(identity[key] for key in ("target", "tokenizer", "weights", "drafter")) + ".safetensors"
    return cache_folder() / name


def calibration_of(target: Target, tokenizer: Any, network: Eagle3Network | None, given: str | None) -> Calibration:
    """Returns the calibration of a session.

    given: a file; auto: the file that `longgraft calibrate` wrote, or the one that ships; None: no calibration

    Raises:
        ValueError: the file does not exist, is damaged, or belongs to another target, tokenizer or drafter.
    """
    ships = target.name == EMBEDDED
    if given is None or (given == "auto" and not ships and not any_kept_for(target.name)):
        return Calibration()  # returned early, because a vocabulary's fingerprint takes a second
    identity = identity_of(target, tokenizer, network)
    if given == "auto":
        path = default_path(identity)
        if path.exists():
            return Calibration.load(path, identity, target.device)
        if ships:
            with suppress(ValueError):  # with another head, or none, the shipped one does not apply
                return Calibration.load(embedded("calibration.safetensors"), identity, target.device)
        return Calibration()
    path = Path(given)
    if not path.exists():
        raise ValueError(f"Calibration file {path} does not exist. Make it with `longgraft calibrate --out {path}`.")
    return Calibration.load(path, identity, target.device)


def identity_of(target: Target, tokenizer: Any, network: Eagle3Network | None) -> dict[str, str]:
    """Returns what a calibration belongs to: token ids to a tokenizer and target, thresholds to a drafter.

    A few rows of the head identify the weights. They are spread over the vocabulary, whose end is often unused padding.
    """
    rows = target.head.weight[:: max(1, target.vocab_size // 8)]
    drafter = "none" if network is None else digest([network.config, network.fc.weight[0].tolist()])
    numbers = {} if target.weights == "float" else {"linear weights": target.weights}
    return {
        **numbers,
        "target": Path(target.name).name,
        "vocab_size": str(target.vocab_size),
        "tokenizer": vocabulary(tokenizer),
        "weights": digest(rows.tolist()),
        "drafter": drafter,
    }

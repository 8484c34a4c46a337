"""What a warm-up leaves behind: thresholds, the best fixed split, and warm rows of the matrix, in one file.

Knows files and identities; how the numbers are chosen is `longgraft.eval.checks.calibrate`'s affair.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from longgraft.drafters.policies import DEFAULT_THRESHOLDS
from longgraft.memories.adjacency import load_rows, save_rows

VERSION = "1"


@dataclass(frozen=True, eq=False)
class Calibration:
    """thresholds: tau per checkpoint; split: nodes kept of 60 when nothing is pruned; snapshot: [V + 1, K] int32."""

    thresholds: Mapping[int, float] = field(default_factory=lambda: dict(DEFAULT_THRESHOLDS))
    split: int = 40
    snapshot: Tensor | None = None
    source: str = "default thresholds (Qwen3-8B's, Graft Table 11)"
    about: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """One clause for people."""
        taus = ", ".join(f"d{d} {tau:.2f}" for d, tau in sorted(self.thresholds.items()))
        return f"{self.source}: {taus}"

    def save(self, path: Path, identity: Mapping[str, str]) -> None:
        """One safetensors file; `identity` names the target and tokenizer that the ids belong to."""
        assert self.snapshot is not None
        path.parent.mkdir(parents=True, exist_ok=True)
        save_rows(path, self.snapshot, {
            "version": VERSION, "identity": json.dumps(dict(identity)), "split": str(self.split),
            "thresholds": json.dumps({str(d): tau for d, tau in self.thresholds.items()}),
            "about": json.dumps(dict(self.about))})

    @classmethod
    def load(cls, path: Path, identity: Mapping[str, str], device: torch.device) -> Calibration:
        """ValueError where the file belongs to another target or tokenizer."""
        try:
            snapshot, meta = load_rows(path, int(identity["vocab_size"]), device)
            found = json.loads(meta["identity"]) | {"version": meta["version"]}
            thresholds = {int(d): float(tau) for d, tau in json.loads(meta["thresholds"]).items()}
            split, about = int(meta["split"]), json.loads(meta["about"])
        except Exception as error:      # a cut or foreign file raises half a dozen types
            raise ValueError(f"Calibration file {path} cannot be read ({type(error).__name__}: {error}). "
                             "Make it again with `longgraft calibrate`.") from error
        for key, needed in {**identity, "version": VERSION}.items():
            if found.get(key) != needed:
                raise ValueError(f"Calibration file {path} belongs to {key} {found.get(key)!r}, and {needed!r} is "
                                 "loaded. Calibrate this one, or pass --calibration none.")
        return cls(thresholds, split, snapshot, f"calibrated ({path.name})", about)


def default_path(identity: Mapping[str, str]) -> Path:
    """Where `longgraft calibrate` writes and `load` looks, per target, tokenizer and drafter."""
    name = "-".join(identity[key] for key in ("target", "tokenizer", "weights", "drafter")) + ".safetensors"
    return Path.home() / ".cache" / "longgraft" / name

"""Reads a run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longgraft.eval.runs.batches import Batch, read_batches
from longgraft.eval.runs.rows import Result, read_rows
from longgraft.eval.runs.variants import COLD
from longgraft.files.data_files import read_table

CONFIG: Mapping[str, type | tuple[type, ...]] = {
    "max_new_tokens": int,
    "repeats": int,
    "seed": int,
    "temperature": (int, float),
}
ENVIRONMENT: Mapping[str, type | tuple[type, ...]] = {
    "target": str,
    "dtype": str,
    "attention": str,
    "device": str,
    "threads": int,
    "torch": str,
    "transformers": str,
    "git": str,
}


@dataclass(frozen=True)
class Run:
    """A run that was measured."""

    folder: Path
    rows: list[Result]  # one decoding each
    config: Mapping[str, Any]
    environment: Mapping[str, Any]  # code, versions and device that it ended with
    batches: Sequence[Batch] = ()  # the rows of `--concurrency`

    @classmethod
    def read(cls, folder: Path) -> Run:
        """Reads a folder; a ValueError names the file, and what of it is missing or has another shape."""
        return cls(
            folder,
            read_rows(folder),
            read_table(folder / "config.json", CONFIG),
            read_table(folder / "environment.json", ENVIRONMENT),
            read_batches(folder),
        )

    @property
    def on_cpu(self) -> bool:
        """True if the run was measured on a CPU."""
        return self.environment["device"].startswith("CPU")

    @property
    def times_parts(self) -> bool:
        """True if the seconds of a step's parts are what they took; on a GPU they are launch times without a
        profile."""
        return self.on_cpu or bool(self.config.get("profile"))

    @property
    def default(self) -> str:
        """Returns the method that sessions use by default with this target and drafter."""
        from longgraft.methods.needs import AUTO, default_method  # needs torch; runs are read without it

        drafter = self.config.get("drafter", AUTO)
        if drafter == COLD:
            drafter = None
        return default_method(self.environment["target"], drafter)

    def describe(self) -> str:
        """Describes the run in one line."""
        about = self.environment
        git = about["git"][:12]
        if about.get("changed"):
            git += " with uncommitted changes"
        return (
            f"{self.folder}: {about['target']} in {numbers(about)} on {about['device']}, {about['threads']} "
            f"threads, git {git}, {about.get('time', 'at an unknown time')}"
        )


def numbers(environment: Mapping[str, Any]) -> str:
    """Returns the number formats in which a run computed, for people."""
    weights = environment.get("weights", "float")
    if weights == "float":
        return str(environment["dtype"])
    return f"{environment['dtype']}, {weights} weights"

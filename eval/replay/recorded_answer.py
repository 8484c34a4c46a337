"""Answers that models really gave, as token ids with their prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from longgraft.files.whole_files import write_whole
from longgraft.runtime.fingerprint import digest


@dataclass(frozen=True)
class RecordedAnswer:
    """An answer, and the prompt that it was given to.

    Attributes:
        suite: Name of the group that is averaged; its answers share one tokenizer.
        id: Identity of the prompt within the suite.
        prompt: Token ids.
        answer: Token ids.
    """

    suite: str
    id: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    def beside(self, path: Path, kind: str) -> Path:
        """Returns the file of its "rows" or "drafts", if there are any, beside a file of answers."""
        return path.with_suffix(f".{kind}") / f"{digest(self.suite + self.id)}.npz"

    @staticmethod
    def save(answers: Sequence[RecordedAnswer], path: Path) -> None:
        """Writes a log (`read_log`)."""
        write_whole(path, "".join(json.dumps(asdict(one)) + "\n" for one in answers))

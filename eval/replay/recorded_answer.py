"""Answers that models really gave, as token ids with their prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from longgraft.config.json_lines import read_json_lines
from longgraft.runtime.fingerprint import digest


@dataclass(frozen=True)
class RecordedAnswer:
    """An answer, and the prompt that it was given to.

    Attributes:
        suite: Name of the group that is averaged; its answers share one tokenizer.
        id: Identity of the prompt within the suite.
        row: Identity of the row that the prompt was made from; all its prompts are in one half of the answers.
        prompt: Token ids.
        answer: Token ids.
    """

    suite: str
    id: str
    row: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    def beside(self, path: Path, kind: str) -> Path:
        """Returns the file of its "rows" or "drafts", if there are any, beside a file of answers."""
        return path.with_suffix(f".{kind}") / f"{digest(self.suite + self.id)}.npz"

    @classmethod
    def load(cls, path: Path) -> list[RecordedAnswer]:
        """Reads the file that `save` writes."""
        rows = [line.value for line in read_json_lines(path)]
        return [cls(row["suite"], row["id"], row["row"], tuple(row["prompt"]), tuple(row["answer"])) for row in rows]

    @staticmethod
    def save(answers: Sequence[RecordedAnswer], path: Path) -> None:
        """Writes one line of JSON for each answer."""
        path.write_text("".join(json.dumps(asdict(one)) + "\n" for one in answers), encoding="utf-8")

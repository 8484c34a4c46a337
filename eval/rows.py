"""Real rows: LongBench-schema files with their official prompts, recordings to replay, warm-up prompts.

Knows files; knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLUMNS = ("prompt", "text", "context")


@dataclass(frozen=True)
class Row:
    """A LongBench-schema row.  suite: qmsum, lcc, ...; continuation: recorded text to replay, "" for none."""

    suite: str
    id: str
    template: str
    context: str
    input: str
    continuation: str

    def prompt(self, context: str | None = None) -> str:
        """The official prompt, of the whole context or of the part that is given."""
        return self.template.format(context=self.context if context is None else context, input=self.input)

    def fit(self, encode: Callable[[str], list[int]], length: int) -> list[int] | None:
        """The prompt's ids with leading lines of the context left out until at most `length` remain.

        None where the whole prompt is shorter than nine tenths of that: it would stand for another length.
        """
        ids = encode(self.prompt())
        if len(ids) < 0.9 * length:
            return None
        lines = self.context.splitlines(keepends=True)
        low, high = 0, len(lines)       # the fewest dropped lines that fit, by bisection
        while low < high:
            middle = (low + high) // 2
            if len(encode(self.prompt("".join(lines[middle:])))) > length:
                low = middle + 1
            else:
                high = middle
        return encode(self.prompt("".join(lines[low:])))


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """ValueError names the line that is not JSON, or the file that cannot be read."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"File {path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error.msg}).") from error


def read_prompts(path: Path, count: int) -> list[str]:
    """The first `count` prompts: a text file is one; JSONL rows have turns, prompt, text or context."""
    if Path(path).suffix not in (".jsonl", ".json"):
        return [_text(path)]
    prompts: list[str] = []
    for row in read_jsonl(path):
        if len(prompts) == count:
            break
        column = next((c for c in COLUMNS if row.get(c)), None)
        if row.get("turns"):
            prompts.append(row["turns"][0])
        elif column is not None:
            prompts.append(row[column])
        else:
            raise ValueError(f"{path}: a row has none of turns, {', '.join(COLUMNS)} (it has {', '.join(row)}).")
    if not prompts:
        raise ValueError(f"{path} has no rows.")
    return prompts


def read_suite(folder: Path, suite: str) -> list[Row]:
    """A LongBench suite of a folder with `<suite>.jsonl`, `longbench_prompts.json`, meta and recorded rows."""
    folder = Path(folder)
    template = json.loads(_text(folder / "longbench_prompts.json"))[suite]["prompt"]
    recorded: dict[str, str] = {}
    for row in read_jsonl(folder / "recorded.jsonl"):
        if row["dataset"] == suite:
            # Of several models' answers the longest that is no loop; a runaway part is cut.
            text = row["continuation"][:row.get("runaway_at") or None]
            if len(text) > len(recorded.get(row["_id"], "")):
                recorded[row["_id"]] = text
    true = {row["_id"]: row["continuation"] for row in read_jsonl(folder / "meta.jsonl") if row.get("continuation")}
    return [Row(suite, row["_id"], template, row["context"], row["input"],
                true.get(row["_id"]) or recorded.get(row["_id"], ""))
            for row in read_jsonl(folder / f"{suite}.jsonl")]


def _text(path: Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"File {path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error

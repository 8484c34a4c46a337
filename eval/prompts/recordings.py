"""The answers of a run as texts that any model can replay.  Knows a run's folder and its target's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.report import read_rows
from longgraft.needs import EMBEDDED, embedded


def recordings(rows: Sequence[Mapping[str, Any]], tokenizer: Any, model: str) -> list[dict[str, str]]:
    """{_id, suite, continuation, model} of every answer in the rows; of several prompt lengths, the longest one's."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in sorted(rows, key=lambda row: row["bucket"]):
        text = tokenizer.decode(row["token_ids"], skip_special_tokens=True)
        if text:        # an answer that ended at once cannot be replayed
            suite = suite_name(row["suite"])
            found[suite, row["prompt_id"]] = {"_id": row["prompt_id"], "suite": suite, "continuation": text,
                                              "model": model}
    return list(found.values())


def write(folder: Path, out: Path, mode: str, method: str) -> int:
    """A run's answers in one mode by one method into a JSONL file; returns how many.

    ValueError where the run has none, or the file exists.
    """
    from transformers import AutoTokenizer

    rows = [row for row in read_rows(folder) if "error" not in row and row["repeat"] == 0]
    mine = [row for row in rows if (row["mode"], row["method"]) == (mode, method)]
    if not mine:
        has = ", ".join(sorted({f"{row['method']} {row['mode']}" for row in rows})) or "no answers"
        raise ValueError(f"{folder} has no answers of {method}, {mode}. It has: {has}.")
    if out.exists():
        raise ValueError(f"{out} exists already. Give another --out.")
    config, environment = (json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
                           for name in ("config", "environment"))
    model = config["model"]
    tokenizer = AutoTokenizer.from_pretrained(embedded("target") if model in (None, EMBEDDED) else model)
    found = recordings(mine, tokenizer, environment["target"])
    out.write_text("".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in found), encoding="utf-8")
    return len(found)

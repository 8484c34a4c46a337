"""Writes the answers of a run as texts that any model can replay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.groups import decodings, grouped
from longgraft.eval.runs.folder import Run
from longgraft.eval.runs.plan import Reader
from longgraft.eval.runs.rows import Row
from longgraft.files.new_paths import new_file
from longgraft.files.whole_files import write_whole


def recordings(rows: Sequence[Row], tokenizer: Any, model: str) -> list[dict[str, str]]:
    """Returns {_id, suite, continuation, model} of every answer; of several lengths, the longest one's."""
    answers: dict[tuple[str, str], dict[str, str]] = {}
    for row in sorted(rows, key=lambda row: row.key.bucket):
        text = tokenizer.decode(row.token_ids, skip_special_tokens=True)
        if text:  # an answer that ended at once cannot be replayed
            suite = suite_name(row.key.suite)
            prompt = row.key.prompt_id
            answers[suite, prompt] = {"_id": prompt, "suite": suite, "continuation": text, "model": model}
    return list(answers.values())


def write(folder: Path, out: Path, mode: str, method: str) -> int:
    """Writes a run's answers in one mode by one method into a JSONL file; returns their number.

    Raises:
        ValueError: the run has no such answers, or the file exists.
    """
    new_file(out)
    run = Run.read(folder)
    rows = [row for row in decodings(run.rows) if row.key.repeat == 0]
    groups = grouped(rows, lambda row: f"{row.key.method} {row.key.mode}")
    rows_of_method = groups.get(f"{method} {mode}")
    if rows_of_method is None:
        present = ", ".join(sorted(groups)) or "no answers"
        raise ValueError(f"{folder} has no answers of {method}, {mode}. It has: {present}.")
    tokenizer = Reader.open(run.config.get("model")).tokenizer
    answers = recordings(rows_of_method, tokenizer, run.environment["target"])
    write_whole(out, "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers))
    return len(answers)

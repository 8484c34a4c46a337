"""Answers that models really gave, as token ids with their prompts, in a file that `benchmarks.policies` replays."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.agents import Edit, conversations
from longgraft.config.json_lines import read_json_lines
from longgraft.eval.prompts.buckets import WHOLE, as_it_is, fit, plan
from longgraft.eval.prompts.suites import Example, load_suite
from longgraft.runtime.fingerprint import digest

LONG_SUITES = ("lcc", "repobench-p", "gov_report", "multi_news", "qmsum")
QUESTIONS = "questions"
MOST = 200  # tokens of an answer that are kept; a benchmark asks for 64 to 512
EDIT_MOST = 400  # the same of an agent's edit, whose copies are longer
LONGEST = 16384  # tokens of a prompt


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


def of_other_models(data: Path, tokenizer: Any, lengths: Sequence[int], prompts: int) -> Iterator[RecordedAnswer]:
    """Yields the recorded continuations of long rows, of which the longest of each row."""
    for suite in LONG_SUITES:
        examples = [example for example in load_suite(suite, data) if example.recording]
        for length, fitted in plan(examples, tokenizer, lengths, prompts).items():
            for one in fitted:
                answer = tokenizer(one.example.recording, add_special_tokens=False)["input_ids"][:MOST]
                yield RecordedAnswer(
                    f"{suite}, {length // 1024}K", one.example.id, one.example.id, one.ids, tuple(answer)
                )


def of_result_rows(rows: Path, data: Path, tokenizer: Any, name: str) -> Iterator[RecordedAnswer]:
    """Yields the answers of plain greedy decoding in a sweep's rows; name: the model's, for the suites' names."""
    suites: dict[str, dict[str, Example]] = {}
    for line in read_json_lines(rows):
        row = line.value
        if (row["method"], row["mode"], row["repeat"]) != ("ar", "greedy", 0) or row["bucket"] > LONGEST:
            continue
        suite = row["suite"]
        if suite not in suites:
            suites[suite] = {example.id: example for example in load_suite(suite, data)}
        example = suites[suite].get(row["prompt_id"])
        if example is None:  # a later turn, whose prompt contains earlier answers
            continue
        fitted = as_it_is(example, tokenizer) if row["bucket"] == WHOLE else fit(example, tokenizer, row["bucket"])
        if fitted is not None and len(fitted.ids) == row["prompt_tokens"]:
            # Lengths are apart: the same row has about the same answer at each.
            group = QUESTIONS if row["bucket"] == WHOLE else f"{suite}, {row['bucket'] // 1024}K"
            identity = f"{suite} {example.id} {row['bucket']}"
            yield RecordedAnswer(f"{group} ({name})", identity, example.id, fitted.ids, tuple(row["token_ids"]))


def of_edits(edits: Path, tokenizer: Any, turns: int = 2) -> Iterator[RecordedAnswer]:
    """Yields the edits of a coding agent that `benchmarks.agents build` found, as blocks and as whole files."""
    known = [Edit(**line.value) for line in read_json_lines(edits)]
    for form in ("blocks", "file"):
        for session, made in conversations(known, form, turns):
            for number, (messages, said) in enumerate(made, 1):
                prompt = tokenizer.apply_chat_template(
                    messages, tokenize=True, add_generation_prompt=True, return_dict=True
                )["input_ids"]
                answer = tokenizer(said, add_special_tokens=False)["input_ids"][:EDIT_MOST]
                if len(prompt) <= LONGEST:
                    yield RecordedAnswer(f"edits, {form}", f"{session}#{number}", session, tuple(prompt), tuple(answer))


def distinct(answers: Sequence[RecordedAnswer]) -> list[RecordedAnswer]:
    """Leaves out answers to a prompt that the suite has already."""
    return list({(one.suite, one.id): one for one in answers}.values())

"""Makes a file of answers that models really gave, as token ids with their prompts, for `longgraft estimate`.

python -m benchmarks.recorded_answers answers.jsonl --data ROWS --rows RUN/per_prompt.jsonl.gz
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from benchmarks.agents import Edit, conversations
from longgraft.eval.prompts.buckets import WHOLE, as_it_is, fit, plan
from longgraft.eval.prompts.suites import Example, load_suite
from longgraft.eval.replay.recorded_answer import RecordedAnswer
from longgraft.files.json_lines import read_json_lines

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

LONG_SUITES = ("lcc", "repobench-p", "gov_report", "multi_news", "qmsum")
QUESTIONS = "questions"
MOST = 200  # tokens of an answer that are kept; a benchmark asks for 64 to 512
EDIT_MOST = 400  # the same of an agent's edit, whose copies are longer
LONGEST = 16384  # tokens of a prompt


def of_other_models(data: Path, tokenizer: Any, lengths: Sequence[int], prompts: int) -> Iterator[RecordedAnswer]:
    """Yields the recorded continuations of long rows, of which the longest of each row."""
    for suite in LONG_SUITES:
        examples = [example for example in load_suite(suite, data) if example.recording]
        for length, fitted in plan(examples, tokenizer, lengths, prompts).items():
            for one in fitted:
                answer = tokenizer(one.example.recording, add_special_tokens=False)["input_ids"][:MOST]
                yield RecordedAnswer(f"{suite}, {length // 1024}K", one.example.id, one.ids, tuple(answer))


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
            yield RecordedAnswer(f"{group} ({name})", identity, fitted.ids, tuple(row["token_ids"]))


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
                    yield RecordedAnswer(f"edits, {form}", f"{session}#{number}", tuple(prompt), tuple(answer))


def distinct(answers: Sequence[RecordedAnswer]) -> list[RecordedAnswer]:
    """Leaves out answers to a prompt that the suite has already."""
    return list({(one.suite, one.id): one for one in answers}.values())


@app.command()
def build(
    out: Path,
    data: Annotated[Path, typer.Option(help="Folder of the suites' rows and recordings.")],
    rows: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(help="Rows of sweeps of this model."),
    ] = None,
    edits: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Edits that `benchmarks.agents build` found."),
    ] = None,
    model: str = "qwen2.5-coder-0.5b",
    lengths: str = "4096,16384",
    prompts: int = 16,
) -> None:
    """Write recorded answers in the tokens of a model, whose weights are not needed."""
    from transformers import AutoTokenizer

    from longgraft.models.files import files_of

    tokenizer = AutoTokenizer.from_pretrained(files_of(model).path)
    found = list(of_other_models(data, tokenizer, [int(length) for length in lengths.split(",")], prompts))
    for path in rows or []:
        found += of_result_rows(path, data, tokenizer, model)
    if edits is not None:
        found += of_edits(edits, tokenizer)
    RecordedAnswer.save(distinct(found), out)
    print(f"{out}: {len(found)} answers of {len({one.suite for one in found})} suites")


if __name__ == "__main__":
    app()

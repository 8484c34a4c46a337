"""Evaluation prompts by name: LongBench, PG-19, Spec-Bench, EAGLE's question sets, SPEED-Bench, any JSONL file.

Knows files, the hub and the prompts' parts; knows no length (it asks a tokenizer for ids), no method and no model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from longgraft.eval.catalogue import SUITES, Suite
from longgraft.eval.sources import Row, hub_rows, is_path, local_file, read_rows, text_of

__all__ = ["SUITES", "Example", "load_suite"]

Recordings = dict[str, dict[str, str]]      # row id -> who said it -> text

IDS = ("_id", "id", "question_id", "task_id", "prompt_id")
QUESTIONS = ("prompt", "question", "instruction")
# What SPEED-Bench has on the hub for prompts that its sources do not let it pass on.
WITHHELD = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"


@dataclass(frozen=True)
class Example:
    """One evaluation prompt: before + body + after, of which only the body may be cut."""

    suite: str
    id: str
    before: str                         # the template up to the context; the whole prompt of a short question
    body: str                           # the long context; "" for questions
    after: str                          # the rest of the template
    answers: tuple[str, ...] = ()
    follow_ups: tuple[str, ...] = ()    # later turns of multi-turn questions
    chat: bool = True                   # through the target's chat template; False: text to be continued
    unit: str = "line"                  # where the body may be cut: between turns, sentences or lines
    max_new_tokens: int | None = None   # the benchmark's own
    # Texts to replay, by who said them: "true" (the file's own next text) or a model's name.
    continuations: Mapping[str, str] = field(default_factory=dict, hash=False)

    def prompt(self, body: str | None = None) -> str:
        """The prompt, of the whole body or of the part of it that is given."""
        return self.before + (self.body if body is None else body) + self.after

    def encode(self, tokenizer: Any, body: str | None = None) -> list[int]:
        """What is fed: the chat template's ids up to the answer where there is a template, else the plain text's."""
        if self.chat and getattr(tokenizer, "chat_template", None):
            return tokenizer.apply_chat_template([{"role": "user", "content": self.prompt(body)}], tokenize=True,
                                                 add_generation_prompt=True, return_dict=True)["input_ids"]
        return tokenizer(self.prompt(body))["input_ids"]


def load_suite(name: str, data: Path | None = None, recorded: Sequence[Path] = ()) -> list[Example]:
    """All prompts of a suite, in its own order.

    name:     one of SUITES, the stem of a JSONL file in `data`, or the path of any JSONL file
    data:     folder of <suite>.jsonl (or eagle_<suite>.jsonl) and, where there are any, longbench_prompts.json,
              meta.jsonl (true continuations) and recorded.jsonl; None: the hub
    recorded: more JSONL files of {_id, continuation[, model]}; without a model, the file's stem is its name
    """
    path, suite = local_file(name, data), SUITES.get(name)
    if path is not None:
        rows = read_rows(path)
    elif suite is not None:
        rows = hub_rows(name, suite)
    else:
        raise ValueError(f"Suite {name!r} is unknown. Known: {', '.join(SUITES)}.\n"
                         "Or give the path of a JSONL file (ending .jsonl), or a folder (--data) that holds "
                         f"{name}.jsonl.")
    said, catalogue = _recordings(data, recorded), _catalogue(data)
    name = path.stem if path is not None and is_path(name) else name
    return _distinct([(where, _example(name, where, number, row, catalogue, said))
                      for number, (where, row) in enumerate(rows, 1)])


def _example(name: str, where: str, number: int, row: Row, catalogue: Mapping[str, Suite],
             said: Recordings) -> Example:
    """One row; a row of any file that names its LongBench dataset gets that dataset's prompt and length."""
    dataset = str(row.get("dataset"))
    if dataset in catalogue and catalogue[dataset].template and "context" in row:
        name = dataset
    suite = catalogue.get(name, Suite(""))
    parts = _long(where, row, suite) if suite.template else _free(where, row, suite)
    if any(WITHHELD in text for text in (parts["before"], *parts.get("follow_ups", ()))):
        raise ValueError(f"{where}: the hub has no text for this prompt, only a note that it may not be passed on.\n"
                         "Run prepare_data.py of NVIDIA/Model-Optimizer's examples/specdec_bench and give the path of "
                         "the JSONL file that it writes.")
    identity = next((str(row[column]) for column in IDS if row.get(column) is not None), f"{name}-{number}")
    own = {str(row.get("model") or "true"): row["continuation"]} if row.get("continuation") else {}
    return Example(name, identity, **parts, answers=_answers(row), max_new_tokens=suite.max_new_tokens,
                   continuations=own | said.get(identity, {}))


def _long(where: str, row: Row, suite: Suite) -> dict[str, Any]:
    """A context in its official prompt."""
    context = text_of(where, row, ("context", "text"))
    question = text_of(where, row, ("input",)) if "{input}" in suite.template else ""
    before, _, after = suite.template.partition("{context}")
    if after.startswith("{input}"):
        # The file's own code follows that of other files directly: one text, to be cut from its far end.
        context, after = context + question, after.removeprefix("{input}")
    return {"before": before.replace("{input}", question), "body": context,
            "after": after.replace("{input}", question), "unit": suite.unit, "chat": suite.chat}


def _free(where: str, row: Row, suite: Suite) -> dict[str, Any]:
    """Whatever prompt column there is.  Questions are asked whole; a context may be cut; a lone text is continued."""
    if row.get("messages"):
        return _turns(where, _spoken(where, row["messages"]))
    columns = [column for column in ("turns", suite.column, *QUESTIONS) if column and row.get(column)]
    asked = next((column for column in (*columns, "input") if column != "turns" and row.get(column)), None)
    if row.get("context") and asked:
        after = "\n\n" + text_of(where, row, (asked,))
        return {"before": "", "body": text_of(where, row, ("context",)), "after": after, "unit": "sentence"}
    if columns and isinstance(row[columns[0]], list):
        return _turns(where, row[columns[0]])
    if columns:
        more = "\n\n" + row["input"] if columns[0] == "instruction" and row.get("input") else ""    # Alpaca's
        lead = suite.lead if columns[0] == suite.column else ""
        return {"before": lead + text_of(where, row, (columns[0],)) + more, "body": "", "after": ""}
    if lone := next((column for column in ("text", "context") if row.get(column)), None):
        return {"before": "", "body": text_of(where, row, (lone,)), "after": "", "chat": False}
    raise ValueError(f"{where}: no prompt. Needed: one of messages, turns, {', '.join(QUESTIONS)}, text, context.\n"
                     f"Columns found: {', '.join(row) or 'none'}.")


def _turns(where: str, turns: list[Any]) -> dict[str, Any]:
    if not all(isinstance(turn, str) and turn for turn in turns):
        raise ValueError(f"{where}: turns must be a list of texts, and one is empty or something else.")
    return {"before": turns[0], "body": "", "after": "", "follow_ups": tuple(turns[1:])}


def _spoken(where: str, messages: Any) -> list[Any]:
    """The user's turns of chat messages; what the system says goes before the first, what the assistant said is left
    out: the target answers for itself."""
    try:
        users = [message["content"] for message in messages if message["role"] == "user"]
        system = [message["content"] for message in messages if message["role"] == "system"]
    except (TypeError, KeyError) as error:
        raise ValueError(f"{where}: messages must be a list of {{role, content}}.") from error
    if not users:
        raise ValueError(f"{where}: messages hold no user's turn.")
    if system and all(isinstance(text, str) for text in (*system, users[0])):
        users[0] = "\n\n".join((*system, users[0]))
    return users


def _answers(row: Row) -> tuple[str, ...]:
    found = next((row[column] for column in ("answers", "reference", "answer") if row.get(column)), ())
    return (found,) if isinstance(found, str) else tuple(map(str, found)) if isinstance(found, Sequence) else ()


def _distinct(located: list[tuple[str, Example]]) -> list[Example]:
    """ValueError where two rows share an id: resuming, pairing and recordings go by it."""
    seen: dict[str, str] = {}
    for where, example in located:
        if example.id in seen:
            raise ValueError(f"{where}: id {example.id!r} is that of {seen[example.id]} already. Ids must differ.")
        seen[example.id] = where
    return [example for _, example in located]


def _recordings(data: Path | None, recorded: Sequence[Path]) -> Recordings:
    """All recorded texts; a runaway part (the model starting a prompt of its own) is cut off."""
    beside = [] if data is None else [Path(data) / "meta.jsonl", Path(data) / "recorded.jsonl"]
    files = [(path, "true", False) for path in beside if path.is_file()]
    files += [(Path(path), Path(path).stem, True) for path in recorded]
    said: Recordings = {}
    for path, who, needed in files:
        for where, row in read_rows(path):
            if not needed and not row.get("continuation"):
                continue        # meta.jsonl has a line for every row, and a continuation for some
            text = text_of(where, row, ("continuation",))[:row.get("runaway_at")]
            identity = next((str(row[column]) for column in IDS if row.get(column) is not None), None)
            if identity is None:
                raise ValueError(f"{where}: no id of the row that was continued. Needed: _id; columns found: "
                                 f"{', '.join(row)}.")
            if text:
                said.setdefault(identity, {})[str(row.get("model") or who)] = text
    return said


def _catalogue(data: Path | None) -> dict[str, Suite]:
    """SUITES, with the prompts and lengths of the folder's longbench_prompts.json where it has one."""
    path = None if data is None else Path(data) / "longbench_prompts.json"
    if path is None or not path.is_file():
        return SUITES
    found = dict(SUITES)
    try:
        for name, entry in json.loads(path.read_text(encoding="utf-8")).items():
            if isinstance(entry, dict):     # beside them lies a note on their source
                found[name] = replace(SUITES.get(name, Suite("", unit="sentence")), template=entry["prompt"],
                                      max_new_tokens=entry.get("max_gen"))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} must map suites to {{prompt, max_gen}}: {type(error).__name__}: {error}.") from error
    for name, suite in found.items():
        if suite.template and suite.template.count("{context}") != 1:
            raise ValueError(f"{path}: the prompt of {name} must contain {{context}} once.")
    return found

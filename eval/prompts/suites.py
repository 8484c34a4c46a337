"""Evaluation prompts by name: LongBench, PG-19, Spec-Bench, EAGLE's question sets, SPEED-Bench, any JSONL file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from longgraft.config.chat_messages import chat_message
from longgraft.config.data_files import parse_object, read_text, whole
from longgraft.eval.prompts.catalogue import SUITES, Suite
from longgraft.eval.prompts.sources import Row, hub_rows, identity_of, is_path, local_file, read_rows, text_of
from longgraft.runtime.fingerprint import digest

__all__ = ["SUITES", "Example", "load_suite"]

Recordings = dict[str, dict[str, str]]      # row id -> source (`true` or a model) -> text

QUESTIONS = ("prompt", "question", "instruction")
# Columns of an edit: CanItEdit's names first, then CommitPack's.  InstructCoder's input and output are also those of
# ordinary instructions, so they must be renamed.
BEFORE = ("before", "old_contents")
AFTER = ("after", "new_contents")
ASKED = ("instruction", "instruction_descriptive", "instruction_lazy", "message")
EDIT = "\n\nEdit this file: {}\nAnswer with the whole file as it is afterwards, and nothing else."
# The text on the hub in place of prompts that SPEED-Bench's sources do not let it pass on.
WITHHELD = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"


@dataclass(frozen=True)
class Example:
    """One evaluation prompt: before + body + after; only the body may be cut."""

    suite: str
    id: str
    before: str                         # the template up to the context; the whole prompt of a short question
    body: str                           # the long context; "" for questions
    after: str                          # the rest of the template
    answers: tuple[str, ...] = ()
    follow_ups: tuple[str, ...] = ()    # later turns of multi-turn questions
    chat: bool = True                   # use the target's chat template; False: text to be continued
    unit: str = "line"                  # where the body may be cut: between turns, sentences or lines
    max_new_tokens: int | None = None   # the benchmark's own limit
    # Texts to replay, by source: "true" (the file's own next text) or a model's name.
    # The user's texts come first, in the given order, then "true", then the others, longest first.
    continuations: Mapping[str, str] = field(default_factory=dict, hash=False)
    later: tuple[Mapping[str, str], ...] = field(default=(), hash=False)     # continuations of the later turns
    history: tuple[tuple[str, str], ...] = ()       # (question, answer) of earlier turns
    prediction: str = ""                # text that the answer may repeat: the file to edit

    @property
    def turn(self) -> int:
        return len(self.history) + 1

    @property
    def turn_ids(self) -> tuple[str, ...]:
        """Ids of this turn and of all later turns."""
        first = self.id.removesuffix(f"#{self.turn}") if self.history else self.id
        return self.id, *(turn_id(first, self.turn + n) for n, _ in enumerate(self.follow_ups, 1))

    @property
    def recording(self) -> str:
        """The text that is replayed: the first of the continuations; "" if there are none."""
        return next(iter(self.continuations.values()), "")

    def next_turn(self, answer: str) -> Example:
        """Returns the follow-up, asked after this answer; it is replayed only if the turns before it are."""
        texts = self.later[0] if self.later and self.continuations else {}
        return replace(self, id=self.turn_ids[1], before=self.follow_ups[0], body="", after="", answers=(),
                       follow_ups=self.follow_ups[1:], continuations=texts, later=self.later[1:],
                       history=(*self.history, (self.prompt(), answer)))

    def turns(self) -> list[Example]:
        """Returns this turn and the later ones, without the answers between them."""
        found = [self]
        while found[-1].follow_ups:
            found.append(found[-1].next_turn(""))
        return found

    def prompt(self, body: str | None = None) -> str:
        """Returns the prompt with the whole body, or with the given part of it."""
        return self.before + (self.body if body is None else body) + self.after

    def fingerprint(self, mode: str) -> str:
        """Returns the fingerprint of the uncut texts that an answer in this mode depends on; answers before it are left
        out, because each has a row of its own."""
        asked = [question for question, _ in self.history] + [self.prompt()]
        predicted = (self.prediction,) if self.prediction else ()
        return digest((asked, self.chat, self.max_new_tokens, self.recording if mode == "replay" else "", *predicted))

    def predicted(self, tokenizer: Any) -> list[int]:
        """Returns the ids of the prediction; [] if there is none."""
        if not self.prediction:
            return []
        return list(tokenizer(self.prediction, add_special_tokens=False)["input_ids"])

    def encode(self, tokenizer: Any, body: str | None = None) -> list[int]:
        """Returns the ids that are fed.

        With a chat template these are the template's ids up to the answer; otherwise they are the plain text's, with
        blank lines between turns and answers.
        """
        spoken = [text for asked_and_said in self.history for text in asked_and_said] + [self.prompt(body)]
        if self.chat and getattr(tokenizer, "chat_template", None):
            messages = [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(spoken)]
            return tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True,
                                                 return_dict=True)["input_ids"]
        return tokenizer("\n\n".join(spoken))["input_ids"]


def turn_id(first: str, turn: int) -> str:
    """Returns the id of a conversation's turn: 81, 81#2, 81#3, ..."""
    return first if turn == 1 else f"{first}#{turn}"


@dataclass(frozen=True)
class _Recorded:
    """Recorded texts; given: from the user; in_data: from files in the folder of the rows."""

    given: Recordings
    in_data: Recordings

    def of(self, identity: str, own: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns source -> text of a row, in the order of `Example.continuations`; own: texts in the row itself."""
        given, others = self.given.get(identity, {}), {**(own or {}), **self.in_data.get(identity, {})}
        ranked = sorted(others.items(), key=lambda one: (one[0] != "true", -len(one[1])))
        return given | {source: text for source, text in ranked if source not in given}


def load_suite(name: str, data: Path | None = None, recorded: Sequence[Path] = ()) -> list[Example]:
    """Returns all prompts of a suite, in its own order.

    Args:
        name: One of SUITES, the stem of a JSONL file in `data`, or the path of any JSONL file.
        data: Folder of <suite>.jsonl (or eagle_<suite>.jsonl) and, if they exist, longbench_prompts.json, meta.jsonl
            (true continuations) and recorded.jsonl; None: the hub.
        recorded: More JSONL files of {_id, continuation[, model, suite]}, replayed before all others.  Without a model,
            the file's stem is its name; with a suite, they belong only to that suite.  The second turn of row 81 is
            81#2.
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
    if suite is not None and suite.kinds:
        rows = [(where, row) for where, row in rows if row.get("category") in suite.kinds]
    name = suite_name(name)
    files = [] if data is None else [Path(data) / "meta.jsonl", Path(data) / "recorded.jsonl"]
    texts = _Recorded(_recordings([(Path(file), Path(file).stem) for file in recorded], name, strict=True),
                      _recordings([(file, "true") for file in files if file.is_file()], name, strict=False))
    catalogue = _catalogue(data)
    return _distinct([(where, _example(name, where, number, row, catalogue, texts))
                      for number, (where, row) in enumerate(rows, 1)])


def read_prompts(path: Path, count: int) -> list[Example]:
    """Returns the first `count` rows of a JSONL file; any other file is one prompt."""
    if is_path(str(path)):
        return load_suite(str(path))[:count]
    return [Example(path.stem, path.stem, read_text(path), "", "", chat=False)]


def suite_name(suite: str) -> str:
    """Returns a suite's name, or the stem of its file."""
    return Path(suite).stem if is_path(suite) else suite


def _example(name: str, where: str, number: int, row: Row, catalogue: Mapping[str, Suite],
             texts: _Recorded) -> Example:
    """Returns one row's example; a row that names its LongBench dataset gets that dataset's prompt and length."""
    dataset = str(row.get("dataset"))
    if dataset in catalogue and catalogue[dataset].template and "context" in row:
        name = dataset
    suite = catalogue.get(name, Suite(""))
    edits = not suite.template and all(any(row.get(column) for column in columns) for columns in (BEFORE, AFTER, ASKED))
    read = _long if suite.template else _edit if edits else _free
    parts = read(where, row, suite)
    if any(WITHHELD in text for text in (parts["before"], *parts.get("follow_ups", ()))):
        raise ValueError(f"{where}: the hub has no text for this prompt, only a note that it may not be passed on.\n"
                         "Run prepare_data.py of NVIDIA/Model-Optimizer's examples/specdec_bench and give the path of "
                         "the JSONL file that it writes.")
    identity = identity_of(where, row) or f"{name}-{number}"
    own = {str(row.get("model") or "true"): text_of(where, row, ("continuation",))} if row.get("continuation") else {}
    if edits:
        own = {"true": _filled(where, row, AFTER), **own}
    later = tuple(texts.of(turn_id(identity, turn)) for turn, _ in enumerate(parts.get("follow_ups", ()), 2))
    return Example(name, identity, **parts, answers=_answers(row), max_new_tokens=suite.max_new_tokens,
                   continuations=texts.of(identity, own), later=later)


def _long(where: str, row: Row, suite: Suite) -> dict[str, Any]:
    """Returns the parts of a context in its official prompt."""
    context = text_of(where, row, ("context", "text"))
    question = text_of(where, row, ("input",)) if "{input}" in suite.template else ""
    before, _, after = suite.template.partition("{context}")
    if after.startswith("{input}"):
        # The file's own code directly follows that of other files: they are one text, to be cut from its far end.
        context, after = context + question, after.removeprefix("{input}")
    return {"before": before.replace("{input}", question), "body": context,
            "after": after.replace("{input}", question), "unit": suite.unit, "chat": suite.chat}


def _edit(where: str, row: Row, suite: Suite) -> dict[str, Any]:
    """Returns the parts of an instruction to edit a file, which is not cut; the answer may repeat the file."""
    file = _filled(where, row, BEFORE)
    return {"before": file + EDIT.format(_filled(where, row, ASKED)), "body": "", "after": "", "prediction": file}


def _filled(where: str, row: Row, columns: Sequence[str]) -> str:
    """Returns the first of these columns that is not empty."""
    return text_of(where, row, [column for column in columns if row.get(column)])


def _free(where: str, row: Row, suite: Suite) -> dict[str, Any]:
    """Returns the parts of a row of any form: questions are asked whole, a context may be cut, a mere text is
    continued.
    """
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
        alpaca = columns[0] == "instruction" and row.get("input")
        more = "\n\n" + text_of(where, row, ("input",)) if alpaca else ""
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


def _spoken(where: str, messages: Any) -> list[str]:
    """Returns the user's turns of chat messages.

    The system message goes before the first; the assistant's are left out, because the target answers for itself.
    """
    if not isinstance(messages, list):
        raise ValueError(f"{where}: messages must be a list of {{role, content}}.")
    plain = [chat_message(message, f"{where}: message {number}") for number, message in enumerate(messages, 1)]
    users = [message["content"] for message in plain if message["role"] == "user"]
    system = [message["content"] for message in plain if message["role"] == "system"]
    if not users:
        raise ValueError(f"{where}: messages hold no user's turn.")
    if system:
        users[0] = "\n\n".join((*system, users[0]))
    return users


def _answers(row: Row) -> tuple[str, ...]:
    found = next((row[column] for column in ("answers", "reference", "answer") if row.get(column)), ())
    return (found,) if isinstance(found, str) else tuple(map(str, found)) if isinstance(found, Sequence) else ()


def _distinct(located: list[tuple[str, Example]]) -> list[Example]:
    """Raises ValueError if two rows share an id, because resuming, pairing and recordings rely on it."""
    seen: dict[str, str] = {}
    for where, example in located:
        for identity in example.turn_ids:
            if identity in seen:
                raise ValueError(f"{where}: id {identity!r} is that of {seen[identity]} already. Ids must differ.")
            seen[identity] = where
    return [example for _, example in located]


def _recordings(files: Sequence[tuple[Path, str]], suite: str, strict: bool) -> Recordings:
    """Returns the texts recorded for a suite in these files, by source unless the row names it.

    A runaway part, in which the model starts a prompt of its own, is cut off.  strict: a row without a text is an error
    """
    texts: Recordings = {}
    for path, source in files:
        for where, row in read_rows(path):
            if row.get("suite") not in (None, suite):
                continue
            if not strict and not row.get("continuation"):
                continue        # meta.jsonl has a line for every row, and a continuation for some
            ends = row.get("runaway_at")
            if ends is not None and not whole(ends):
                raise ValueError(f"{where}: runaway_at must be a number of characters; it is {json.dumps(ends)[:40]}.")
            text, identity = text_of(where, row, ("continuation",))[:ends], identity_of(where, row)
            if identity is None:
                raise ValueError(f"{where}: no id of the row that was continued. Needed: _id; columns found: "
                                 f"{', '.join(row)}.")
            if text:
                texts.setdefault(identity, {}).setdefault(str(row.get("model") or source), text)
    return texts


def _catalogue(data: Path | None) -> dict[str, Suite]:
    """Returns SUITES, with the prompts and lengths of the folder's longbench_prompts.json if it has one."""
    path = None if data is None else Path(data) / "longbench_prompts.json"
    if path is None or not path.is_file():
        return SUITES
    found = dict(SUITES)
    try:
        for name, entry in parse_object(path.read_bytes(), str(path)).items():
            if isinstance(entry, dict):     # the file also has a note on the prompts' source
                found[name] = replace(SUITES.get(name, Suite("", unit="sentence")), template=entry["prompt"],
                                      max_new_tokens=entry.get("max_gen"))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} must map suites to {{prompt, max_gen}}: {type(error).__name__}: {error}.") from error
    for name, suite in found.items():
        if suite.template and suite.template.count("{context}") != 1:
            raise ValueError(f"{path}: the prompt of {name} must contain {{context}} once.")
    return found

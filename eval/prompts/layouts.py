"""Layouts of rows: each gives the parts of a prompt, and missing columns are named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longgraft.config.chat_messages import chat_message
from longgraft.eval.prompts.catalogue import Suite
from longgraft.eval.prompts.sources import Row, text_of

QUESTIONS = ("prompt", "question", "instruction")
# Columns of an edit: CanItEdit's names first, then CommitPack's.  InstructCoder's input and output are also those of
# ordinary instructions, so they must be renamed.
FILE_BEFORE = ("before", "old_contents")
FILE_AFTER = ("after", "new_contents")
EDIT_INSTRUCTION = ("instruction", "instruction_descriptive", "instruction_lazy", "message")
EDIT = "\n\nEdit this file: {}\nAnswer with the whole file as it is afterwards, and nothing else."
# Columns of LongBench v2, which no other suite has.
CHOICES = ("choice_A", "choice_B", "choice_C", "choice_D")

CONTEXT = "{context}"
INPUT = "{input}"
# Places of columns in a template, besides the context. Other braces are text.
PLACES = re.compile(r"\{(input|question|choice_[A-D])\}")


@dataclass(frozen=True)
class Parts:
    """The parts of a prompt that its row gives; each is as in Example."""

    before: str
    body: str = ""
    after: str = ""
    follow_ups: tuple[str, ...] = ()
    chat: bool = True
    unit: str = "line"
    prediction: str = ""


def is_edit(row: Row) -> bool:
    """Returns whether a row has a file before and after an edit, and the instruction for it."""
    return all(any(row.get(column) for column in columns) for columns in (FILE_BEFORE, FILE_AFTER, EDIT_INSTRUCTION))


def is_choice(row: Row) -> bool:
    """Returns whether a row is a question of LongBench v2's form."""
    return "context" in row and "question" in row and all(column in row for column in CHOICES)


def parts_of(where: str, row: Row, suite: Suite) -> Parts:
    """Returns the parts of a row's prompt; raises ValueError, with the row's place, if a column is missing."""
    if suite.template:
        return _context_parts(where, row, suite)
    if is_edit(row):
        return _edit_parts(where, row)
    if row.get("messages"):
        return _turn_parts(where, _user_turns(where, row["messages"]))
    return _free_parts(where, row, suite)


def filled_column(where: str, row: Row, columns: Sequence[str]) -> str:
    """Returns the text of the first of these columns that is not empty."""
    return text_of(where, row, [column for column in columns if row.get(column)])


def _context_parts(where: str, row: Row, suite: Suite) -> Parts:
    """Returns the parts of a context in its official prompt."""
    def text_at(place: re.Match[str]) -> str:
        text = text_of(where, row, (place[1],))
        return text.strip() if suite.strip else text

    context = text_of(where, row, ("context", "text"))
    if suite.strip:
        context = context.strip()
    before, _, after = suite.template.partition(CONTEXT)
    if after.startswith(INPUT):
        # The file's own code directly follows that of other files: they are one text, to be cut from its far end.
        context += text_of(where, row, ("input",))
        after = after.removeprefix(INPUT)
    return Parts(PLACES.sub(text_at, before), context, PLACES.sub(text_at, after), chat=suite.chat, unit=suite.unit)


def _edit_parts(where: str, row: Row) -> Parts:
    """Returns the parts of an instruction to edit a file, which is not cut; the answer may repeat the file."""
    file = filled_column(where, row, FILE_BEFORE)
    instruction = filled_column(where, row, EDIT_INSTRUCTION)
    return Parts(file + EDIT.format(instruction), prediction=file)


def _free_parts(where: str, row: Row, suite: Suite) -> Parts:
    """Returns the parts of a row of any form.

    Questions are asked whole, a context may be cut, a mere text is continued.
    """
    questions = [column for column in (suite.column, *QUESTIONS) if column and row.get(column)]
    if row.get("context"):
        for column in (*questions, "input"):
            if row.get(column):
                question = text_of(where, row, (column,))
                return Parts("", text_of(where, row, ("context",)), f"\n\n{question}", unit="sentence")
    if row.get("turns"):
        questions.insert(0, "turns")
    if questions:
        return _question_parts(where, row, suite, questions[0])
    for column in ("text", "context"):
        if row.get(column):
            return Parts("", text_of(where, row, (column,)), chat=False)
    raise ValueError(f"{where}: no prompt. Needed: one of messages, turns, {', '.join(QUESTIONS)}, text, context.\n"
                     f"Columns found: {', '.join(row) or 'none'}.")


def _question_parts(where: str, row: Row, suite: Suite, column: str) -> Parts:
    """Returns the parts of the question in a column, or of the turns if the column holds a list."""
    if isinstance(row[column], list):
        return _turn_parts(where, row[column])
    question = text_of(where, row, (column,))
    if column == suite.column:
        question = suite.lead + question
    if column == "instruction" and row.get("input"):        # Alpaca's form
        question += "\n\n" + text_of(where, row, ("input",))
    return Parts(question)


def _turn_parts(where: str, turns: list[Any]) -> Parts:
    for turn in turns:
        if not (isinstance(turn, str) and turn):
            raise ValueError(f"{where}: turns must be a list of texts, and one is empty or something else.")
    return Parts(turns[0], follow_ups=tuple(turns[1:]))


def _user_turns(where: str, messages: Any) -> list[str]:
    """Returns the user's turns of chat messages.

    The system message goes before the first; the assistant's are left out, because the target answers for itself.
    """
    if not isinstance(messages, list):
        raise ValueError(f"{where}: messages must be a list of {{role, content}}.")
    by_role: dict[str, list[str]] = {"system": [], "user": []}
    for number, message in enumerate(messages, 1):
        plain = chat_message(message, f"{where}: message {number}")
        by_role.setdefault(plain["role"], []).append(plain["content"])
    users = by_role["user"]
    if not users:
        raise ValueError(f"{where}: messages hold no user's turn.")
    return ["\n\n".join((*by_role["system"], users[0])), *users[1:]]

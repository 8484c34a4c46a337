"""Layouts of rows: each gives the parts of a prompt, and missing columns are named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from longgraft.engine.chat_messages import chat_message
from longgraft.eval.prompts.catalogue import Suite
from longgraft.eval.prompts.sources import Row, text_of

QUESTIONS = ("prompt", "question", "instruction")
# Columns of an edit: CanItEdit's names first, then CommitPack's.  Those of InstructCoder are also those of ordinary
# instructions, so they count in its suite only.
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


@dataclass(frozen=True)
class EditColumns:
    """The columns of a row that asks for an edit."""

    before: str
    instruction: str
    after: str  # the file after it; "" if rows have none


def edit_columns(row: Row, suite: Suite) -> EditColumns | None:
    """Returns the columns of an edit; None if the row asks for something else."""
    if suite.template:
        return None
    if suite.edit:
        return EditColumns(*suite.edit)
    columns = []
    for names in (FILE_BEFORE, EDIT_INSTRUCTION, FILE_AFTER):
        filled = [name for name in names if row.get(name)]
        if not filled:
            return None
        columns.append(filled[0])
    return EditColumns(*columns)


def is_choice(row: Row) -> bool:
    """Returns whether a row is a question of LongBench v2's form."""
    return "context" in row and "question" in row and all(column in row for column in CHOICES)


def parts_of(where: str, row: Row, suite: Suite) -> Parts:
    """Returns the parts of a row's prompt; raises ValueError, with the row's place, if a column is missing."""
    if suite.template:
        return _context_parts(where, row, suite)
    edit = edit_columns(row, suite)
    if edit is not None:
        return _edit_parts(where, row, edit)
    if row.get("messages"):
        if row.get("tools"):
            raise ValueError(f"{where} has tools, which are not asked with. Leave the row out, or take them out of it.")
        return _turn_parts(where, _user_turns(where, row["messages"]))
    return _free_parts(where, row, suite)


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


def _edit_parts(where: str, row: Row, columns: EditColumns) -> Parts:
    """Returns the parts of an instruction to edit a file, which is not cut; the answer may repeat the file."""
    file = text_of(where, row, (columns.before,))
    instruction = text_of(where, row, (columns.instruction,))
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
    raise ValueError(
        f"{where}: no prompt. Needed: one of messages, turns, {', '.join(QUESTIONS)}, text, context.\n"
        f"Columns found: {', '.join(row) or 'none'}."
    )


def _question_parts(where: str, row: Row, suite: Suite, column: str) -> Parts:
    """Returns the parts of the question in a column, or of the turns if the column holds a list."""
    if isinstance(row[column], list):
        return _turn_parts(where, row[column])
    question = text_of(where, row, (column,))
    if column == suite.column:
        question = suite.lead + question
    if column == "instruction" and row.get("input"):  # Alpaca's form
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
    by_role: dict[str, list[str]] = {"system": [], "user": [], "assistant": []}
    for number, message in enumerate(messages, 1):
        plain = chat_message(message, f"{where}: message {number}")
        role = "system" if plain["role"] == "developer" else plain["role"]
        if role not in by_role:
            raise ValueError(
                f"{where}: message {number} is of role {role!r}, and only the turns of system and user are asked. "
                "Leave the row out, or write the message into a user's turn."
            )
        by_role[role].append(plain["content"])
    users = by_role["user"]
    if not users:
        raise ValueError(f"{where}: messages hold no user's turn.")
    return ["\n\n".join((*by_role["system"], users[0])), *users[1:]]

"""What is to be answered: one prompt in any of four forms, or a file of them.

Knows files, standard input and JSON; knows no model.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longgraft.options import check, option
from longgraft.reading import parse_json

STDIN = "-"
FORMS = ("prompt", "messages", "prompt_ids")    # of a row


@dataclass(frozen=True)
class Asked:
    """A prompt: text, chat messages or token ids.  name: the row's id, or its number; "" of a single prompt."""

    prompt: str | list[int] | list[dict[str, Any]]
    name: str = ""

    def as_chat(self) -> Asked:
        """A text as what a user says."""
        if isinstance(self.prompt, str):
            return Asked([{"role": "user", "content": self.prompt}], self.name)
        return self


@dataclass(frozen=True)
class PromptOptions:
    """Where prompts come from: exactly one of the first five says it."""

    prompt: str | None = option(None, "The prompt itself; -: standard input")
    prompt_file: str | None = option(None, "Text file; -: standard input", metavar="FILE")
    prompt_ids: str | None = option(None, "JSON list of token ids", metavar="FILE")
    messages: str | None = option(None, "JSON list of {role, content}, for the model's chat template", metavar="FILE")
    prompts: str | None = option(None, "JSONL of {prompt | messages | prompt_ids[, id]}; an object for each on stdout",
                                 metavar="FILE")
    chat: bool = option(False, "A prompt is what a user says: it goes through the model's chat template")

    def __post_init__(self) -> None:
        check(self)

    def read(self) -> list[Asked]:
        """The prompts; a file's have names."""
        given = [name for name in ("prompt", "prompt_file", "prompt_ids", "messages", "prompts")
                 if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join("--" + name.replace("_", "-") for name in given) or "none"
            raise ValueError("Give one prompt: --prompt TEXT, --prompt-file FILE, - (standard input), --messages FILE, "
                             f"--prompt-ids FILE, or a file of them with --prompts FILE; {found} was given.")
        asked = rows(Path(self.prompts)) if self.prompts else [Asked(self._one())]
        if not asked[0].prompt:
            raise ValueError("The prompt is empty. Give at least one token.")
        return [one.as_chat() for one in asked] if self.chat else asked

    def _one(self) -> Any:
        if self.messages:
            return messages(read_json(Path(self.messages)), self.messages)
        if self.prompt_ids:
            return token_ids(read_json(Path(self.prompt_ids)), self.prompt_ids)
        if STDIN in (self.prompt, self.prompt_file):
            return _decoded(sys.stdin.buffer.read(), "Standard input")
        return read_text(Path(self.prompt_file)) if self.prompt_file else self.prompt


def rows(path: Path) -> list[Asked]:
    """Of a JSONL file; ValueError names file and line."""
    found = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        row = parse_json(line, where)
        forms = [form for form in FORMS if isinstance(row, dict) and row.get(form) is not None]
        if len(forms) != 1:
            raise ValueError(f"{where}: {' and '.join(forms) or 'no prompt'} was found; an object with one of "
                             f"{', '.join(FORMS)} is needed.")
        value = row[forms[0]]
        if forms[0] == "prompt" and not isinstance(value, str):
            raise ValueError(f"{where}: the prompt is no text.")
        value = messages(value, where) if forms[0] == "messages" else value
        value = token_ids(value, where) if forms[0] == "prompt_ids" else value
        found.append(Asked(value, str(row.get("id", number))))
    if not found:
        raise ValueError(f"File {path} has no prompt. Give one JSON object per line.")
    return found


def messages(value: Any, where: str) -> list[dict[str, Any]]:
    """Chat messages; ValueError where they are something else."""
    if not (isinstance(value, list) and value and all(
            isinstance(one, dict) and isinstance(one.get("role"), str) and one.get("content") is not None
            for one in value)):
        raise ValueError(f'{where}: messages must be a list such as [{{"role": "user", "content": "Hello"}}].')
    return value


def token_ids(value: Any, where: str) -> list[int]:
    """Token ids; ValueError where they are something else."""
    if not (isinstance(value, list) and value and all(type(one) is int for one in value)):
        raise ValueError(f"{where} must hold one JSON list of token ids.")
    return value


def read_text(path: Path) -> str:
    """A file's text; ValueError where it cannot be read."""
    try:
        return _decoded(path.read_bytes(), f"File {path}")
    except OSError as error:
        raise ValueError(f"File {path} cannot be read: {error.strerror}.") from error


def read_json(path: Path) -> Any:
    """A file's value; ValueError where it is not JSON."""
    return parse_json(read_text(path), f"File {path}")


def new_file(path: str | Path | None) -> Path | None:
    """A file that can be written and is not there yet: said before work whose fruits would have no place."""
    if path is None:
        return None
    path = Path(path)
    if path.exists():
        raise ValueError(f"{path} exists already, and nothing is written over. Give another --out.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"The folder {path.absolute().parent} does not exist. Make it, or give another --out.")
    return path


def _decoded(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{what} is not UTF-8 text ({error}).") from error

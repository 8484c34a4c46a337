"""The prompts of a command: one prompt in any of four forms, or a file of prompts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longgraft.config.options import Checked, option
from longgraft.engine.chat_messages import chat_message
from longgraft.files.data_files import GZIP_ERRORS, opener, parse_json
from longgraft.files.file_errors import reason
from longgraft.files.json_lines import json_lines

STDIN = "-"
SHOWN = 100  # characters of a file's name that messages show
FORMS = ("prompt", "messages", "prompt_ids")  # keys of a row, exactly one of which is set
UNREAD = ("tools", "functions", "system")  # keys that would change the prompt, and that are not read


@dataclass(frozen=True)
class GivenPrompt:
    """A prompt of a user."""

    prompt: str | list[int] | list[dict[str, Any]]  # text, chat messages or token ids
    name: str = ""  # the row's id or number; "" for a single prompt

    @property
    def chat(self) -> list[dict[str, Any]]:
        """Its messages; empty for a text or ids."""
        return [message for message in self.prompt if isinstance(message, dict)]

    def as_chat(self) -> GivenPrompt:
        """Returns a text as a user's message."""
        if isinstance(self.prompt, str):
            return GivenPrompt([{"role": "user", "content": self.prompt}], self.name)
        return self

    def as_text(self) -> GivenPrompt:
        """Returns the messages' contents, one after the other, for a model without a chat template."""
        if not self.chat:
            return self
        return GivenPrompt("\n\n".join(message["content"] for message in self.chat), self.name)

    def with_system(self, system: str) -> GivenPrompt:
        """Returns the chat with a system message before it."""
        if not self.chat:
            raise ValueError("--system was given without a chat. Add --chat, or give --messages.")
        if self.chat[0]["role"] == "system":
            raise ValueError("The messages begin with a system message, and --system was given. Leave one out.")
        return GivenPrompt([{"role": "system", "content": system}, *self.chat], self.name)


@dataclass(frozen=True)
class PromptOptions(Checked):
    """The prompt: a text, files and then a request, ids, a chat, or many rows.

    A file may be - for standard input.
    """

    prompt: str | None = option(
        None, "The prompt itself, or the request that follows --prompt-file; - is standard input", short="-p"
    )
    prompt_file: tuple[str, ...] = option(
        (),
        "Text file, or - for standard input; several are one prompt, in their order, each from a line of its own; "
        "repeatable",
        metavar="FILE",
        many=True,
    )
    prompt_ids: str | None = option(None, "JSON list of token ids", metavar="FILE")
    messages: str | None = option(None, "JSON list of {role, content}, for the model's chat template", metavar="FILE")
    prompts: str | None = option(
        None, "JSONL(.gz) of {prompt | messages | prompt_ids[, id]}; an object for each on stdout", metavar="FILE"
    )
    prediction: str | None = option(
        None,
        "Text that the answer may repeat: the model does not read it, and decoding is faster where it is right",
        metavar="FILE",
    )
    chat: bool = option(False, "The prompt is a user's message, for the model's chat template")
    system: str | None = option(None, "System message before a chat")

    def __post_init__(self) -> None:
        super().__post_init__()
        sources = (self.prompt, *self.prompt_file, self.prompt_ids, self.messages, self.prompts, self.prediction)
        if sources.count(STDIN) > 1:
            raise ValueError("Standard input was given twice, and it can be read once. Leave one - out.")

    def read(self) -> list[GivenPrompt]:
        """Returns the prompts; those from a file have names."""
        sources = [
            name
            for name in ("prompt", "prompt_file", "prompt_ids", "messages", "prompts")
            if getattr(self, name) not in (None, ())
        ]
        if len(sources) != 1 and sources != ["prompt", "prompt_file"]:
            flags = " and ".join("--" + name.replace("_", "-") for name in sources)
            several = f"{flags} were" if sources else "No prompt was"
            raise ValueError(
                f"{several} given. Give one of --prompt TEXT, --prompt-file FILE (or several; --prompt is then the "
                "request after them), - (standard input), --messages FILE, --prompt-ids FILE, and --prompts FILE."
            )
        prompts = rows(self.prompts) if self.prompts else [GivenPrompt(self._single())]
        if not prompts[0].prompt:  # rows of --prompts are never empty
            raise ValueError("The prompt is empty. Give at least one token.")
        if self.chat:
            prompts = [prompt.as_chat() for prompt in prompts]
        if self.system is not None:
            prompts = [prompt.with_system(self.system) for prompt in prompts]
        return prompts

    def predicted(self) -> str | None:
        """Returns the text that the answers may repeat."""
        if self.prediction is None:
            return None
        return read_source(self.prediction)

    def _single(self) -> Any:
        """Returns the only prompt: text, messages or token ids."""
        if self.messages:
            return messages(read_json(self.messages), source_name(self.messages))
        if self.prompt_ids:
            return token_ids(read_json(self.prompt_ids), source_name(self.prompt_ids))
        texts = [read_source(name) for name in self.prompt_file]
        if self.prompt is not None:
            request = read_source(STDIN) if self.prompt == STDIN else self.prompt
            texts = [*texts, "\n", request] if texts else [request]
        return joined(texts)


def joined(texts: Sequence[str]) -> str:
    """Joins texts; each begins on its own line."""
    lines = [text if text.endswith("\n") else f"{text}\n" for text in texts[:-1]]
    return "".join([*lines, *texts[-1:]])


def rows(name: str) -> list[GivenPrompt]:
    """Returns the prompts of a JSONL file; a ValueError names file and line."""
    prompts = []
    for number, where, row in json_lines(read_source(name), source_name(name)):
        forms = [form for form in FORMS if isinstance(row, dict) and row.get(form) is not None]
        if len(forms) != 1:
            raise ValueError(
                f"{where}: {' and '.join(forms) or 'no prompt'} was found; an object with one "
                f"of {', '.join(FORMS)} is needed."
            )
        unread = [key for key in UNREAD if row.get(key)]
        if unread:
            raise ValueError(
                f"{where} has {unread[0]}, which is not read here. Give a system text as the first message, and tools "
                "in a request to `longgraft serve`."
            )
        (form,) = forms
        value = row[form]
        if form == "messages":
            value = messages(value, where)
        elif form == "prompt_ids":
            value = token_ids(value, where)
        elif not isinstance(value, str):
            raise ValueError(f"{where}: the prompt is a {type(value).__name__}; text is needed.")
        if not value:
            raise ValueError(f"{where}: the prompt is empty. Give at least one token, or take the row out.")
        prompts.append(GivenPrompt(value, str(row.get("id", number))))
    if not prompts:
        raise ValueError(f"{source_name(name)} has no prompt. Give one JSON object per line.")
    return prompts


def messages(value: Any, where: str) -> list[dict[str, Any]]:
    """Returns chat messages; raises ValueError for anything else."""
    if not (isinstance(value, list) and value):
        raise ValueError(f'{where}: messages must be a list such as [{{"role": "user", "content": "Hello"}}].')
    return [chat_message(message, f"{where}: message {number}") for number, message in enumerate(value, 1)]


def token_ids(value: Any, where: str) -> list[int]:
    """Returns token ids; raises ValueError for anything else."""
    if not (isinstance(value, list) and value and all(type(token) is int for token in value)):
        raise ValueError(f"{where} must hold one JSON list of token ids.")
    return value


def source_name(name: str) -> str:
    """Returns a file's name, for messages."""
    return "Standard input" if name == STDIN else name


def read_source(name: str, errors: str = "strict", encoding: str = "utf-8-sig") -> str:
    """Returns a file's text (*.gz is decompressed), or standard input for -; raises ValueError if it cannot be read.

    Args:
        errors: strict, or replace for bytes that are not UTF-8.
        encoding: utf-8-sig, or utf-8 to keep a byte order mark.
    """
    if name == STDIN:
        return _decoded(sys.stdin.buffer.read(), source_name(name), errors, encoding)
    try:
        with opener(name)(name, "rb") as file:
            return _decoded(file.read(), f"File {name}", errors, encoding)
    except (OSError, *GZIP_ERRORS) as error:
        # The user may have given a text, which may be long, instead of a file's name.
        shown = f"{name[:SHOWN]}..." if len(name) > SHOWN else name
        raise ValueError(f"File {' '.join(shown.split())} cannot be read: {reason(error)}.") from error


def read_json(name: str) -> Any:
    """Returns a file's JSON value; raises ValueError if it is not JSON."""
    where = source_name(name) if name == STDIN else f"File {name}"
    return parse_json(read_source(name), where)


def _decoded(data: bytes, what: str, errors: str, encoding: str) -> str:
    try:
        return data.decode(encoding, errors)
    except UnicodeDecodeError as error:
        raise ValueError(f"{what} is not UTF-8 text ({reason(error)}).") from error

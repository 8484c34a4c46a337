"""Reads training text from files; each text or chat is one document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longgraft.config.chat_messages import chat_message
from longgraft.config.data_files import parse_json, read_text
from longgraft.config.json_lines import read_json_lines
from longgraft.config.options import Count, checked

ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
}
CONTINUED = "continued"  # source of the rows of `train regenerate` in which a model continues an excerpt
PROSE = frozenset({"meeting", "book", "report"})


@dataclass(frozen=True)
class Document:
    """One file, text or chat of the corpus.

    Attributes:
        source: Its origin, for code `owner/name@commit:path`.
        turns: The messages of a chat (`chat_message`).
        ended: True if the text or last answer is whole, so that an end token follows it.
        own: Number of tokens at the end of the text that a model wrote (`train regenerate`), None: no text of
            a model.
    """

    text: str
    type: str = "text"
    source: str = ""
    turns: Sequence[Mapping[str, Any]] = ()
    ended: bool = True
    own: int | None = None

    @property
    def group(self) -> str:
        """Repository or collection that the document belongs to."""
        return self.source.split("@")[0].split(":")[0]


def read_documents(paths: Iterable[Path]) -> Iterator[Document]:
    """Yields the documents of JSONL(.gz) files, JSON arrays, other text files (one document each), and
    folders of these.

    A JSON row has `text`, or a chat as `messages` (in OpenAI's form) or `conversations` ({from, value}), and
    optionally `type`, `source` and `ended` (false: it was cut off).  Any other row raises ValueError with
    its file and line.
    """
    for path in map(Path, paths):
        if path.is_dir():
            yield from read_documents(sorted(p for p in path.rglob("*") if p.is_file() and p.name[0] != "."))
        elif not path.is_file():
            raise ValueError(f"{path} is neither a file nor a folder. Give JSONL or text files, or folders of them.")
        elif path.name.endswith((".jsonl", ".jsonl.gz")):
            for _, place, row in read_json_lines(path, "Fetch it again, or leave it out."):
                yield _document(row, place)
        elif path.suffix == ".json":
            rows = parse_json(read_text(path, "Leave it out."), str(path))
            if not isinstance(rows, list):
                raise ValueError(f"{path} holds a {type(rows).__name__}; a list of rows is needed. Wrap it in [ ].")
            for number, row in enumerate(rows, 1):
                yield _document(row, f"{path}, item {number}")
        else:
            yield Document(read_text(path, "Leave it out."), source=str(path))


def _document(row: Any, place: str) -> Document:
    if not isinstance(row, dict):
        raise ValueError(
            f"{place} is a {type(row).__name__}; an object with text, messages or conversations is needed."
        )
    kind, source = (_string(row.get(name) or "", f"{place}: {name}") for name in ("type", "source"))
    ended = row.get("ended") is not False
    if isinstance(row.get("text"), str):
        own_tokens = None
        if row.get("source") == CONTINUED:
            own_tokens = row.get("tokens")
        return Document(
            _string(row["text"], f"{place}: text"),
            kind or "text",
            source,
            ended=ended,
            own=checked(own_tokens, Count | None, f"{place}: tokens"),
        )
    turns = row.get("messages") or row.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        fields_found = ", ".join(f"{name} ({type(value).__name__})" for name, value in row.items()) or "nothing"
        raise ValueError(f"{place} has {fields_found}; text, or turns as messages or conversations, is needed.")
    plain = tuple(_turn(turn, f"{place}: turn {number}") for number, turn in enumerate(turns, 1))
    return Document("", "chat", source, plain, ended)


def _turn(entry: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Returns a turn as a message; "from" and "value" stand for role and content."""
    turn = dict(entry)
    for name, meaning in (("from", "role"), ("value", "content")):
        if name in turn and meaning not in turn:
            turn[meaning] = turn.pop(name)
    message = chat_message(turn, place)
    return message | {"role": ROLES.get(message["role"], message["role"])}


def _string(value: Any, what: str) -> str:
    """Returns the value if it is a string; else raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is {value!r}; a string is needed.")
    return value

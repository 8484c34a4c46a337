"""Reads training text from files; each text or chat is one document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longgraft.config.options import Count, checked
from longgraft.files.data_files import parse_json, read_text
from longgraft.files.json_lines import read_json_lines
from longgraft.yarn_drafters.training.chat_rows import ChatRow

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
        tools: The tools of a chat, in OpenAI's form.
        unlearnt: Indices of the assistant's turns that are only context.
        place: Its file and line, for messages.
    """

    text: str
    type: str = "text"
    source: str = ""
    turns: Sequence[Mapping[str, Any]] = ()
    ended: bool = True
    own: int | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    unlearnt: frozenset[int] = frozenset()
    place: str = ""

    @property
    def group(self) -> str:
        """Repository or collection that the document belongs to."""
        return self.source.split("@")[0].split(":")[0]


def read_documents(paths: Iterable[Path]) -> Iterator[Document]:
    """Yields the documents of JSONL files (*.jsonl, *.ndjson), JSON arrays, other text files (one document each), and
    folders of these.  *.gz is decompressed.

    A JSON row has `text`, or a chat as `messages` (in OpenAI's form) or `conversations` ({from, value}), and
    optionally `type`, `source` and `ended` (false: it was cut off).  A chat may have `tools` or `functions`, and
    `system`, which is its first turn.  `weight`, `train` or `loss` of an answer says if it is learnt.  Any other row
    raises ValueError with its file and line.
    """
    for path in map(Path, paths):
        if path.is_dir():
            yield from read_documents(sorted(p for p in path.rglob("*") if p.is_file() and p.name[0] != "."))
        elif not path.is_file():
            raise ValueError(f"{path} is neither a file nor a folder. Give JSONL or text files, or folders of them.")
        elif path.name.removesuffix(".gz").endswith((".jsonl", ".ndjson")):
            for _, place, row in read_json_lines(path, "Fetch it again, or leave it out."):
                yield _document(row, place)
        elif path.name.removesuffix(".gz").endswith(".json"):
            rows = parse_json(read_text(path, "Leave it out."), str(path))
            if not isinstance(rows, list):
                raise ValueError(f"{path} holds a {type(rows).__name__}; a list of rows is needed. Wrap it in [ ].")
            for number, row in enumerate(rows, 1):
                yield _document(row, f"{path}, item {number}")
        else:
            yield Document(read_text(path, "Leave it out."), source=str(path), place=str(path))


def _document(row: Any, place: str) -> Document:
    if not isinstance(row, dict):
        raise ValueError(
            f"{place} is a {type(row).__name__}; an object with text, messages or conversations is needed."
        )
    kind, source = (checked(row.get(name), str | None, f"{place}: {name}") or "" for name in ("type", "source"))
    ended = checked(row.get("ended"), bool | None, f"{place}: ended") is not False
    forms = [name for name in ("text", "messages", "conversations") if row.get(name)]
    if len(forms) > 1:
        raise ValueError(f"{place} has {' and '.join(forms)}, and one of them is needed. Leave the others out.")
    form = forms[0] if forms else "text"
    found = row.get(form)
    if form == "text" and isinstance(found, str):
        own_tokens = None
        if source == CONTINUED:
            own_tokens = checked(row.get("tokens"), Count | None, f"{place}: tokens")
        return Document(found, kind or "text", source, ended=ended, own=own_tokens, place=place)
    if form == "text" or not isinstance(found, list) or not all(isinstance(turn, dict) for turn in found):
        fields_found = ", ".join(f"{name} ({type(value).__name__})" for name, value in row.items()) or "nothing"
        raise ValueError(f"{place} has {fields_found}; text, or turns as messages or conversations, is needed.")
    chat = ChatRow.read(row, form, place)
    return Document("", "chat", source, chat.turns, ended, tools=chat.tools, unlearnt=chat.unlearnt, place=place)

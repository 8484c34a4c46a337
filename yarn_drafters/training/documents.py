"""Reads training text from files; each text or chat is one document."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longgraft.config.data_files import parse_json
from longgraft.config.options import Count, checked

ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant",
         "model": "assistant"}
CONTINUED = "continued"     # source of the rows of `train regenerate` in which a model continues an excerpt
PROSE = frozenset({"meeting", "book", "report"})


@dataclass(frozen=True)
class Document:
    """One file, text or chat of the corpus.

    source: its origin, for code `owner/name@commit:path`; turns: the turns of a chat, {role, content} each; ended: True
    if the text or last answer is whole, so that an end token follows it; own: number of tokens at the end of the text
    that a model wrote (`train regenerate`), None: no text of a model
    """

    text: str
    type: str = "text"
    source: str = ""
    turns: Sequence[Mapping[str, str]] = ()
    ended: bool = True
    own: int | None = None

    @property
    def group(self) -> str:
        """Repository or collection that the document belongs to."""
        return self.source.split("@")[0].split(":")[0]


def read_documents(paths: Iterable[Path]) -> Iterator[Document]:
    """Yields the documents of JSONL(.gz) files, JSON arrays, other text files (one document each), and folders of
    these.

    A JSON row has `text`, or a chat as `messages` ({role, content}) or `conversations` ({from, value}), and optionally
    `type`, `source` and `ended` (false: it was cut off).  Any other row raises ValueError with
    its file and line.
    """
    for path in map(Path, paths):
        if path.is_dir():
            yield from read_documents(sorted(p for p in path.rglob("*") if p.is_file() and p.name[0] != "."))
        elif not path.is_file():
            raise ValueError(f"{path} is neither a file nor a folder. Give JSONL or text files, or folders of them.")
        elif path.name.endswith((".jsonl", ".jsonl.gz")):
            for number, line in _lines(path):
                if line.strip():
                    place = f"{path}, line {number}"
                    yield _document(parse_json(line, place), place)
        elif path.suffix == ".json":
            rows = parse_json(_text(path), str(path))
            if not isinstance(rows, list):
                raise ValueError(f"{path} holds a {type(rows).__name__}; a list of rows is needed. Wrap it in [ ].")
            for number, row in enumerate(rows, 1):
                yield _document(row, f"{path}, item {number}")
        else:
            yield Document(_text(path), source=str(path))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number, opened = 0, gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                yield number, line
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read beyond line {number} ({error}). Fetch it again, or leave it "
                         "out.") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}). Leave it out.") from error


def _document(row: Any, place: str) -> Document:
    if not isinstance(row, dict):
        raise ValueError(f"{place} is a {type(row).__name__}; an object with text, messages or conversations is "
                         "needed.")
    kind, source = (_string(row.get(name) or "", f"{place}: {name}") for name in ("type", "source"))
    ended = row.get("ended") is not False
    if isinstance(row.get("text"), str):
        own = row.get("tokens") if row.get("source") == CONTINUED else None
        return Document(_string(row["text"], f"{place}: text"), kind or "text", source, ended=ended,
                        own=checked(own, Count | None, f"{place}: tokens"))
    turns = row.get("messages") or row.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        found = ", ".join(f"{name} ({type(value).__name__})" for name, value in row.items()) or "nothing"
        raise ValueError(f"{place} has {found}; text, or turns as messages or conversations, is needed.")
    plain = []
    for turn in turns:
        role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
        if not isinstance(role, str) or not isinstance(content, str):
            raise ValueError(f"{place}: a turn has {', '.join(turn)}; role and content (or from and value) are needed.")
        plain.append({"role": ROLES.get(role, role), "content": _string(content, f"{place}: a turn's content")})
    return Document("", "chat", source, tuple(plain), ended)


def _string(value: Any, what: str) -> str:
    """Returns the value if it is a string; else raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is {value!r}; a string is needed.")
    return value

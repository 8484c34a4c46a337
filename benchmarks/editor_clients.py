"""Requests for suggestions, as editors' plugins send them to a server."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.cursors import Asked
from longgraft.completion.changes import before_last_change
from longgraft.completion.prompt.next_edit import CURRENT, SEPARATOR, UPDATED
from longgraft.completion.repository.files import repository
from longgraft.completion.snippets import Cursor, Snippet
from longgraft.completion.window import Window

LINES_BEFORE = 256  # lines that llama.vim sends before the cursor
LINES_AFTER = 64
CHARACTERS_BEFORE = 2400  # most characters of the whole lines that Continue sends; with those after it 1,024 tokens
CHARACTERS_AFTER = 700
PIECE = 64  # lines of a piece of another file, as in llama.vim
PER_TOKEN = 3.5  # characters of a token of Python, about
ENDS = [
    "<|endoftext|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|im_start|>",
    "<|im_end|>",
]


@dataclass(frozen=True)
class Reply:
    """A suggestion.

    Attributes:
        said: Its text.
        prompt_tokens: Tokens of the prompt.
        read: Those of them that the server had not kept.
        new_tokens: Tokens of the suggestion.
        seconds: Time from the request to the whole suggestion.
        first_seconds: Time to the first text; None without a stream.
    """

    said: str
    prompt_tokens: int
    read: int
    new_tokens: int
    seconds: float
    first_seconds: float | None = None

    @classmethod
    def counted(cls, said: str, usage: Mapping[str, Any], seconds: float, first_seconds: float | None = None) -> Reply:
        """Returns the reply with OpenAI's figures."""
        details = usage.get("prompt_tokens_details") or {}
        read = usage["prompt_tokens"] - details.get("cached_tokens", 0)
        return cls(said, usage["prompt_tokens"], read, usage["completion_tokens"], seconds, first_seconds)


Ask = Callable[[httpx.Client, Cursor, Sequence[Snippet], int], Reply]


def _posted(client: httpx.Client, path: str, body: Mapping[str, Any]) -> tuple[Any, float]:
    """Returns a server's answer, and the seconds that it took."""
    began = time.perf_counter()
    found = client.post(path, json=body).raise_for_status().json()
    return found, time.perf_counter() - began


def llama_vim(client: httpx.Client, cursor: Cursor, others: Sequence[Snippet], new: int, **more: Any) -> Reply:
    """Asks as llama.vim does, with pieces of other files.  more: fields of the request"""
    before, _, line = cursor.before.rpartition("\n")
    body = {
        "input_prefix": "\n".join(before.split("\n")[-LINES_BEFORE:]) + "\n",
        "prompt": line,
        "input_suffix": "\n".join(cursor.after.split("\n")[: LINES_AFTER + 1]) + "\n",
        "input_extra": [{"filename": piece.path, "text": piece.text} for piece in others],
        "n_predict": new,
        "n_indent": len(line) - len(line.lstrip()),
        "stream": False,
        "cache_prompt": True,
        "temperature": 0,
        "top_k": 1,
        "samplers": ["top_k"],
    }
    found, seconds = _posted(client, "/infill", body | more)
    timings = found["timings"]
    tokens = timings["cache_n"] + timings["prompt_n"]
    return Reply(found["content"], tokens, timings["prompt_n"], found["tokens_predicted"], seconds)


def line(client: httpx.Client, cursor: Cursor, others: Sequence[Snippet], new: int) -> Reply:
    """Asks for the rest of the line."""
    return llama_vim(client, cursor, others, new, stop=["\n"])


def zed(client: httpx.Client, cursor: Cursor, others: Sequence[Snippet], new: int) -> Reply:
    """Asks for a next edit as Zed does, greedily."""
    window = Window.around(cursor)
    original = before_last_change(window.path, window.first_line, window.lines, cursor.changes)
    blocks = [(piece.path, piece.text.removesuffix("\n")) for piece in others]
    for change in cursor.changes:
        text = "\n".join(("original:", *change.before, "updated:", *change.after))
        blocks.append((f"{change.path}.diff", text))
    blocks.append((f"original/{window.path}", "\n".join(original)))
    blocks.append((CURRENT + window.path, "\n".join(window.lines)))
    prompt = "".join(f"{SEPARATOR}{path}\n{text}\n" for path, text in blocks)
    body = {
        "model": "sweep-next-edit",
        "prompt": f"{prompt}{SEPARATOR}{UPDATED}{window.path}\n",
        "max_tokens": new,
        "temperature": 0,
        "stop": [SEPARATOR, "</s>"],
    }
    found, seconds = _posted(client, "/v1/completions", body)
    edit = window.edit(found["choices"][0]["text"])
    return Reply.counted(edit.text if edit else "", found["usage"], seconds)


def continue_(client: httpx.Client, cursor: Cursor, others: Sequence[Snippet], new: int) -> Reply:
    """Asks as Continue does, with its template for Qwen and without other files."""
    before = cursor.before[-CHARACTERS_BEFORE:]
    if len(before) < len(cursor.before):
        before = before.partition("\n")[2]
    body = {
        "model": "",
        "prompt": f"<|fim_prefix|>{before}<|fim_suffix|>{cursor.after[:CHARACTERS_AFTER]}<|fim_middle|>",
        "max_tokens": new,
        "temperature": 0,
        "stop": ENDS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    said = ""
    usage: dict[str, Any] = {}
    first: float | None = None
    began = time.perf_counter()
    with client.stream("POST", "/v1/completions", json=body) as answer:
        for event in answer.raise_for_status().iter_lines():
            if event.startswith("data: {"):
                chunk = json.loads(event[6:])
                said += "".join(choice["text"] for choice in chunk["choices"])
                usage = chunk.get("usage") or usage
                if said and first is None:
                    first = time.perf_counter() - began
    return Reply.counted(said, usage, time.perf_counter() - began, first)


CLIENTS: dict[str, Ask] = {"llama.vim": llama_vim, "line": line, "Continue": continue_, "Zed": zed}
NEXT_EDITS = ("Zed",)  # clients that ask for the rewritten window instead of the text at the cursor


def pieces(asked: Asked, client: str, tokens: int) -> list[Snippet]:
    """Returns pieces of the repository's other files, of about so many tokens, in an order of this cursor's own."""
    found = repository(asked.root)
    every = []
    for path in found.sources(asked.cursor.path)[0]:
        if path != asked.cursor.path:
            lines = found.text(path).split("\n")
            for start in range(0, len(lines), PIECE):
                text = "".join(f"{one}\n" for one in lines[start : start + PIECE])
                every.append(Snippet(path, text, start + 1))
    random.Random(f"{client} {asked.cursor.path} {asked.line}").shuffle(every)
    chosen = []
    left = tokens * PER_TOKEN
    for piece in every:
        if len(piece.text) <= left:
            chosen.append(piece)
            left -= len(piece.text)
    return chosen

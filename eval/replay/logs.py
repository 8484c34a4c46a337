"""Reads logs of prompts and answers: requests with their responses, chats, agents' sessions, pairs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longgraft.config.data_files import opener, parse_json

FORMS = (
    "pairs of prompt and answer, chats (messages), requests with their responses (OpenAI, Anthropic), and sessions of "
    "Claude Code and Codex"
)
PROMPTS = ("prompt", "messages", "input")
ANSWERS = ("answer", "completion", "response", "output")  # keys of an answer beside its prompt, the first that is there
SPEAKERS = ("system", "developer", "user", "assistant", "tool")

Messages = list[dict[str, str]]
"""Messages of a chat, with role and content."""


@dataclass(frozen=True)
class LoggedAnswer:
    """An answer of a log.

    Attributes:
        id: The row's own identity, or "line 3".
        prompt: Text, messages, or token ids.
        answer: Text, or token ids.
        suite: The row's suite, of recorded answers.
    """

    id: str
    prompt: str | Messages | list[int]
    answer: str | list[int]
    suite: str = ""


@dataclass
class Log:
    """The answers of a log, and what was wrong with lines.

    Attributes:
        answers: In order.
        problems: A sentence for each line that could not be read.
        without: Lines that are read, and hold no answer.
    """

    answers: list[LoggedAnswer] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    without: int = 0


def read_log(path: Path) -> Log:
    """Reads a log in JSONL, compressed or not; raises ValueError if nothing in it is an answer."""
    log = Log()
    session = _Session()
    try:
        with opener(path)(path, "rt", encoding="utf-8-sig", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    _read_line(line, f"line {number}", session, log)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"File {path} cannot be read: {error}.") from error
    if not log.answers:
        first = f" The first problem: {log.problems[0]}" if log.problems else ""
        raise ValueError(f"{path} holds no prompts with answers. Known are {FORMS}.{first}")
    return log


def _read_line(line: str, place: str, session: _Session, log: Log) -> None:
    try:
        value = parse_json(line, place)
        if not isinstance(value, Mapping):
            raise ValueError(f"{place}: an object is needed.")
        found = list(_answers_of(value, place, session))
    except ValueError as error:
        log.problems.append(str(error))
        return
    log.answers += found
    log.without += not found


def _answers_of(row: Mapping[str, Any], place: str, session: _Session) -> Iterator[LoggedAnswer]:
    """Yields the answers of one line."""
    identity = next((str(row[key]) for key in ("id", "_id", "custom_id", "request_id") if row.get(key)), place)
    said = session.read(row)
    if said is not None:
        yield from (LoggedAnswer(place, *one) for one in said)
        return
    request = _inner(row, "request")
    if request is None:
        request = row
    if not any(key in request for key in PROMPTS):
        raise ValueError(f"{place}: found {', '.join(map(str, row)) or 'nothing'}. Known are {FORMS}.")
    prompt = _prompt_of(request, place)
    key = next((key for key in ANSWERS if key in row), None)
    if key is not None:
        answer = _ids(row[key]) or _answer_of(_inner(row, key))
        if answer:
            yield LoggedAnswer(identity, prompt, answer, str(row.get("suite", "")))
    elif "messages" in request:
        yield from _turns(identity, prompt)
    else:
        raise ValueError(f"{place}: a prompt without an answer. Give it as {', '.join(ANSWERS[:-1])} or {ANSWERS[-1]}.")


def _turns(identity: str, messages: Any) -> Iterator[LoggedAnswer]:
    """Yields each of the assistant's messages as an answer to those before it."""
    for place, message in enumerate(messages):
        if message["role"] == "assistant" and place and message["content"]:
            yield LoggedAnswer(f"{identity}, message {place + 1}", messages[:place], message["content"])


def _inner(row: Mapping[str, Any], name: str) -> Any:
    """Returns a request or a response, which may lie in a body; None if there is none."""
    found = row.get(name)
    if name == "request" and found is None and isinstance(row.get("body"), Mapping):
        found = row["body"]
    if isinstance(found, Mapping) and isinstance(found.get("body"), Mapping):
        found = found["body"]
    return found


def _prompt_of(request: Mapping[str, Any], place: str) -> str | Messages | list[int]:
    """Returns the prompt of a request in any API's form."""
    if "messages" in request:
        first = [{"role": "system", "content": text_of(request["system"])}] if request.get("system") else []
        return [*first, *map(_message, _list(request["messages"], f"{place}, messages"))]
    prompt = request.get("prompt", request.get("input"))
    if isinstance(prompt, str):
        if request.get("instructions"):
            return [_said("system", request["instructions"]), _said("user", prompt)]
        return prompt
    ids = _ids(prompt)
    if ids:
        return ids
    items = [_message(item) for item in _list(prompt, f"{place}, prompt")]
    if request.get("instructions"):
        items.insert(0, _said("system", request["instructions"]))
    return items


def _ids(value: Any) -> list[int]:
    """Returns token ids; nothing if it is something else."""
    if isinstance(value, list) and value and all(type(token) is int and token >= 0 for token in value):
        return value
    return []


def _list(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where}: text, messages or token ids are needed.")
    return value


def _said(role: str, content: Any) -> dict[str, str]:
    return {"role": role, "content": text_of(content)}


def _message(item: Any) -> dict[str, str]:
    """Returns a message or an item of any API; calls and their results are text."""
    if not isinstance(item, Mapping):
        return _said("user", item)
    role = item.get("role")
    if role not in SPEAKERS:
        is_result = str(item.get("type", "")).endswith("_output")
        role = "tool" if is_result else "assistant"
    return _said(role, item)


def _answer_of(response: Any) -> str:
    """Returns the text of a response in any API's form."""
    if isinstance(response, Mapping):
        choices = response.get("choices")
        if isinstance(choices, list) and choices:
            first = choices[0]
            return text_of(first.get("message", first.get("text")))
        return text_of(response.get("output", response))
    return text_of(response)


# Fields of a message, a part of one, or an item, whose texts the model wrote or read, in order.
WRITTEN = (
    "reasoning_content",
    "thinking",
    "summary",
    "text",
    "content",
    "name",
    "arguments",
    "input",
    "output",
    "function",
    "tool_calls",
)


def text_of(value: Any) -> str:
    """Returns the texts of a message, its parts, calls and results, one after the other."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, map(text_of, value)))
    if not isinstance(value, Mapping):
        return ""
    texts = []
    for name in WRITTEN:
        part = value.get(name)
        is_json = name in ("arguments", "input") and isinstance(part, Mapping)
        texts.append(json.dumps(part) if is_json else text_of(part))
    return "\n".join(filter(None, texts))


class _Session:
    """An agent's session, a line for each message."""

    def __init__(self) -> None:
        self.messages: Messages = []

    def read(self, row: Mapping[str, Any]) -> list[tuple[Messages, str]] | None:
        """Reads a line of a session; None if it is none.

        A message's parts come in several lines, each of which is an answer to all before it.
        """
        payload = row.get("payload")
        if isinstance(payload, Mapping) and "type" in row:  # Codex
            if row["type"] != "response_item":
                return []
            return self._said(_message(payload))
        message = row.get("message")
        if isinstance(message, Mapping) and "role" in message and "type" in row:  # Claude Code
            return self._said(_message(message))
        if "sessionId" in row or row.get("type") in ("summary", "file-history-snapshot", "session_meta"):
            return []
        return None

    def _said(self, message: dict[str, str]) -> list[tuple[Messages, str]]:
        before = list(self.messages)
        if not message["content"]:
            return []
        self.messages.append(message)
        if message["role"] == "assistant" and before:
            return [(before, message["content"])]
        return []

"""Reads logs of prompts and answers: pairs, chats, requests with their responses, and sessions of agents."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from longgraft.eval.replay.agent_sessions import AgentSessions
from longgraft.eval.replay.logged_text import Messages, message_of, messages_of, response_text, text_of
from longgraft.files.data_files import GZIP_ERRORS, opener, parse_json

FORMS = (
    "pairs of prompt and answer, chats (messages), requests with their responses (OpenAI, Anthropic), and sessions of "
    "Claude Code and Codex"
)
PROMPTS = ("prompt", "messages", "input")
ANSWERS = ("answer", "completion", "response", "output")  # keys of an answer beside its prompt, the first that is there
IDS = ("id", "_id", "custom_id", "request_id")


@dataclass(frozen=True)
class LoggedAnswer:
    """An answer of a log.

    Attributes:
        id: The row's own identity, or "line 3"; no two of a log are the same.
        prompt: Text, messages, or token ids.
        answer: Text, or token ids.
        suite: The row's suite, of recorded answers.
        end: Number of the messages that come before the answer; None: all.
    """

    id: str
    prompt: str | Messages | list[int]
    answer: str | list[int]
    suite: str = ""
    end: int | None = None


@dataclass
class Log:
    """The answers of a log, and what was wrong with lines.

    Attributes:
        answers: In order.
        problems: A sentence for each line that could not be read.
        without: Lines that were read, and hold no answer.
    """

    answers: list[LoggedAnswer] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    without: int = 0


def read_log(path: Path) -> Log:
    """Reads a log in JSONL, compressed or not.

    Raises:
        ValueError: the file cannot be opened, or holds no answer.
    """
    log = Log()
    sessions = AgentSessions()
    number = 0
    try:
        with opener(path)(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    _read_line(line, f"line {number}", sessions, log)
    except GZIP_ERRORS as error:
        log.problems.append(f"after line {number}: {error}.")
    except OSError as error:
        raise ValueError(f"File {path} cannot be read: {error}.") from error
    log.answers = _distinct(log.answers)
    if not log.answers:
        first = f" The first problem: {log.problems[0]}" if log.problems else ""
        raise ValueError(f"{path} holds no prompts with answers. Known are {FORMS}.{first}")
    return log


def _read_line(line: bytes, place: str, sessions: AgentSessions, log: Log) -> None:
    try:
        value = parse_json(line.decode("utf-8-sig"), place)
        if not isinstance(value, Mapping):
            raise ValueError("an object is needed")
        found = list(_answers_of(value, place, sessions))
    except (ValueError, RecursionError) as error:
        said = str(error)
        log.problems.append(said if said.startswith(place) else f"{place}: {said}.")
        return
    log.answers += found
    log.without += not found


def _distinct(answers: list[LoggedAnswer]) -> list[LoggedAnswer]:
    """Tells answers with one id apart by their number."""
    count = Counter(one.id for one in answers)
    seen = Counter[str]()
    found = []
    for one in answers:
        seen[one.id] += 1
        found.append(replace(one, id=f"{one.id} ({seen[one.id]})") if count[one.id] > 1 and not one.suite else one)
    return found


def _answers_of(row: Mapping[str, Any], place: str, sessions: AgentSessions) -> Iterator[LoggedAnswer]:
    """Yields the answers of one line."""
    if sessions.knows(row):
        said = sessions.read(row)
        if said is not None:
            yield LoggedAnswer(place, said.messages, said.answer, end=said.end)
        return
    identity = next((f"{row[key]}" for key in IDS if row.get(key) not in (None, "")), place)
    request = _request_of(row)
    if not any(key in request for key in PROMPTS):
        raise ValueError(f"found {', '.join(map(str, row)) or 'nothing'}. Known are {FORMS}")
    prompt = _prompt_of(request)
    key = next((key for key in ANSWERS if key in row), None)
    if key is not None:
        answer = _ids(row[key]) or response_text(_body(_parsed(row[key])))
        if answer:
            yield LoggedAnswer(identity, prompt, answer, str(row.get("suite", "")))
    elif "messages" in request:
        yield from _turns(identity, prompt)
    else:
        raise ValueError(f"a prompt without an answer. Give it as {', '.join(ANSWERS[:-1])} or {ANSWERS[-1]}")


def _turns(identity: str, messages: Any) -> Iterator[LoggedAnswer]:
    """Yields each of the assistant's messages as an answer to those before it."""
    for place, message in enumerate(messages):
        if message["role"] == "assistant" and place and message["content"]:
            yield LoggedAnswer(f"{identity}, message {place + 1}", messages, message["content"], end=place)


def _request_of(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the request of a row, which is the row itself if it has none."""
    found = _body(_parsed(row.get("request", row.get("body"))))
    return found if isinstance(found, Mapping) else row


def _body(value: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get("body"), Mapping):
        return value["body"]
    return value


def _parsed(value: Any) -> Any:
    """Returns an object that a database kept as text; anything else as it is."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            found = json.loads(value)
        except ValueError:
            return value
        if any(key in found for key in (*PROMPTS, "choices", "content", "output")):
            return found
    return value


def _prompt_of(request: Mapping[str, Any]) -> str | Messages | list[int]:
    """Returns the prompt of a request in any API's form; its tools come first, as JSON."""
    first: Messages = []
    if request.get("tools"):
        first.append({"role": "system", "content": json.dumps(request["tools"])})
    for name in ("system", "instructions"):
        if request.get(name):
            first.append({"role": "system", "content": text_of(request[name])})
    if "messages" in request:
        return [*first, *messages_of(request["messages"])]
    prompt = request.get("prompt", request.get("input"))
    if isinstance(prompt, str):
        return [*first, message_of({"role": "user", "content": prompt})] if first else prompt
    return _ids(prompt) or [*first, *messages_of(prompt)]


def _ids(value: Any) -> list[int]:
    """Returns token ids; nothing if it is something else."""
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        if min(value) < 0:
            raise ValueError(f"found the token id {min(value)}; ids are 0 or more")
        return value
    return []

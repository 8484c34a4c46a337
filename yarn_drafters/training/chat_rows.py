"""Reads the chat in a row of training data: in OpenAI's form, or in ShareGPT's with LLaMA-Factory's roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longgraft.config.options import checked
from longgraft.engine.chat_messages import chat_message
from longgraft.files.data_files import parse_json

CALL = "function_call"  # ShareGPT's role of an answer that calls tools
STANDARD = ("system", "developer", "user", "assistant", "tool")
ROLES = {role: role for role in STANDARD} | {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    CALL: "assistant",
    "observation": "tool",
    "function_response": "tool",
}
LEARNT_FLAGS = ("weight", "train", "loss")  # of OpenAI, Axolotl and ms-swift: 0 or false for an answer not to learn
# Fields that would change the chat, and that are not read.
UNREAD = ("documents", "chat_template_kwargs", "images", "videos", "audios")
UNREAD_OF_TURN = ("train_detail",)
CALL_FORM = '{"name": "find", "arguments": {"city": "Paris"}}'


@dataclass(frozen=True)
class ChatRow:
    """The chat in a row.

    Attributes:
        turns: Its messages (`chat_message`).
        tools: Its tools, in OpenAI's form.
        unlearnt: Indices of the assistant's turns that are only context.
    """

    turns: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    unlearnt: frozenset[int]

    @classmethod
    def read(cls, row: Mapping[str, Any], name: str, place: str) -> ChatRow:
        """Reads the turns in the field `name`, and the row's tools and system message.

        Raises:
            ValueError: a part cannot be read; the message begins with the place.
        """
        _refuse_unread(row, UNREAD, place)
        turns = []
        unlearnt = set()
        for number, entry in enumerate(row[name], 1):
            where = f"{place}: turn {number}"
            turn = dict(entry)
            learnt = _learnt(turn, where)
            turns.append(_message(turn, where))
            if learnt and turns[-1]["role"] != "assistant":
                raise ValueError(f"{where} is to be learnt; only the assistant's turns are. Take the flag out.")
            if learnt is False:
                unlearnt.add(len(turns) - 1)
        system = checked(row.get("system"), str | None, f"{place}: system")
        if system and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": system})
            unlearnt = {at + 1 for at in unlearnt}
        elif system and turns[0]["content"] != system:
            raise ValueError(f"{place} has a system field and another system turn. Leave one of them out.")
        return cls(tuple(turns), _tools(row, place), frozenset(unlearnt))


def _refuse_unread(fields: Mapping[str, Any], names: tuple[str, ...], place: str) -> None:
    for name in names:
        if fields.get(name):
            raise ValueError(f"{place} has {name}, which is not read. Take the field out, or leave the row out.")


def _message(turn: dict[str, Any], place: str) -> dict[str, Any]:
    """Returns a turn as a message; "from" and "value" stand for role and content."""
    _refuse_unread(turn, UNREAD_OF_TURN, place)
    for name, meaning in (("from", "role"), ("value", "content")):
        if name in turn and meaning not in turn:
            turn[meaning] = turn.pop(name)
    role = turn.get("role")
    if isinstance(role, str):
        turn["role"] = ROLES.get(role.lower(), role)
        if role.lower() == CALL:
            turn["tool_calls"] = _listed(turn.pop("content", None), f"{place} ({CALL})")
    if isinstance(turn.get("tool_calls"), list):
        turn["tool_calls"] = [_function(call, f"{place}: a call") for call in turn["tool_calls"]]
    return chat_message(turn, place)


def _learnt(turn: dict[str, Any], place: str) -> bool | None:
    """Takes the flags out of a turn; returns what they say about learning it, None without any."""
    stated = {name: turn.pop(name) for name in LEARNT_FLAGS if turn.get(name) is not None}
    for name, value in stated.items():
        if value not in (0, 1):
            raise ValueError(f"{place}: {name} is {value!r}; 0 or 1, false or true, is needed.")
    if not stated:
        return None
    return all(stated.values())


def _tools(row: Mapping[str, Any], place: str) -> tuple[dict[str, Any], ...]:
    """Returns the tools; "functions" is OpenAI's older name, and either may be JSON text."""
    name = "tools" if row.get("tools") else "functions"
    if not row.get(name):
        return ()
    tools = _listed(row[name], f"{place}: {name}")
    if tools == [None]:  # the text of a row without tools in a column of JSON
        return ()
    return tuple(_function(tool, f"{place}: {name}") for tool in tools)


def _listed(value: Any, place: str) -> list[Any]:
    """Returns a list, or the one object of which it consists; JSON text is parsed."""
    if isinstance(value, str):
        value = parse_json(value, place)
    return value if isinstance(value, list) else [value]


def _function(entry: Any, place: str) -> dict[str, Any]:
    """Returns a tool or a call in OpenAI's form; one without "function" is the function itself."""
    if isinstance(entry, dict) and "function" not in entry and "name" in entry:
        entry = {"type": "function", "function": entry}
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError(f"{place} has no function with a name that is text; one such as {CALL_FORM} is needed.")
    return entry

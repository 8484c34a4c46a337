"""Messages with tools for chat templates: as the template's family wants them, or as plain messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from longgraft.serve.tools.families import ToolFamily

ID_LENGTH = 9  # Mistral's templates refuse ids of another length, or with other characters than letters and digits
INTRODUCTION = (
    "You can call tools. These are their signatures, one a line:\n<tools>\n{tools}\n</tools>\n\n"
    "To call a tool, answer with its name and its arguments as JSON between tags:\n"
    '<tool_call>\n{{"name": "the tool\'s name", "arguments": {{"an argument": "its value"}}}}\n</tool_call>\n'
    "You will be shown its result between <tool_response> and </tool_response>."
)


def rendered(
    family: ToolFamily, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns (messages, further arguments) for the chat template.

    Args:
        tools: In OpenAI's form.
    """
    if not family.in_template:
        return list(_plain(family, messages, tools)), {}
    if family.short_ids:
        messages = [_with_short_ids(message) for message in messages]
    if family.tagged:
        messages = [_with_mappings(message) for message in messages]
    more: dict[str, Any] = {}
    if tools:
        more["tools"] = list(tools)
    return list(messages), more


def _plain(
    family: ToolFamily, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yields messages of the roles system, user and assistant, with calls and results as text.

    Some templates want user and assistant to alternate, so results join the user message behind them.
    """
    if tools:
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        content = INTRODUCTION.format(tools=listed)
        if messages[0]["role"] == "system":
            content = "\n\n".join(filter(None, [messages[0]["content"], content]))
            messages = messages[1:]
        yield {"role": "system", "content": content}
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if results and message["role"] == "user":
            message = {"role": "user", "content": "\n".join([*results, message["content"]])}
            results = []
        if results:
            yield {"role": "user", "content": "\n".join(results)}
            results = []
        calls = message.get("tool_calls")
        if calls:
            text = family.between.join(_call(family, call["function"]) for call in calls)
            message = {"role": message["role"], "content": "\n".join(filter(None, [message["content"], text]))}
        yield message
    if results:
        yield {"role": "user", "content": "\n".join(results)}


def _call(family: ToolFamily, function: dict[str, Any]) -> str:
    written = json.dumps({"name": function["name"], family.arguments: function["arguments"]}, ensure_ascii=False)
    return f"{family.begin}\n{written}\n{family.end}"


def _with_mappings(message: dict[str, Any]) -> dict[str, Any]:
    """Returns a message whose calls have mappings as arguments; text that is none becomes the only argument."""
    calls = []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        if isinstance(function["arguments"], str):
            function = function | {"arguments": {"arguments": function["arguments"]}}
        calls.append(call | {"function": function})
    return message | {"tool_calls": calls} if calls else message


def _with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_call_id" in message:
        message = message | {"tool_call_id": _short(message["tool_call_id"])}
    calls = message.get("tool_calls")
    if calls:
        message = message | {"tool_calls": [call | {"id": _short(call["id"])} for call in calls]}
    return message


def _short(name: str) -> str:
    return "".join(filter(str.isalnum, name))[-ID_LENGTH:].rjust(ID_LENGTH, "0")

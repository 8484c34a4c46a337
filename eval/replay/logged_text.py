"""The texts in messages, items and responses of all APIs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Messages = list[dict[str, str]]
"""Messages of a chat, with role and content."""

# Speakers by the names that logs give them.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
}
# Kinds of items without a role that the model wrote; those that end with _output are results.
WRITTEN_ITEMS = ("message", "function_call", "custom_tool_call", "local_shell_call", "reasoning", "web_search_call")
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
    "action",
    "command",
    "function",
    "function_call",
    "tool_calls",
)


def messages_of(value: Any) -> Messages:
    """Returns the messages of a list; raises ValueError for anything else."""
    if not isinstance(value, list) or not value:
        raise ValueError("text, messages or token ids are needed")
    return [message_of(item) for item in value]


def message_of(item: Any) -> dict[str, str]:
    """Returns a message or an item of any API; calls and their results are text.

    Raises:
        ValueError: nobody knows who said it.
    """
    if not isinstance(item, Mapping):
        return {"role": "user", "content": text_of(item)}
    role = item.get("role")
    kind = str(item.get("type", ""))
    if role is None and kind.endswith("_output"):
        role = "tool"
    elif role is None and kind in WRITTEN_ITEMS:
        role = "assistant"
    if role not in ROLES:
        raise ValueError(f"a message has role {role!r} and type {kind!r}; known roles are {', '.join(ROLES)}")
    return {"role": ROLES[role], "content": text_of(item)}


def response_text(response: Any) -> str:
    """Returns the text of a response in any API's form, or of the chunks of a stream; "" if it has none."""
    if isinstance(response, list) and response and all(_choice(chunk) is not None for chunk in response):
        return "".join(text_of(_choice(chunk).get("delta")) for chunk in response)
    if not isinstance(response, Mapping):
        return text_of(response)
    if "choices" in response:
        first = _choice(response) or {}
        return text_of(first.get("message", first.get("text")))
    return text_of(response.get("output", response.get("content", response.get("text"))))


def _choice(response: Any) -> Any:
    """Returns the first choice of a response or a chunk; None if it has none."""
    choices = response.get("choices") if isinstance(response, Mapping) else None
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        return choices[0]
    return None


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

"""Messages of a chat as chat templates take them, made of OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longgraft.files.data_files import parse_sendable

TEXT_PARTS = ("text", "input_text", "output_text")  # types of content parts that hold text


def chat_message(source: Any, where: str) -> dict[str, Any]:
    """Returns a message for a chat template: its content is text, and its calls have parsed arguments.

    Text parts are joined as lines.  Content that is null beside tool calls becomes "", because templates
    that do not expect null would write "None".  OpenAI's older names, the role "function" and "function_call", become
    "tool" and "tool_calls".  Other keys stay as they are, unless they are null.

    Args:
        source: A message such as {"role": "user", "content": "Hello"}.

    Raises:
        ValueError: the role or the content is missing or of another kind.
    """
    if not isinstance(source, Mapping):
        raise ValueError(
            f'{where} is a {type(source).__name__}; a message such as {{"role": "user", "content": "Hello"}} is needed.'
        )
    if not isinstance(source.get("role"), str):
        found = ", ".join(map(str, source)) or "nothing"
        raise ValueError(f"{where} has {found}, and no role that is text. Add the role.")
    message = {name: value for name, value in source.items() if value is not None}
    if message["role"] == "function":
        message["role"] = "tool"
    if "function_call" in message and "tool_calls" not in message:
        message["tool_calls"] = [{"type": "function", "function": message.pop("function_call")}]
    calls = message.get("tool_calls")
    message["content"] = _text(source.get("content"), bool(calls), where)
    if isinstance(calls, list):
        message["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    return message


def _text(content: Any, has_calls: bool, where: str) -> str:
    if isinstance(content, str):
        return content
    if content is None and has_calls:
        return ""
    if not isinstance(content, list):
        what = "no content" if content is None else f"content of type {type(content).__name__}"
        raise ValueError(f"{where} has {what}; text, a list of text parts, or tool_calls beside null is needed.")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
            raise ValueError(
                f"{where} has a content part of type {kind!r}; parts of text are needed, such "
                "as "
                '{"type": "text", "text": "Hello"}.'
            )
    return "\n".join(part["text"] for part in content)


def _with_parsed_arguments(call: Any) -> Any:
    """Returns a tool call whose arguments are an object, as templates expect; text that is none stays text."""
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    written = call["function"].get("arguments")
    if not isinstance(written, str):
        return call
    arguments = parse_sendable(written)
    if not isinstance(arguments, dict):
        return call
    return call | {"function": call["function"] | {"arguments": arguments}}

"""The contents of messages, which have only text for the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import Field

from longgraft.serve.formats.errors import MOST_PARAM, ApiError, shortened
from longgraft.serve.formats.json_fields import JsonFields
from longgraft.serve.formats.tool_fields import ToolCall

MESSAGES = 4096  # most messages of a chat, and parts of a message; clients send far fewer
# Parts of the assistant's messages that are left out: an earlier model's thoughts, which this one cannot read.
THOUGHTS = ("thinking", "redacted_thinking", "reasoning", "reasoning_text")


class MessagePart(JsonFields):
    """A part of a message."""

    type: str
    text: str | None = None
    refusal: str | None = None


ContentParts = Annotated[list[MessagePart], Field(fail_fast=True, max_length=MESSAGES)]


class Message(JsonFields):
    role: str
    content: str | ContentParts | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=MESSAGES)] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    def for_template(self, place: str) -> dict[str, Any]:
        """Returns the message for a chat template; raises ApiError for content other than text.

        Args:
            place: The message's field.
        """
        kinds, skipped = (("text", "refusal"), THOUGHTS) if self.role == "assistant" else (("text",), ())
        content = text_of(self.content or self.refusal, f"{place}.content", kinds, skipped)
        message: dict[str, Any] = {"role": self.role, "content": content}
        if self.role == "developer":  # OpenAI's newer name of the role system, which templates do not know
            message["role"] = "system"
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.role == "tool":
            message |= {"tool_call_id": self.tool_call_id or "", "name": self.name or ""}
        return message


def text_of(
    content: str | Sequence[Any] | None, place: str, kinds: Sequence[str] = ("text",), skipped: Sequence[str] = ()
) -> str:
    """Returns a content's texts as lines.  A text may be null.

    Args:
        content: A text, or parts that have a `type` and, if that is among `kinds`, the text.
        place: The content's field.
        kinds: Types of parts that are text.
        skipped: Types of parts that are left out.

    Raises:
        ApiError: a part is no text; its field is named.
    """
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for number, part in enumerate(content):
        at = f"{place}[{number}]"
        if part.type in skipped:
            continue
        if part.type not in kinds:
            raise ApiError(
                400, f"{at} is of type {part.type!r}, and this model takes text. Send parts of type {kinds[0]}.", at
            )
        field = "refusal" if part.type == "refusal" else "text"
        if field not in part.model_fields_set:
            raise ApiError(400, f"{at}.{field} is missing. Give it.", f"{at}.{field}")
        texts.append(getattr(part, field) or "")
    return "\n".join(texts)


def notes_on_hosted(kinds: Iterable[str], field: str, owner: str) -> list[str]:
    """Returns a sentence on each kind of items in a field that are ignored.

    Args:
        owner: The company that runs their tools.
    """
    return [
        f"{shortened(kind, MOST_PARAM)} in {field} is ignored: its tool runs on {owner}'s servers."
        for kind in dict.fromkeys(kinds)
    ]

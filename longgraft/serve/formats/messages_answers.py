"""Answers in the fields of Anthropic's /v1/messages, whole or as events."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

from longgraft.serve.formats.blocks import AnswerBlock, Blocks, Event
from longgraft.serve.formats.messages_fields import MessagesRequest
from longgraft.serve.formats.openai_answers import cost, stop_string
from longgraft.serve.served_request import End, ServedRequest
from longgraft.serve.state import State
from longgraft.serve.streaming import Answer

REASONS = {
    "eos": "end_turn",
    "stop": "stop_sequence",
    "length": "max_tokens",
    "time": "max_tokens",
    "cut": "end_turn",
    "cancelled": "end_turn",
}


class MessagesFormat:
    """The response or the events of one request."""

    def __init__(self, state: State, body: MessagesRequest, served: ServedRequest) -> None:
        self.model = state.name
        self.requested = served.requested
        self.blocks = Blocks(served.context.calls)
        self._text = state.text
        self._notes = served.context.notes
        self.id = f"msg_{uuid.uuid4().hex[:24]}"

    def response(self, answer: Answer) -> dict[str, Any]:
        """Returns the whole response."""
        self.blocks.read(answer.text)
        content = list(map(_whole, self.blocks.blocks))
        return (
            self._message(content)
            | self._stop(answer.end)
            | {"usage": usage(answer.end), "longgraft": self._cost(answer.end)}
        )

    def opening_chunks(self) -> Iterator[dict[str, Any]]:
        """Yields the event that begins a message; the tokens that were cached are known only at the end."""
        begun = self._message([]) | {
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": len(self.requested.ids),
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 0,
            },
        }
        yield {"type": "message_start", "message": begun}

    def text_chunks(self, text: str, ids: list[int]) -> Iterator[dict[str, Any]]:
        """Yields the events of new text."""
        return map(_event, self.blocks.push(text))

    def closing_chunks(self, ids: list[int], rest: list[int], end: End) -> Iterator[dict[str, Any]]:
        """Yields the last events of the content, the reason with the usage, and the end."""
        yield from map(_event, self.blocks.finish())
        yield {
            "type": "message_delta",
            "delta": self._stop(end),
            "usage": usage(end),
            "longgraft": self._cost(end),
        }
        yield {"type": "message_stop"}

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content}

    def _stop(self, end: End) -> dict[str, Any]:
        reason = REASONS[end.reason]
        if self.blocks.called and reason == "end_turn":
            reason = "tool_use"
        sequence = stop_string(end, self._text)
        return {"stop_reason": reason, "stop_sequence": sequence}

    def _cost(self, end: End) -> dict[str, Any]:
        return cost(end, self.requested, self._text, self._notes)


def usage(end: End) -> dict[str, Any]:
    """Returns token counts; input_tokens are those that were read, without the reused ones."""
    stats = end.stats
    return {
        "input_tokens": stats.prompt_tokens - stats.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.reused_tokens,
        "output_tokens": stats.new_tokens,
    }


def _whole(block: AnswerBlock) -> dict[str, Any]:
    """Returns a block with its content."""
    if not block.name:
        return {"type": "text", "text": block.text}
    return _tool_use(block) | {"input": json.loads(block.text)}


def _event(event: Event) -> dict[str, Any]:
    kind, block, text = event
    if kind == "open":
        begun: dict[str, Any] = {"type": "text", "text": ""}
        if block.name:
            begun = _tool_use(block)
        return {"type": "content_block_start", "index": block.index, "content_block": begun}
    if kind == "close":
        return {"type": "content_block_stop", "index": block.index}
    delta = {"type": "text_delta", "text": text}
    if block.name:
        delta = {"type": "input_json_delta", "partial_json": text}
    return {"type": "content_block_delta", "index": block.index, "delta": delta}


def _tool_use(block: AnswerBlock) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{block.id}", "name": block.name, "input": {}}

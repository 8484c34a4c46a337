"""Answers in the fields of OpenAI's /v1/responses, whole or as events."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from longgraft.serve.formats.blocks import AnswerBlock, Blocks, Event
from longgraft.serve.formats.openai_answers import REASONS, cost
from longgraft.serve.formats.responses_fields import ResponsesRequest
from longgraft.serve.served_request import End, ServedRequest
from longgraft.serve.state import State
from longgraft.serve.streaming import Answer

Fields = dict[str, Any]
# The name of the events with a call's arguments; its last word is their field's.
ARGUMENTS: Mapping[str, str] = {"function": "function_call_arguments", "custom": "custom_tool_call_input"}
ECHOED = ("instructions", "max_output_tokens", "parallel_tool_calls", "metadata")  # fields of the request


class ResponsesFormat:
    """The response or the events of one request."""

    def __init__(self, state: State, body: ResponsesRequest, served: ServedRequest) -> None:
        self.model = state.name
        self.body = body
        self.requested = served.requested
        self.blocks = Blocks(served.context.calls)
        self.id = f"resp_{uuid.uuid4().hex[:24]}"
        self.created = int(time.time())
        self._spelt = state.text
        self._notes = served.context.notes
        self._tools = body.offered
        self._sent = 0

    def response(self, answer: Answer) -> Fields:
        """Returns the whole response."""
        self.blocks.read(answer.text)
        return self._ended(answer.end)

    def opening_chunks(self) -> Iterator[Fields]:
        """Yields the events that begin a response."""
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", {"response": self._response("in_progress")})

    def text_chunks(self, text: str, ids: list[int]) -> Iterator[Fields]:
        """Yields the events of new text."""
        for event in self.blocks.push(text):
            yield from self._events(event)

    def closing_chunks(self, ids: list[int], rest: list[int], end: End) -> Iterator[Fields]:
        """Yields the last events of the output, and the whole response."""
        for event in self.blocks.finish():
            yield from self._events(event, _cut(end))
        ended = self._ended(end)
        yield self._event(f"response.{ended['status']}", {"response": ended})

    def _events(self, event: Event, cut: bool = False) -> Iterator[Fields]:
        """Yields the events of a block's event.

        Args:
            cut: The answer's limit has cut it off.
        """
        kind, block, _ = event
        if kind == "open":
            begun = self._item(block, "in_progress")
            yield self._event("response.output_item.added", {"output_index": block.index, "item": begun})
        if block.name:
            yield from self._call_events(event)
        else:
            yield from self._text_events(event)
        if kind == "close":
            ended = self._item(block, _status(block, cut))
            yield self._event("response.output_item.done", {"output_index": block.index, "item": ended})

    def _text_events(self, event: Event) -> Iterator[Fields]:
        kind, block, new = event
        part = {"output_index": block.index, "item_id": f"msg_{block.id}", "content_index": 0}
        if kind == "open":
            yield self._event("response.content_part.added", part | {"part": _text("")})
        elif kind == "more":
            yield self._event("response.output_text.delta", part | {"logprobs": [], "delta": new})
        else:
            yield self._event("response.output_text.done", part | {"text": block.text, "logprobs": []})
            yield self._event("response.content_part.done", part | {"part": _text(block.text)})

    def _call_events(self, event: Event) -> Iterator[Fields]:
        """Yields the events of a call's arguments."""
        kind, block, new = event
        tool = self._tools[block.name]
        if kind == "open" or tool.kind not in ARGUMENTS:
            return
        name = ARGUMENTS[tool.kind]
        place = {"output_index": block.index, "item_id": tool.id(block)}
        if kind == "more":
            before = tool.text(block.text.removesuffix(new))
            delta = tool.text(block.text)[len(before) :]
            if delta:
                yield self._event(f"response.{name}.delta", place | {"delta": delta})
        else:
            whole = {name.rpartition("_")[2]: tool.text(block.text)}
            yield self._event(f"response.{name}.done", place | {"name": tool.name} | whole)

    def _event(self, kind: str, fields: Fields) -> Fields:
        self._sent += 1
        return {"type": kind, "sequence_number": self._sent - 1, **fields}

    def _response(self, status: str) -> Fields:
        """Returns the fields that every response has, before its output."""
        body = self.body
        sampling = self.requested.sampling
        choice: Any = body.tool_choice or "auto"
        if not isinstance(choice, str):
            choice = choice.model_dump(exclude_unset=True)
        form: Fields = {"type": "text"}
        if body.text and body.text.format:
            form = body.text.format.model_dump(exclude_none=True)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": [],
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            "tool_choice": choice,
            "text": {"format": form},
            **body.model_dump(include=set(ECHOED)),
            "tools": [tool.model_dump(exclude_none=True) for tool in body.tools or ()],
        }

    def _ended(self, end: End) -> Fields:
        cut = _cut(end)
        stats = end.stats
        blocks = self.blocks.blocks
        items = [self._item(block, _status(block, cut and block is blocks[-1])) for block in blocks]
        whole = not cut and all(block.whole for block in blocks)
        figures = cost(end, self.requested, self._spelt, self._notes)
        tokens = {
            "input_tokens": stats.prompt_tokens,
            "input_tokens_details": {"cached_tokens": stats.reused_tokens},
            "output_tokens": stats.new_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": stats.prompt_tokens + stats.new_tokens,
        }
        response = self._response("completed" if whole else "incomplete")
        if cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        return response | {"output": items, "usage": tokens, "longgraft": figures}

    def _item(self, block: AnswerBlock, status: str) -> Fields:
        """Returns an item of the output, before its content if it is in progress."""
        if block.name:
            return self._tools[block.name].item(block, status)
        content = []
        if status != "in_progress":
            content.append(_text(block.text))
        return {"id": f"msg_{block.id}", "status": status, "type": "message", "role": "assistant", "content": content}


def _cut(end: End) -> bool:
    """Returns True for an answer that its limit has cut off."""
    return REASONS[end.reason] == "length"


def _status(block: AnswerBlock, cut: bool) -> str:
    """Returns the status of a block that has ended.

    Args:
        cut: The answer's limit ended it; a call may be whole then.
    """
    if block.name:
        cut = not block.whole
    return "incomplete" if cut else "completed"


def _text(text: str) -> Fields:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

"""Request fields of Anthropic's /v1/messages, and their chat in OpenAI's form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from longgraft.serve.formats.json_fields import JsonFields
from longgraft.serve.formats.request_fields import MESSAGES, STOPS, ChatRequest, Own, Speculative
from longgraft.serve.formats.tool_fields import MOST_TOOLS, Name

DROPPED = ("thinking", "redacted_thinking")     # an earlier model's, which this one cannot read
CHOICES = {"auto": "auto", "none": "none", "any": "required"}


class Block(JsonFields):
    """A part of a message: text, tool_use or tool_result."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str = ""
    input: dict[str, Any] | str | None = None
    tool_use_id: str | None = None
    content: str | Annotated[list[Block], Field(fail_fast=True, max_length=MESSAGES)] | None = None


Content = str | Annotated[list[Block], Field(fail_fast=True, max_length=MESSAGES)]


class AnthropicMessage(JsonFields):
    role: Literal["user", "assistant", "system"]
    content: Content


class AnthropicTool(JsonFields):
    type: str | None = None
    name: Name
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(JsonFields):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool | None = False


class CountTokensRequest(JsonFields):
    """A request to /v1/messages/count_tokens.  The field thinking is ignored: no answer has thoughts apart."""

    model_config = ConfigDict(protected_namespaces=())

    model: str | None = Field(None, description="Any name, because there is one model")
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=MESSAGES, fail_fast=True)]
    system: Content | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None

    def chat(self) -> ChatRequest:
        """Returns the chat; raises ValueError for content that the model cannot read."""
        return ChatRequest.model_validate(self.chat_fields())

    def chat_fields(self) -> dict[str, Any]:
        """Returns the fields of the chat that the tokens of the prompt depend on, and the choice of a tool."""
        if self.messages[-1].role == "assistant":
            raise ValueError("The last message is the assistant's, and an answer is not continued here. End with a "
                             "message of the user.")
        messages = [{"role": "system", "content": text_of(self.system)}] if self.system else []
        for message in self.messages:
            messages += _assistant(message) if message.role == "assistant" else _other(message)
        tools = [_tool(tool) for tool in self.tools or ()]
        asked = self.tool_choice or ToolChoice(type="auto")
        return {"messages": messages, "tools": tools or None,
                "tool_choice": ({"type": "function", "function": {"name": asked.name}} if asked.type == "tool"
                                else CHOICES[asked.type]),
                "parallel_tool_calls": not asked.disable_parallel_tool_use}


class MessagesRequest(CountTokensRequest):
    """A request to /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Annotated[list[str], Field(fail_fast=True, max_length=STOPS)] | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = Field(None, description="longgraft's, as in /v1/chat/completions")
    speculative: Speculative | None = None
    longgraft: Own | None = None

    def chat_fields(self) -> dict[str, Any]:
        """Returns all fields of the chat."""
        same = ("max_tokens", "stream", "temperature", "top_p", "top_k", "seed", "speculative", "longgraft")
        return super().chat_fields() | {"stop": self.stop_sequences} | {name: getattr(self, name) for name in same}


def text_of(content: Content | None) -> str:
    """Returns the text of a content's blocks as lines; raises ValueError for other blocks."""
    if not isinstance(content, list):
        return content or ""
    for block in content:
        if block.type != "text":
            raise ValueError(f"A block is of type {block.type!r}, which this model cannot read in this place. Send "
                             "text.")
    return "\n".join(block.text or "" for block in content)


def _assistant(message: AnthropicMessage) -> Iterator[dict[str, Any]]:
    """Yields an earlier answer with its calls."""
    if isinstance(message.content, str):
        yield {"role": "assistant", "content": message.content}
        return
    calls = [{"id": block.id, "function": {"name": block.name, "arguments": block.input or {}}}
             for block in message.content if block.type == "tool_use"]
    rest = [block for block in message.content if block.type not in ("tool_use", *DROPPED)]
    yield {"role": "assistant", "content": text_of(rest), "tool_calls": calls or None}


def _other(message: AnthropicMessage) -> Iterator[dict[str, Any]]:
    """Yields the results of tools, and then the text of a message."""
    content = message.content if isinstance(message.content, list) else [Block(type="text", text=message.content)]
    rest = [block for block in content if block.type != "tool_result"]
    for block in content:
        if block.type == "tool_result":
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": text_of(block.content)}
    if rest:
        yield {"role": message.role, "content": text_of(rest)}


def _tool(tool: AnthropicTool) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise ValueError(f"Tool {tool.name} is of type {tool.type}, which runs on Anthropic's servers. Give tools with "
                         "an input_schema.")
    return {"type": "function", "function": {"name": tool.name, "description": tool.description,
                                             "parameters": tool.input_schema}}

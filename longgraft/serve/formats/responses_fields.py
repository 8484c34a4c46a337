"""Request fields of OpenAI's /v1/responses, and their chat in the form of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from longgraft.config.settings import SamplingSettings
from longgraft.serve.formats.as_chat import chat_of, may_constrain
from longgraft.serve.formats.json_fields import JsonFields, described_by
from longgraft.serve.formats.request_fields import MESSAGES, ChatRequest, Limit, Own, Speculative, Unsupported
from longgraft.serve.formats.responses_tools import (
    COMMAND,
    INPUT,
    SHELL,
    Offered,
    ResponsesTool,
    function_name,
    notes_of,
    offered,
)
from longgraft.serve.formats.tool_fields import MOST_TOOLS

TEXTS = ("input_text", "output_text", "text", "refusal")
LOGPROBS = "message.output_text.logprobs"  # in `include`
CALLS = ("function_call", "custom_tool_call", "local_shell_call")
OUTPUTS = tuple(f"{call}_output" for call in CALLS)
STORED = ("previous_response_id", "conversation", "background", "prompt")  # need answers that a server stores


class TextPart(JsonFields):
    type: str
    text: str | None = None
    refusal: str | None = None


Content = str | Annotated[list[TextPart], Field(fail_fast=True, max_length=MESSAGES)]


class Item(JsonFields):
    """An item of the input: a message, a call of a tool, or its output."""

    type: str | None = None
    role: str = ""
    content: Content | None = None
    call_id: str | None = None
    name: str = ""
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    action: dict[str, Any] | None = None
    id: str | None = None
    output: Content | None = None


class NamedTool(JsonFields):
    type: Literal["function", "custom"]
    name: str


class TextFormat(JsonFields):
    model_config = ConfigDict(serialize_by_alias=True)

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(JsonFields):
    format: TextFormat | None = None


class ResponsesRequest(JsonFields):
    """A request to /v1/responses.  Nothing is stored, so each request brings the whole conversation.

    Fields that only /v1/chat/completions has count as there.
    """

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = Field(None, description="Any name, because there is one model")
    input: str | Annotated[list[Item], Field(min_length=1, max_length=MESSAGES, fail_fast=True)]
    instructions: str | None = None
    tools: Annotated[list[ResponsesTool], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = True
    text: TextOptions | None = None
    max_output_tokens: Limit | None = None
    stream: bool | None = False
    temperature: float | None = described_by(SamplingSettings, "temperature")
    top_p: float | None = described_by(SamplingSettings, "top_p")
    metadata: dict[str, Any] | None = None
    seed: int | None = Field(None, description="longgraft's, as in /v1/chat/completions")
    speculative: Speculative | None = None
    longgraft: Own | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: Annotated[list[str], Field(fail_fast=True, max_length=MESSAGES)] | None = None

    @property
    def constrained(self) -> bool:
        """True if there may be a constraint to compile."""
        return bool(self.tools or (self.text and self.text.format)) or may_constrain(self.model_extra or {})

    @property
    def names(self) -> dict[str, str]:
        """The names of fields here, by those of the chat."""
        names = {}
        if self._response_format():
            names["response_format"] = "text.format"
        if self.max_output_tokens is not None:
            names["max_tokens"] = "max_output_tokens"
        return names

    def check_supported(self) -> None:
        """Raises Unsupported for fields that would change the answer and are not supported."""
        if self.truncation == "auto":
            raise Unsupported(
                "truncation",
                "truncation is auto, and no message is left out here. Leave it "
                "out, and shorten the conversation if it is too long.",
            )
        if LOGPROBS in (self.include or ()):
            raise Unsupported(
                "include",
                f"include has {LOGPROBS}, which are not supported here. Leave it "
                "out, or ask /v1/chat/completions with logprobs.",
            )
        for name in STORED:
            if (self.model_extra or {}).get(name):
                raise Unsupported(
                    name,
                    f"{name} is not supported here, because nothing is stored. Send the whole conversation as input.",
                )

    @property
    def offered(self) -> dict[str, Offered]:
        """The tools that the model may call, by the names of their functions.

        Raises Unsupported for other tools.
        """
        return offered(self.tools or ())

    @property
    def notes(self) -> list[str]:
        """Sentences on what is ignored."""
        return notes_of(self.tools or ())

    def chat(self) -> ChatRequest:
        """Returns the chat; raises ValueError for content that the model cannot read."""
        messages = list[dict[str, Any]]()
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            messages.append({"role": "user", "content": self.input})
        else:
            messages += _messages(self.input)
        tools = [{"type": "function", "function": tool.function} for tool in self.offered.values()]
        same = {"parallel_tool_calls", "stream", "temperature", "top_p", "seed", "speculative", "longgraft"}
        fields = self.model_dump(include=same) | {
            "messages": messages,
            "tools": tools or None,
            "tool_choice": self._choice(),
            "max_tokens": self.max_output_tokens,
            "response_format": self._response_format(),
        }
        return chat_of(fields, self.model_extra or {})

    def _choice(self) -> Any:
        """Returns the chat's choice of a tool."""
        choice = self.tool_choice
        if not isinstance(choice, NamedTool):
            return choice
        function = choice.name
        for name, tool in self.offered.items():
            if tool.kind == choice.type and tool.name == choice.name:
                function = name
                break
        return {"type": "function", "function": {"name": function}}

    def _response_format(self) -> dict[str, Any] | None:
        form = self.text and self.text.format
        if not form or form.type == "text":
            return None
        if form.json_schema is None:
            return {"type": form.type}
        return {"type": form.type, "json_schema": {"schema": form.json_schema, "strict": form.strict}}


def text_of(content: Content | None) -> str:
    """Returns the text of a content's parts as lines; raises ValueError for other parts."""
    if not isinstance(content, list):
        return content or ""
    for part in content:
        if part.type not in TEXTS:
            raise ValueError(
                f"A part of the content is of type {part.type!r}, and this model takes text. "
                "Send parts of type input_text."
            )
    return "\n".join(part.text or part.refusal or "" for part in content)


def _messages(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Returns messages; calls that follow a message of the assistant, or one another, are one message."""
    messages: list[dict[str, Any]] = []
    for item in items:
        if item.type in (None, "message"):
            messages.append({"role": item.role, "content": text_of(item.content)})
        elif item.type in CALLS:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(_call(item))
        elif item.type in OUTPUTS:
            messages.append(
                {"role": "tool", "tool_call_id": item.call_id or item.id or "", "content": text_of(item.output)}
            )
        elif item.type != "reasoning":  # an earlier model's, which this one cannot read
            raise ValueError(
                f"An item of the input is of type {item.type!r}, which is not supported here. "
                f"Send messages, {', '.join(CALLS)}, and outputs of these."
            )
    return messages


def _call(item: Item) -> dict[str, Any]:
    """Returns an earlier call as one of the function by which the tool is offered."""
    name = function_name(item.name, item.namespace)
    arguments = item.arguments
    if item.type == "custom_tool_call":
        arguments = {INPUT: item.input or ""}
    elif item.type == "local_shell_call":
        action = item.action or {}
        name = SHELL
        arguments = {key: action[key] for key in COMMAND["properties"] if action.get(key) is not None}
    return {"id": item.call_id or item.id, "function": {"name": name, "arguments": arguments}}

"""Request fields of OpenAI's /v1/responses, and their chat in the form of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from longgraft.config.answer_settings import SamplingSettings
from longgraft.serve.formats.as_chat import chat_of, may_constrain
from longgraft.serve.formats.contents import MESSAGES, THOUGHTS, ContentParts, notes_on_hosted, text_of
from longgraft.serve.formats.errors import MOST_PARAM, ApiError, shortened
from longgraft.serve.formats.json_fields import JsonFields, described_by
from longgraft.serve.formats.request_fields import ChatRequest, Limit, Own, Speculative
from longgraft.serve.formats.responses_tools import (
    COMMAND,
    INPUT,
    PREFIXES,
    SHELL,
    Offered,
    ResponsesTool,
    function_name,
    hosted,
    notes_of,
    offered,
)
from longgraft.serve.formats.tool_fields import MOST_TOOLS
from longgraft.serve.formats.unsupported_fields import Unsupported

TEXTS = ("input_text", "output_text", "text", "refusal")
LOGPROBS = "message.output_text.logprobs"  # in `include`
CALLS = ("function_call", "custom_tool_call", "local_shell_call")
OUTPUTS = tuple(f"{call}_output" for call in CALLS)
STORED = ("previous_response_id", "conversation", "background", "prompt")  # need answers that a server stores


# Items that stand for others, which are not here.
ABSENT = {
    "item_reference": "stored nowhere here. Send the item itself, as clients do with store: false.",
    "compaction": "readable only for OpenAI's servers. Send the items that it stands for.",
}


class Item(JsonFields):
    """An item of the input: a message, a call of a tool, or its output."""

    type: str | None = None
    role: str = ""
    content: str | ContentParts | None = None
    call_id: str | None = None
    name: str = ""
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    action: dict[str, Any] | None = None
    id: str | None = None
    output: str | ContentParts | None = None

    @model_validator(mode="before")
    @classmethod
    def without_hosted(cls, fields: Any) -> Any:
        """Drops the content of an item that is ignored, which may have any form."""
        if isinstance(fields, dict) and hosted(str(fields.get("type"))):
            return {"type": fields["type"]}
        return fields


class NamedTool(JsonFields):
    type: str
    name: str = ""


class ChosenTools(NamedTool):
    """A tool that must be called, or for type allowed_tools those that may be called."""

    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[NamedTool], Field(max_length=MOST_TOOLS, fail_fast=True)] = Field(default_factory=list)


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
    tool_choice: Literal["auto", "none", "required"] | ChosenTools | None = None
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
        items = () if isinstance(self.input, str) else self.input
        ignored = [item.type for item in items if item.type and hosted(item.type)]
        allowed = self.tool_choice.tools if isinstance(self.tool_choice, ChosenTools) else ()
        return [
            *notes_of(self.tools or ()),
            *(
                f"tool_choice.tools[{number}] is ignored: {shortened(tool.type, MOST_PARAM)} runs on OpenAI's servers."
                for number, tool in enumerate(allowed)
                if hosted(tool.type)
            ),
            *notes_on_hosted(ignored, "input", "OpenAI"),
        ]

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
        if choice.type != "allowed_tools":
            return self._function(choice, "tool_choice")
        if choice.mode is None:
            raise ApiError(400, "tool_choice.mode is missing. Give auto or required.", "tool_choice.mode")
        tools = [
            self._function(tool, f"tool_choice.tools[{number}]")
            for number, tool in enumerate(choice.tools)
            if not hosted(tool.type)
        ]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": tools}}

    def _function(self, choice: NamedTool, place: str) -> dict[str, Any]:
        """Returns the chat's choice of one tool; raises Unsupported for a kind that is never offered.

        Args:
            place: The field.
        """
        if choice.type not in PREFIXES:
            why = "runs on OpenAI's servers" if hosted(choice.type) else "is not known here"
            raise Unsupported(
                place, f"{place} asks for {shortened(choice.type, MOST_PARAM)}, which {why}. Choose another tool."
            )
        function = SHELL if choice.type == SHELL else choice.name
        if not function:
            raise ApiError(400, f"{place}.name is missing. Give it.", f"{place}.name")
        for name, tool in self.offered.items():
            if tool.kind == choice.type and tool.name == function:
                function = name
                break
        return {"type": "function", "function": {"name": function}}

    def _response_format(self) -> dict[str, Any] | None:
        form = self.text and self.text.format
        if not form or form.type == "text":
            return None
        if form.json_schema is None:
            if form.type == "json_schema":
                raise ApiError(400, "text.format.schema is missing. Give it.", "text.format.schema")
            return {"type": form.type}
        return {"type": form.type, "json_schema": {"schema": form.json_schema, "strict": form.strict}}


def _messages(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Returns messages; calls that follow a message of the assistant, or one another, are one message."""
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        place = f"input[{number}]"
        if item.type in (None, "message"):
            if not item.role:
                raise ApiError(400, f"{place}.role is missing. Give it.", f"{place}.role")
            skipped = THOUGHTS if item.role == "assistant" else ()
            messages.append({"role": item.role, "content": text_of(item.content, f"{place}.content", TEXTS, skipped)})
        elif item.type in CALLS:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(_call(item))
        elif item.type in OUTPUTS:
            content = text_of(item.output, f"{place}.output", TEXTS)
            messages.append({"role": "tool", "tool_call_id": item.call_id or item.id or "", "content": content})
        elif item.type != "reasoning" and not hosted(item.type):  # an earlier model's, which this one cannot read
            known = f"not supported here. Send messages, {', '.join(CALLS)}, and outputs of these."
            kind = shortened(item.type, MOST_PARAM)
            raise Unsupported(place, f"{place} is of type {kind!r}, which is {ABSENT.get(kind, known)}")
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

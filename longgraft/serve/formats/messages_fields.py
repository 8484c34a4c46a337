"""Request fields of Anthropic's /v1/messages, and their chat in OpenAI's form."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from longgraft.config.answer_settings import SamplingSettings
from longgraft.serve.formats.as_chat import chat_of, may_constrain, of_prompt
from longgraft.serve.formats.contents import MESSAGES, THOUGHTS, notes_on_hosted, text_of
from longgraft.serve.formats.errors import MOST_PARAM, shortened
from longgraft.serve.formats.json_fields import JsonFields, described_by
from longgraft.serve.formats.request_fields import STOPS, ChatRequest, Limit, Own, Speculative
from longgraft.serve.formats.tool_fields import MOST_TOOLS, Function, Name, check_names
from longgraft.serve.formats.unsupported_fields import Unsupported

HOSTED = ("mcp_servers", "container")
HOSTED_TOOLS = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset")
CHOICES = {"auto": "auto", "none": "none", "any": "required"}


class ContentBlock(JsonFields):
    """A part of a message: text, tool_use or tool_result."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str = ""
    input: dict[str, Any] | str | None = None
    tool_use_id: str | None = None
    content: str | Annotated[list[ContentBlock], Field(fail_fast=True, max_length=MESSAGES)] | None = None

    @model_validator(mode="before")
    @classmethod
    def without_hosted(cls, fields: Any) -> Any:
        """Drops the content of a block that is ignored, which may have any form."""
        if isinstance(fields, dict) and _hosted(str(fields.get("type"))):
            return {"type": fields["type"]}
        return fields

    @property
    def hosted(self) -> bool:
        """True for the call of a tool that ran on Anthropic's servers, and for its result."""
        return _hosted(self.type)


def _hosted(kind: str) -> bool:
    return kind in ("server_tool_use", "mcp_tool_use") or kind.endswith("_tool_result")


Content = str | Annotated[list[ContentBlock], Field(fail_fast=True, max_length=MESSAGES)]


class AnthropicMessage(JsonFields):
    role: Literal["user", "assistant", "system"]
    content: Content


class AnthropicTool(JsonFields):
    """A tool; also in the form of OpenAI's chats (function) or responses (parameters)."""

    type: str | None = None
    name: Name | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    function: Function | None = None

    @property
    def hosted(self) -> bool:
        """True for a tool that runs on Anthropic's servers.  Clients offer them, and manage without."""
        return (self.type or "").startswith(HOSTED_TOOLS)

    def for_chat(self, place: str) -> dict[str, Any]:
        """Returns the tool for a chat; raises Unsupported if it cannot be one.

        Args:
            place: The field.
        """
        if self.type not in (None, "custom", "function"):
            raise Unsupported(
                f"{place}.type",
                f"{place} is of type {self.type}, which only Anthropic's models know. Give it with an input_schema "
                "instead of the type.",
            )
        if self.function is not None:
            return {"type": "function", "function": self.function.model_dump()}
        if self.name is None:
            raise Unsupported(f"{place}.name", f"{place}.name is missing. Give it.")
        schema = self.input_schema
        if schema is None:
            schema = self.parameters
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": schema,
                "strict": self.strict,
            },
        }


class ToolChoice(JsonFields):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool | None = False

    def for_chat(self) -> Any:
        """Returns the chat's choice of a tool."""
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return CHOICES[self.type]


class OutputFormat(JsonFields):
    """A schema that the answer follows."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(JsonFields):
    format: OutputFormat | None = None


class CountTokensRequest(JsonFields):
    """A request to /v1/messages/count_tokens.  The field thinking is ignored: no answer has thoughts apart.

    Fields that only /v1/chat/completions has count as there.
    """

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = Field(None, description="Any name, because there is one model")
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=MESSAGES, fail_fast=True)]
    system: Content | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None

    @property
    def names(self) -> dict[str, str]:
        """The names of fields here, by those of the chat."""
        return {}

    @property
    def notes(self) -> list[str]:
        """Sentences on what is ignored."""
        tools = [
            f"tools[{n}] is ignored: {shortened(tool.type or '', MOST_PARAM)} runs on Anthropic's servers."
            for n, tool in enumerate(self.tools or ())
            if tool.hosted
        ]
        answers = [message.content for message in self.messages if not isinstance(message.content, str)]
        ignored = [block.type for block in chain.from_iterable(answers) if block.hosted]
        return [*tools, *notes_on_hosted(ignored, "messages", "Anthropic")]

    def check_supported(self) -> None:
        """Raises Unsupported for fields that need Anthropic's servers."""
        for name in HOSTED:
            if (self.model_extra or {}).get(name):
                raise Unsupported(
                    name, f"{name} is not supported here, because it runs on Anthropic's servers. Leave it out."
                )

    def chat(self) -> ChatRequest:
        """Returns the chat; raises ValueError for content that the model cannot read."""
        return chat_of(self.chat_fields(), of_prompt(self.model_extra or {}))

    def chat_fields(self) -> dict[str, Any]:
        """Returns the fields of the chat that the tokens of the prompt depend on, and the choice of a tool."""
        if self.messages[-1].role == "assistant":
            raise ValueError(
                "The last message is the assistant's, and an answer is not continued here. End "
                "with a message of the user."
            )
        messages = list[dict[str, Any]]()
        if self.system:
            messages.append({"role": "system", "content": text_of(self.system, "system")})
        for number, message in enumerate(self.messages):
            turns = _assistant if message.role == "assistant" else _other
            messages += turns(message, f"messages[{number}]")
        tools = {f"tools[{n}]": tool for n, tool in enumerate(self.tools or ()) if not tool.hosted}
        offered = {place: tool.for_chat(place) for place, tool in tools.items()}
        names = {place: tool["function"]["name"] for place, tool in offered.items()}
        check_names(names)
        choice = self.tool_choice or ToolChoice(type="auto")
        hosted = [tool.name for tool in self.tools or () if tool.hosted]
        if choice.type == "tool" and choice.name in hosted and choice.name not in names.values():
            raise Unsupported(
                "tool_choice",
                f"tool_choice asks for {choice.name}, which runs on Anthropic's servers. Choose another tool.",
            )
        return {
            "messages": messages,
            "tools": list(offered.values()) or None,
            "tool_choice": choice.for_chat(),
            "parallel_tool_calls": not choice.disable_parallel_tool_use,
        }


class MessagesRequest(CountTokensRequest):
    """A request to /v1/messages."""

    max_tokens: Limit
    stop_sequences: Annotated[list[str], Field(fail_fast=True, max_length=STOPS)] | None = None
    stream: bool | None = False
    temperature: float | None = described_by(SamplingSettings, "temperature")
    top_p: float | None = described_by(SamplingSettings, "top_p")
    top_k: int | None = described_by(SamplingSettings, "top_k")
    seed: int | None = Field(None, description="longgraft's, as in /v1/chat/completions")
    speculative: Speculative | None = None
    longgraft: Own | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = Field(None, description="The older name of output_config.format")

    @property
    def constrained(self) -> bool:
        """True if there may be a constraint to compile."""
        return bool(self.tools or self._format) or may_constrain(self.model_extra or {})

    @property
    def names(self) -> dict[str, str]:
        """The names of fields here, by those of the chat."""
        names = {}
        if self.stop_sequences:
            names["stop"] = "stop_sequences"
        if self.output_format:
            names["response_format"] = "output_format"
        elif self._format:
            names["response_format"] = "output_config.format"
        return names

    @property
    def _format(self) -> OutputFormat | None:
        if self.output_format or self.output_config is None:
            return self.output_format
        return self.output_config.format

    def chat(self) -> ChatRequest:
        return chat_of(self.chat_fields(), self.model_extra or {})

    def chat_fields(self) -> dict[str, Any]:
        """Returns all fields of the chat."""
        same = {"max_tokens", "stream", "temperature", "top_p", "top_k", "seed", "speculative", "longgraft"}
        form = self._format and {
            "type": "json_schema",
            "json_schema": {"schema": self._format.json_schema, "strict": True},
        }
        fields = super().chat_fields() | self.model_dump(include=same)
        return fields | {"stop": self.stop_sequences, "response_format": form}


def _assistant(message: AnthropicMessage, place: str) -> Iterator[dict[str, Any]]:
    """Yields an earlier answer with its calls."""
    calls = []
    skipped = ["tool_use", *THOUGHTS]
    for block in () if isinstance(message.content, str) else message.content:
        if block.type == "tool_use":
            calls.append({"id": block.id, "function": {"name": block.name, "arguments": block.input or {}}})
        elif block.hosted:
            skipped.append(block.type)
    content = text_of(message.content, f"{place}.content", skipped=skipped)
    yield {"role": "assistant", "content": content, "tool_calls": calls or None}


def _other(message: AnthropicMessage, place: str) -> Iterator[dict[str, Any]]:
    """Yields the results of tools, and then the text of a message."""
    content = message.content
    if isinstance(content, str):
        content = [ContentBlock(type="text", text=content)]
    for number, block in enumerate(content):
        if block.type == "tool_result":
            result = text_of(block.content, f"{place}.content[{number}].content")
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": result}
    skipped = ["tool_result", *(block.type for block in content if block.hosted)]
    if any(block.type not in skipped for block in content):
        yield {"role": message.role, "content": text_of(content, f"{place}.content", skipped=skipped)}

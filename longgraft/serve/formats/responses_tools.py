"""Tools of OpenAI's /v1/responses: functions, and the tools that can be offered to a model as functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic_core import from_json

from longgraft.serve.formats.blocks import AnswerBlock
from longgraft.serve.formats.errors import MOST_PARAM, shortened
from longgraft.serve.formats.json_fields import JsonFields
from longgraft.serve.formats.tool_fields import MOST_TOOLS, Function, Name, check_names
from longgraft.serve.formats.unsupported_fields import Unsupported

Fields = dict[str, Any]
Kind = Literal["function", "custom", "local_shell"]
PREFIXES: Mapping[Kind, str] = {"function": "fc", "custom": "ctc", "local_shell": "lsh"}  # of items' ids
# These run on OpenAI's servers.  Clients offer them to every model, and manage without.
HOSTED = ("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "tool_search", "computer")
INPUT = "input"  # the argument of a custom tool
ONE_TEXT: Fields = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}
SHELL: Literal["local_shell"] = "local_shell"
COMMAND: Fields = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}},
        "timeout_ms": {"type": "integer"},
        "working_directory": {"type": "string"},
    },
    "required": ["command"],
    "additionalProperties": False,
}


class CustomFormat(JsonFields):
    """The format of a custom tool's input: text, or a grammar."""

    type: str = "text"
    syntax: str | None = None
    definition: str | None = None


class ResponsesTool(JsonFields):
    """A tool.

    Attributes:
        function: The description in the form of chats.
        tools: The tools of a namespace.
        format: The format of a custom tool's input.
    """

    model_config = ConfigDict(extra="allow")

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    function: Function | None = None
    tools: Annotated[list[ResponsesTool], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    format: CustomFormat | None = None


@dataclass(frozen=True)
class Offered:
    """A tool that the model may call.

    Attributes:
        function: The tool as a chat offers it.
        kind: Its kind for the client.
        name: Its name for the client; the function's name has the namespace, too.
        namespace: Its namespace for the client.
    """

    function: Fields
    kind: Kind
    name: str
    namespace: str | None = None

    def item(self, block: AnswerBlock, status: str) -> Fields:
        """Returns an item of the output: a call, without its arguments while it is in progress."""
        same = {"id": self.id(block), "status": status, "call_id": f"call_{block.id}"}
        if self.kind == "local_shell":
            action = {"env": {}, "command": [], **_begun(block.text), "type": "exec"}
            return same | {"type": "local_shell_call", "action": action}
        same["name"] = self.name
        if self.namespace:
            same["namespace"] = self.namespace
        if self.kind == "custom":
            return same | {"type": "custom_tool_call", "input": self.text(block.text)}
        return same | {"type": "function_call", "arguments": block.text}

    def id(self, block: AnswerBlock) -> str:
        """Returns the item's id."""
        return f"{PREFIXES[self.kind]}_{block.id}"

    def text(self, arguments: str) -> str:
        """Returns the text that events give of the arguments, which may still grow."""
        if self.kind == "function":
            return arguments
        values = _begun(arguments)
        if not values:
            return ""
        text = values.get(INPUT)
        return text if isinstance(text, str) else arguments


def _begun(arguments: str) -> Fields:
    """Returns the arguments as far as they have arrived; none if they are no JSON object."""
    try:
        return from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return {}


def function_name(name: str, namespace: str | None) -> str:
    """Returns the name of a function that the model sees."""
    if not namespace:
        return name
    return f"{namespace.rstrip('_')}__{name}"


def offered(tools: Sequence[ResponsesTool]) -> dict[str, Offered]:
    """Returns the tools that the model may call, by the names of their functions.

    Raises:
        Unsupported: a tool cannot be offered.
        ApiError: two tools have one name.
    """
    by_field = dict(_offered(tools, "tools", None))
    check_names({field: tool.function["name"] for field, tool in by_field.items()})
    return {tool.function["name"]: tool for tool in by_field.values()}


def notes_of(tools: Sequence[ResponsesTool]) -> list[str]:
    """Returns a sentence on each tool of which something is ignored."""
    notes = []
    for number, tool in enumerate(tools):
        if hosted(tool.type):
            kind = shortened(tool.type, MOST_PARAM)
            notes.append(f"tools[{number}] is ignored: {kind} runs on OpenAI's servers.")
        elif tool.format is not None and tool.format.definition:
            notes.append(f"The grammar of tools[{number}] is shown to the model, and not enforced.")
    return notes


def _offered(tools: Sequence[ResponsesTool], place: str, namespace: str | None) -> Iterator[tuple[str, Offered]]:
    """Yields (a tool's field, the tool)."""
    for number, tool in enumerate(tools):
        field = f"{place}[{number}]"
        if tool.type == "namespace":
            yield from _offered(tool.tools or (), f"{field}.tools", tool.name)
        elif tool.type == SHELL:
            yield field, Offered({"name": SHELL, "description": "Runs a command.", "parameters": COMMAND}, SHELL, SHELL)
        elif tool.type in ("function", "custom"):
            yield field, _named(tool, field, namespace)
        elif not hosted(tool.type):
            raise Unsupported(
                f"{field}.type",
                f"{field} is of type {tool.type}, which is not known here. Give a function or a custom tool.",
            )


def _named(tool: ResponsesTool, place: str, namespace: str | None) -> Offered:
    """Returns a function or a custom tool."""
    fields: Fields = (tool.function or tool).model_dump()
    name = fields.get("name")
    if name is None:
        raise Unsupported(f"{place}.name", f"{place}.name is missing. Give it.")
    kind: Kind = "function"
    description = fields.get("description")
    parameters = fields.get("parameters")
    if tool.type == "custom":
        kind = "custom"
        parameters = ONE_TEXT
        if tool.format is not None and tool.format.definition:
            description = (
                f"{description or ''}\n\nThe input follows this {tool.format.syntax or ''} "
                f"grammar:\n{tool.format.definition}"
            ).strip()
    function = {
        "name": function_name(name, namespace),
        "description": description,
        "parameters": parameters,
        "strict": fields.get("strict"),
    }
    return Offered(function, kind, name, namespace)


def hosted(kind: str) -> bool:
    """Returns True for the type of a tool that runs on OpenAI's servers, or of its calls and their results."""
    return kind.startswith(HOSTED)

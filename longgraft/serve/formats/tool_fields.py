"""Request fields of tools, in OpenAI's form, and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from longgraft.files.data_files import parse_sendable
from longgraft.serve.formats.errors import ApiError
from longgraft.serve.formats.json_fields import JsonFields
from longgraft.serve.tools.grammar import Tool

MOST_TOOLS = 512  # clients send up to some dozens
Name = Annotated[str, Field(min_length=1, max_length=128)]


class Function(JsonFields):
    """A function that the model may call.

    Attributes:
        name: Its name.
        description: What it does, for the model.
        parameters: JSON schema of its arguments.
        strict: Refuse a schema that cannot be followed in every keyword.
    """

    model_config = ConfigDict(extra="allow")

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(JsonFields):
    type: Literal["function"] = "function"
    function: Function

    def for_template(self) -> dict[str, Any]:
        """Returns the tool for a chat template."""
        shown = self.function.model_dump(exclude_none=True, exclude={"strict"})
        return {"type": "function", "function": shown}


class FunctionName(JsonFields):
    name: str


@dataclass(frozen=True)
class Choice:
    """The calls that an answer may have.

    Attributes:
        mode: auto, none or required.
        names: The tools that may be called; None: all.
        many: It may have several calls.
    """

    mode: str
    names: Sequence[str] | None = None
    many: bool = True


class NamedFunction(JsonFields):
    """OpenAI's choice of one function."""

    type: Literal["function"]
    function: FunctionName

    @property
    def choice(self) -> Choice:
        return Choice("required", [self.function.name], many=False)


class AllowedFunctions(JsonFields):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(max_length=MOST_TOOLS, fail_fast=True)]


class AllowedTools(JsonFields):
    """OpenAI's choice among some of the tools; the model is shown all of them."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctions

    @property
    def choice(self) -> Choice:
        allowed = self.allowed_tools
        return Choice(allowed.mode, [tool.function.name for tool in allowed.tools])


class CalledFunction(JsonFields):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(JsonFields):
    """A call in an earlier answer."""

    id: str | None = None
    type: str | None = None
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Returns the call for a chat template, with parsed arguments, or with their text if it is no JSON object.

        A model may have written such a text, and without it the conversation could not go on.
        """
        arguments = self.function.arguments or {}
        if isinstance(arguments, str):
            parsed = parse_sendable(arguments)
            if isinstance(parsed, dict):
                arguments = parsed
        return {
            "id": self.id or "",
            "type": "function",
            "function": {"name": self.function.name, "arguments": arguments},
        }


class ToolFields(BaseModel):
    """Tools, and which of them the answer must call."""

    tools: Annotated[list[FunctionTool], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedFunction | AllowedTools | None = Field(
        None, description="auto (the default), none, required, one function by its name, or some of the tools"
    )
    parallel_tool_calls: bool | None = Field(True, description="False: at most one call in an answer")

    def check_names(self) -> None:
        """Raises ApiError about the second of two tools with one name."""
        check_names({f"tools[{n}]": tool.function.name for n, tool in enumerate(self.tools or ())})

    def callable_tools(self) -> list[Tool]:
        """Returns the tools that the answer may call; raises ValueError about tools that cannot be chosen."""
        names = [tool.function.name for tool in self.tools or ()]
        choice = self._choice
        for name in choice.names or ():
            if name not in names:
                raise ValueError(f"tool_choice names {name}, which is not among the tools. Name one of them.")
        if choice.mode == "none":
            return []
        tools = []
        for tool in self.tools or ():
            function = tool.function
            if choice.names is None or function.name in choice.names:
                tools.append(Tool(function.name, function.parameters, bool(function.strict or self.must_call)))
        if self.must_call and not tools:
            raise ValueError(
                "tool_choice is required, and there are no tools that the model may call. Give one, and allow it."
            )
        return tools

    @property
    def must_call(self) -> bool:
        """True if the answer must call a tool."""
        return self._choice.mode == "required"

    @property
    def many_calls(self) -> bool:
        """True if the answer may call several tools."""
        return self.parallel_tool_calls is not False and self._choice.many

    @property
    def _choice(self) -> Choice:
        if isinstance(self.tool_choice, BaseModel):
            return self.tool_choice.choice
        return Choice(self.tool_choice or "auto")


def check_names(names: Mapping[str, str]) -> None:
    """Raises ApiError about the second of two tools with one name.

    Args:
        names: The tools' names by their fields.
    """
    known = set[str]()
    for field, name in names.items():
        if name in known:
            raise ApiError(400, f"Two tools have the name {name}. Give each its own.", field)
        known.add(name)

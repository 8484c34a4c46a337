"""Request fields of tools, in OpenAI's form, and their checks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from longgraft.config.data_files import parse_sendable
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


class NamedFunction(JsonFields):
    """OpenAI's choice of one function."""

    type: Literal["function"]
    function: FunctionName


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
    tool_choice: Literal["auto", "none", "required"] | NamedFunction | None = Field(
        None, description="auto (the default), none, required, or one function by its name"
    )
    parallel_tool_calls: bool | None = Field(True, description="False: at most one call in an answer")

    def callable_tools(self) -> list[Tool]:
        """Returns the tools that the answer may call; raises ValueError about tools that cannot be chosen."""
        tools = []
        for tool in self.tools or ():
            strict = bool(tool.function.strict or self.must_call)
            tools.append(Tool(tool.function.name, tool.function.parameters, strict))
        if len({tool.name for tool in tools}) < len(tools):
            raise ValueError("Two tools have the same name. Give each its own.")
        if isinstance(self.tool_choice, NamedFunction):
            named = self.tool_choice.function.name
            if named not in (tool.name for tool in tools):
                raise ValueError(f"tool_choice names {named}, which is not among the tools. Name one of them.")
            return [tool for tool in tools if tool.name == named]
        if self.must_call and not tools:
            raise ValueError("tool_choice is required, and there are no tools. Give tools.")
        if self.tool_choice == "none":
            return []
        return tools

    @property
    def must_call(self) -> bool:
        """True if the answer must call a tool."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedFunction)

    @property
    def many_calls(self) -> bool:
        """True if the answer may call several tools."""
        return self.parallel_tool_calls is not False and not isinstance(self.tool_choice, NamedFunction)

"""The ways in which model families write tool calls, recognised by the chat template."""

from __future__ import annotations

from dataclasses import dataclass, replace

# Tags of a call without JSON, as Qwen3-Coder and Qwen3.5 write it. The first ones go on with a name and ">".
FUNCTION = "<function="
FUNCTION_END = "</function>"
PARAMETER = "<parameter="
PARAMETER_END = "</parameter>"


@dataclass(frozen=True)
class ToolFamily:
    """The text of tool calls: `mark`, `before`, the calls with `between` in between, and `after`.

    A call is `begin`, a JSON object with the keys `name` and `arguments` (or tags, see `tagged`), and `end`.

    Attributes:
        name: The family's name.
        tags: Texts that begin the calls anywhere; a reader does not see special tokens.
        mark: Text before all calls; like begin and end an added token if the tokenizer has one of this text.
        before: Text between the mark and the first call.
        begin: Text with which a call begins.
        end: Text with which a call ends.
        between: Text between two calls.
        after: Text after the last call.
        arguments: Name of the second key.
        mark_optional: Calls may lack the mark.
        bare: A call is an object with which the answer begins; a reader accepts this in every family.
        many: An answer may have several calls.
        tagged: A call has tags instead of an object: FUNCTION with its name, and PARAMETER with each argument's.
        in_template: The chat template writes tools, calls and results.
        short_ids: The template wants ids of nine letters and digits.
    """

    name: str
    tags: tuple[str, ...]
    mark: str = ""
    before: str = ""
    begin: str = ""
    end: str = ""
    between: str = ""
    after: str = ""
    arguments: str = "arguments"
    mark_optional: bool = False
    bare: bool = False
    many: bool = True
    tagged: bool = False
    in_template: bool = True
    short_ids: bool = False


HERMES = ToolFamily("hermes", ("<tool_call>",), begin="<tool_call>", end="</tool_call>", between="\n")
QWEN_CODER = replace(HERMES, name="qwen-coder", tags=("<tool_call>", FUNCTION), tagged=True)
LLAMA = ToolFamily(
    "llama", (), mark="<|python_tag|>", mark_optional=True, arguments="parameters", bare=True, many=False
)
MISTRAL = ToolFamily(
    "mistral", ("[TOOL_CALLS]", '[{"name"'), mark="[TOOL_CALLS]", before="[", between=", ", after="]", short_ids=True
)
# For templates that write no tools, or write calls in a form that is not known here.
DESCRIBED = replace(HERMES, name="described", in_template=False)


def family_of(template: str) -> ToolFamily:
    """Returns the family of a chat template, by the words with which it writes calls."""
    if "tools" not in template:
        return DESCRIBED
    if "<tool_call>" in template and FUNCTION in template and PARAMETER in template:
        return QWEN_CODER
    in_json = FUNCTION not in template and "<arg_key>" not in template
    if "<tool_call>" in template and "arguments" in template and in_json:
        return HERMES
    if "[TOOL_CALLS]" in template and "[ARGS]" not in template:
        return MISTRAL
    if "parameters" in template and "ipython" in template:
        return LLAMA
    return DESCRIBED

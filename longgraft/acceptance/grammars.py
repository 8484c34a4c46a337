"""Compiles constraints with llguidance: first on trial, in a process with limits, and then in this process.

llguidance counts most of its work, but not all: it makes a state for each remainder of a `multipleOf`, and joins the
alternatives of all expressions that must match together. Both can take minutes and gigabytes.
"""

from __future__ import annotations

import json
from typing import Any

from longgraft.acceptance.escapes import readable_gbnf, rust_regex
from longgraft.acceptance.json_schemas import SPACING, examined
from longgraft.runtime.limited_process import data_bytes

# llguidance's limits of the work for one token. With these an ambiguous grammar takes at most about 50 ms
# for a token on a 3 GHz core, and llama.cpp's json.gbnf still passes with a vocabulary of 150,000 (it needs
# 25,000 items).
LIMITS: Any = {
    "step_max_items": 30_000,
    "initial_lexer_fuel": 300_000,
    "step_lexer_fuel": 100_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}
# Parser items at one place of the text. In an ambiguous grammar, which a schema never is, their work grows
# cubically.  A grammar of tool calls is made of schemas, and has an item for each tool.
MOST_ITEMS = {"json_schema": 2000, "regex": 500, "grammar": 500, "tool_calls": 4000}
CALLS_OR = "tool_calls or "  # before the name of a constraint which an answer without calls follows
_VOCABULARIES: dict[str, Any] = {}  # of this process, by their digests


def tried(name: str, text: str, vocabulary: str) -> tuple[str, int]:
    """Compiles a constraint.

    Args:
        name: json_schema, regex, grammar or tool_calls; or one of the first three after CALLS_OR.
        text: The schema, expression or grammar; or JSON of it and of the grammar of the calls.
        vocabulary: Digest of a vocabulary that is kept.

    Returns:
        llguidance's grammar, and the bytes that the matcher takes.

    Raises:
        ValueError: the constraint cannot be followed.
    """
    source = _source(name, text)
    before = data_bytes()
    matcher = compiled(name, source, _VOCABULARIES[vocabulary])
    matcher.compute_bitmask()  # the server does this next
    return source, data_bytes() - before


def keep_vocabulary(digest: str, tokenizer: str, size: int, end: int) -> None:
    """Keeps llguidance's view of a tokenizer (see `vocabulary`) for `tried`."""
    _VOCABULARIES[digest] = vocabulary(tokenizer, size, end)


def vocabulary(tokenizer: str, size: int, end: int) -> Any:
    """Returns llguidance's view of a tokenizer; building it takes about a second.

    Args:
        tokenizer: JSON of the tokenizers library.
        size: Number of ids.
        end: The end token.
    """
    from llguidance import LLTokenizer

    return LLTokenizer(tokenizer, n_vocab=size, eos_token=end)


def compiled(name: str, source: str, vocabulary: Any) -> Any:
    """Returns llguidance's matcher at the beginning of an answer; raises ValueError if there is no answer."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(max_items_in_row=MOST_ITEMS[name.removeprefix(CALLS_OR)], **LIMITS)
    matcher = LLMatcher(vocabulary, source, log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    trial = matcher.deep_copy()
    # A schema that requires itself has no document.
    if not trial.consume_tokens(trial.compute_ff_tokens()):
        raise ValueError(trial.get_error())
    return matcher


def _source(name: str, text: str) -> str:
    """Returns llguidance's grammar for a constraint."""
    from llguidance import LLMatcher

    if name.startswith(CALLS_OR):
        return _calls_or(name.removeprefix(CALLS_OR), *json.loads(text))
    if name == "json_schema":
        return _of_schema(text)
    if name == "regex":
        return LLMatcher.grammar_from_regex(rust_regex(text))
    lark = text if name == "tool_calls" else _as_lark(text)
    return LLMatcher.grammar_from_lark(lark)


def _calls_or(name: str, text: str, calls: str) -> str:
    """Returns the grammar of an answer that consists of calls, or else follows a constraint."""
    if name == "grammar":
        followed = {"lark_grammar": _as_lark(text)}
    else:
        (followed,) = json.loads(_source(name, text))["grammars"]
    named = {"lark_grammar": calls, "name": "calls"}, followed | {"name": "format"}
    return json.dumps({"grammars": [{"lark_grammar": "start: @calls | @format"}, *named]})


def _of_schema(text: str) -> str:
    """Converts a JSON schema."""
    from llguidance import LLMatcher

    try:
        followed, unfollowable = examined(text, False)
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error
    if unfollowable:
        raise ValueError(f"{unfollowable[0]}. Leave it out")
    return LLMatcher.grammar_from_json_schema(followed, defaults=SPACING)


def _as_lark(text: str) -> str:
    """Converts GBNF to Lark, which is left as it is.

    llguidance does this in Python, and the time grows quadratically with the rules.
    """
    from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

    if is_lark_syntax(text):
        return text
    try:
        return gbnf_to_lark(readable_gbnf(text))
    except Exception as error:  # its parser and its printer raise many kinds
        raise ValueError(f"Failed to convert the grammar from GBNF to Lark: {error}") from error

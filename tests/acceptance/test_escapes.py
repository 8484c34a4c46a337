"""Escaped characters of llama.cpp's grammars and of JavaScript's regular expressions count as they do there."""

from __future__ import annotations

import json
import re

import pytest
from toys.served import asking
from toys.tokenizers import byte_tokenizer
from toys.tools import tool_session

from longgraft.acceptance.constraints import constraint
from longgraft.acceptance.escapes import readable_gbnf
from longgraft.serve.tools.grammar import Tool

ASKED = [{"role": "user", "content": "Hi"}]
FOX = "\U0001f98a"
APIS = {
    "/v1/completions": ({"prompt": "Hi"}, lambda answer: answer["choices"][0]["text"]),
    "/v1/chat/completions": ({"messages": ASKED}, lambda answer: answer["choices"][0]["message"]["content"]),
    "/v1/responses": ({"input": "Hi"}, lambda answer: answer["output"][0]["content"][0]["text"]),
    "/v1/messages": ({"messages": ASKED, "max_tokens": 60}, lambda answer: answer["content"][0]["text"]),
    "/completion": ({"prompt": "Hi"}, lambda answer: answer["content"]),
    "/infill": ({"input_prefix": "Hi", "input_suffix": ""}, lambda answer: answer["content"]),
}


def follows(name: str, source: str, text: str) -> bool:
    """Tells if a constraint allows this whole answer."""
    tokenizer = byte_tokenizer(("<end>",))
    end = tokenizer.convert_tokens_to_ids("<end>")
    ids = [*tokenizer.encode(text), end]
    allowed = constraint(name, source, tokenizer, len(tokenizer), [end])
    return allowed.accepted(ids) == len(ids) and all(
        allowed.allowed()[token] and allowed.advance(token) is None for token in ids
    )


@pytest.mark.parametrize(
    ("rule", "right", "wrong"),
    [
        (r'"\u00e9"', "é", "e"),
        (r'"\u0041\x42\U0001F98A"', f"AB{FOX}", "AB"),
        (r'"\ud83e\udd8a"', FOX, "?"),
        (r"[\u0041-\u0043]", "B", "D"),
        (r"[^\u0041\U0001F98A]", "B", FOX),
        (r"[\U0001F900-\U0001FA00]", FOX, "B"),
        (r"[\x5b-\x5d]", "\\", "a"),
        (r'"\[\]\"\\"', '[]"\\', "[]"),
        (r"[\]\[\"\\]", "]", "a"),
        (r'"\t\r\n"', "\t\r\n", "trn"),
        (r'"\0\x01"', "\x00\x01", "01"),
        (r"[^\0]", "0", "\x00"),
        (r'"\\u0041"', r"\u0041", "A"),
        (r"[a\x2d\x5e\x26\x26z]", "-", "b"),
        ("[a&&b]", "a", "c"),
        ("[ab~~b[]", "b", "c"),
        (r'b # it is "\q \ud83d [' + '\nb ::= "c"', "c", "b"),
        ('"\x7f\u2028a\nb"', "\x7f\u2028a\nb", "ab"),
    ],
)
def test_escapes_of_a_gbnf_grammar_are_the_characters_that_llamacpp_reads(rule, right, wrong):
    grammar = f"root ::= {rule}"
    assert follows("grammar", grammar, right) and not follows("grammar", grammar, wrong)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (r'"\ud83d"', r"\ud83d is no character"),
        (r'"\U00110000"', r"\U00110000 is no character"),
        (r'"\q"', r"Invalid escape sequence \q"),
        (r'"\u41"', "Invalid"),
    ],
)
def test_wrong_escapes_of_a_gbnf_grammar_are_named(rule, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        follows("grammar", f"root ::= {rule}", "a")


def test_a_gbnf_grammar_without_escapes_stays_as_it_is():
    grammar = 'root ::= "a" [^b-c]* # "\n'
    assert readable_gbnf(grammar) == grammar


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"[^\0]", "0", "\x00"),
        (r"\07", "\x07", "7"),
        (r"\\0", r"\0", "\x00"),
        (r"\ud83e\udd8a", FOX, "a"),
        (r"[\ud83e\udd00-\ud83e\udfff]", FOX, "a"),
        (r"\u00e9", "é", "e"),
    ],
)
def test_escapes_of_a_regex_are_the_characters_that_javascript_reads(pattern, right, wrong):
    schema = json.dumps({"type": "string", "pattern": f"^{pattern}$"})
    named = json.dumps({"patternProperties": {f"^{pattern}$": {"type": "null"}}, "additionalProperties": False})
    assert follows("regex", pattern, right) and not follows("regex", pattern, wrong)
    for text, allowed in ((right, True), (wrong, False)):
        assert follows("json_schema", schema, json.dumps(text, ensure_ascii=False)) is allowed
        assert follows("json_schema", named, json.dumps({text: None}, ensure_ascii=False)) is allowed


def test_a_pattern_of_a_strict_tool_may_exclude_nul():
    tool = Tool("f", {"properties": {"a": {"type": "string", "pattern": r"^[^\0]+$"}}}, strict=True)
    assert tool.schema["properties"]["a"] == {"type": "string", "pattern": r"^[^\x{0}]+$"}


@pytest.mark.parametrize("path", APIS)
def test_escapes_count_in_all_apis(path):
    body, text_of = APIS[path]
    schema = {"type": "string", "pattern": r"^[^\0]$", "maxLength": 1}

    async def ask(http):
        for field, wanted in (
            ({"grammar": r'root ::= "\u0041" [\u0042-\u0043]'}, "A[BC]"),
            ({"json_schema": schema}, '"([^"]|\\\\.+)"'),
        ):
            answer = await http.post(path, json={"temperature": 0} | body | field)
            assert answer.status_code == 200 and re.fullmatch(wanted, text_of(answer.json())), answer.text

    asking(ask, tool_session())

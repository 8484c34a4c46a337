"""Toys for tests of tools: a tokenizer with a family's tags, short chat templates, and tools."""

from __future__ import annotations

import json
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longgraft.engine.session import Session
from toys.sessions import toy_session

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": CITY}}
STOP = {"type": "function", "function": {"name": "stop"}}
TOOLS = [WEATHER, STOP]


def _of_a(part: object, required: bool = True) -> dict:
    return {"type": "object", "properties": {"a": part}, "required": ["a"] * required}


_UNKNOWN = {"type": "string", "format": "made up"}
# (a schema of arguments, the place in it that cannot be followed, the schema without that)
UNFOLLOWABLE = [
    (
        _of_a({"type": "string", "pattern": r"^(?!\.)[a-z.]+@[a-z]+$"}),
        "properties.a.pattern",
        _of_a({"type": "string"}),
    ),
    (_of_a({"type": "string", "pattern": r"(a|b)\1"}), "properties.a.pattern", _of_a({"type": "string"})),
    (_of_a({"type": "string", "pattern": r"\bword\b"}), "properties.a.pattern", _of_a({"type": "string"})),
    (_of_a({"type": "string", "pattern": "(a"}), "properties.a.pattern", _of_a({"type": "string"})),
    ({"type": "object", "properties": {}, "required": None}, "required", {"type": "object", "properties": {}}),
    ({"type": "object", "properties": None}, "properties", {"type": "object"}),
    (_of_a({"type": "array", "items": None}), "properties.a.items", _of_a({"type": "array"})),
    (_of_a({"type": "any", "title": "A"}), "properties.a.type", _of_a({"title": "A"})),
    (_of_a({"$ref": "#/$defs/missing"}), "properties.a.$ref", _of_a({})),
    (_of_a({"$ref": "https://example.com/schema"}), "properties.a.$ref", _of_a({})),
    (_of_a({"type": "string", "enum": []}), "properties.a.enum", _of_a({"type": "string"})),
    (_of_a("string"), "properties.a", _of_a({})),
    (_of_a({"type": "integer", "minimum": float("inf")}), "properties.a.minimum", _of_a({"type": "integer"})),
    (
        _of_a({"anyOf": [{"type": "any"}, {"type": "null"}]}),
        "properties.a.anyOf[0].type",
        _of_a({"anyOf": [{}, {"type": "null"}]}),
    ),
    (_of_a(_UNKNOWN), "properties.a.format", _of_a(_UNKNOWN)),
    (
        _of_a({"oneOf": [{"type": "string"}, {"maxLength": 3}]}),
        "properties.a.oneOf",
        _of_a({"oneOf": [{"type": "string"}, {"maxLength": 3}]}),
    ),
    (_of_a({"not": {"type": "string"}}), "properties.a.not", _of_a({"not": {"type": "string"}})),
]

_MESSAGES = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}CALL{% endfor %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
# Chat templates as short as possible, with the words that a family is recognised by.
TEMPLATES = {
    "hermes": "{% for t in tools or [] %}T:{{ t.function.name }}\n{% endfor %}"
    + _MESSAGES.replace(
        "CALL",
        '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'
        "</tool_call>",
    ),
    # The words of Qwen3-Coder's and Qwen3.5's.
    "qwen-coder": "{% for t in tools or [] %}T:{{ t.function.name }}\n{% endfor %}"
    + _MESSAGES.replace(
        "CALL",
        "<tool_call>\n<function={{ c.function.name }}>\n{% for name, value in c.function.arguments|items %}"
        "<parameter={{ name }}>\n{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}"
        "</function>\n</tool_call>",
    ),
    "llama": "{% for t in tools or [] %}T:{{ t.function.name }}\n{% endfor %}{# ipython #}"
    + _MESSAGES.replace("CALL", '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'),
    "mistral": "{% for t in tools or [] %}T:{{ t.function.name }}\n{% endfor %}"
    + _MESSAGES.replace("CALL", '[TOOL_CALLS] [{"name": "{{ c.function.name }}", "id": "{{ c.id }}"}]'),
    "described": _MESSAGES.replace("CALL", ""),
}
TAGS = ("<tool_call>", "</tool_call>")


@cache
def tool_tokenizer(family: str = "hermes", tags: bool = True) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of at most 96 tokens: a new line, most of ASCII, an end token and a family's tags.

    tags: False: the tags are spelled with characters
    """
    letters = [chr(code) for code in range(33, 127) if chr(code) not in "~^`@#$%&"]
    vocabulary = {piece: n for n, piece in enumerate([*letters, "\u0120", "\u010a"])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    if tags and family == "mistral":
        made.add_special_tokens(["[TOOL_CALLS]"])
    elif tags:
        made.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    assert made.get_vocab_size() <= 96
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", chat_template=TEMPLATES[family])


def tagged_call(name: str, **arguments: object) -> str:
    """Returns a call as Qwen3-Coder writes it."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    inner = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def tool_session(family: str = "hermes", method: str = "pld", tags: bool = True) -> Session:
    """Returns a toy session whose chat template is of this family."""
    return Session(toy_session(method).engine, tool_tokenizer(family, tags))

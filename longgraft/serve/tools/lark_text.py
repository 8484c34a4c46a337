"""Texts as parts of a grammar in llguidance's Lark syntax."""

from __future__ import annotations

import json
import re

ANYTHING = r"/(.|\n)*/"


def quoted(text: str) -> str:
    """Returns a text as a literal."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """Returns a text as a part of a regular expression, without the slash that would end it."""
    return re.sub(r"[][{}()|.?*+\\^$/]", r"\\\g<0>", text).replace("\n", r"\n")

"""A tokenizer's chat template with a chat's tools: the text of turns, and what the template does not show of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError

Turn = Mapping[str, Any]

# Errors of templates about roles, orders or contents that they do not take.
REFUSALS = (TemplateError, TypeError)


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of a tokenizer.

    Attributes:
        tokenizer: A tokenizer with a chat template.
        tools: The tools of the chat, in OpenAI's form.
    """

    tokenizer: Any
    tools: Sequence[Mapping[str, Any]] = ()

    def text(self, turns: Sequence[Turn], ask: bool) -> str:
        """Returns the turns as text, with the opening of an answer if `ask`."""
        plain = [dict(turn) for turn in turns]
        return self.tokenizer.apply_chat_template(
            plain, tools=list(self.tools) or None, add_generation_prompt=ask, tokenize=False
        )

    def ids(self, text: str) -> list[int]:
        """Returns the ids of a text of the template, which holds its special tokens already."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def refusal(self, turns: Sequence[Turn]) -> str:
        """Returns why the template cannot show this chat whole; "" if it can.

        Many templates skip roles, tools and calls that they do not know, without an error.  Answers without calls
        are not looked for: templates may drop thoughts from them (`ChatEncoder`).
        """
        marks = _Marks()
        tools = [marks.named(tool, "the tools") for tool in self.tools]
        marked = [marks.turn(turn, number) for number, turn in enumerate(turns, 1)]
        try:
            text = ChatTemplate(self.tokenizer, tools).text(marked, False)
        except REFUSALS as error:
            return words_of(error)
        hidden = [part for mark, part in marks.parts.items() if mark not in text]
        if hidden:
            return f"it does not show {hidden[0]}"
        return ""


@dataclass
class _Marks:
    """Marks that stand for parts of a chat.

    Attributes:
        parts: Mark -> the part, for messages.
    """

    parts: dict[str, str] = field(default_factory=dict)

    def _new(self, part: str) -> str:
        mark = f"part{len(self.parts)}mark"
        self.parts[mark] = part
        return mark

    def named(self, function: Mapping[str, Any], part: str) -> dict[str, Any]:
        """Returns a tool or a call with a mark as its function's name."""
        return {**function, "function": {**function["function"], "name": self._new(part)}}

    def turn(self, turn: Turn, number: int) -> Turn:
        """Returns a turn with marks as its content and as the names of its calls."""
        calls = turn.get("tool_calls")
        marked = dict(turn)
        if calls:
            marked["tool_calls"] = [self.named(call, f"the calls of turn {number}") for call in calls]
        if turn["content"].strip() and (calls or turn["role"] != "assistant"):
            marked["content"] = self._new(f"turn {number} ({turn['role']})")
        return marked


def words_of(error: BaseException) -> str:
    """Returns a template's own words about what it refuses, as a clause."""
    return " ".join(str(error).split()).rstrip(".")

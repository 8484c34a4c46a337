"""Encodes chats in a tokenizer's template: answers as the model decodes them, and all else as context."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from longgraft.engine.encoder import continuation
from longgraft.yarn_drafters.training.documents import Document

MARK = "\u2063text\u2063"       # stands for a message's content, so that the template's own text around it is seen
TAG = re.compile(r"([<\[]\|?)([^<>\[\]|/\s]+)(\|?[>\]])")       # such as <think> or [THINK]

Turn = Mapping[str, Any]


class ChatEncoder:
    """Encodes chats, with ~id for all tokens outside the assistant's answers.

    Attributes:
        silent: Number of chats without an answer.
        refused: Number of chats whose turns the template does not take.
        reason: The template's own words about the first of those.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.silent = self.refused = 0
        self.reason = ""

    @property
    def left_out(self) -> str:
        """Says how many chats were left out and why; "" if none was."""
        parts = []
        if self.silent:
            parts.append(f"{self.silent:,} without an answer")
        if self.refused:
            parts.append(f"{self.refused:,} that the chat template refuses ({self.reason})")
        return f"Chats left out: {' and '.join(parts)}." if parts else ""

    def documents(self, chat: Document) -> list[list[int]]:
        """Returns a chat as one document; none if it has no answer or the template refuses its turns.

        If the template rewrites earlier turns (Qwen3 drops earlier thoughts), there are several: each answer follows
        the past as the template shows it at that turn.
        """
        if not self.tokenizer.chat_template:
            raise ValueError("The data holds chats, and the tokenizer has no chat template. Give plain text, or the "
                             "tokenizer of an instruct model.")
        documents: list[list[int]] = []
        refused = False
        for at, turn in enumerate(chat.turns):
            if turn["role"] != "assistant" or at == 0:
                continue
            try:
                context, learnt = self._answer(chat.turns[:at + 1], chat.ended or at + 1 < len(chat.turns))
            except (TemplateError, TypeError) as error:     # a role, an order or a content that the template refuses
                refused = True
                self.reason = self.reason or " ".join(str(error).split()).rstrip(".")
                break
            known = [~token if token < 0 else token for token in documents[-1]] if documents else []
            if not documents or context[:len(known)] != known:
                documents.append([])
                known = []
            documents[-1] += [~token for token in context[len(known):]] + learnt
        if not documents and refused:
            self.refused += 1
        elif not documents:
            self.silent += 1
        return documents

    def _answer(self, turns: Sequence[Turn], whole: bool) -> tuple[list[int], list[int]]:
        """Returns (tokens before the last turn, which is an answer, tokens of it).  whole: it was not cut off"""
        asked = self._ids(self._text(turns[:-1], True))
        if whole:
            answered = self._ids(self._text(turns, False))
            if answered[:len(asked)] == asked:
                return asked, answered[len(asked):]
        return self._as_decoded(turns, whole, asked)

    def _as_decoded(self, turns: Sequence[Turn], whole: bool, asked: list[int]) -> tuple[list[int], list[int]]:
        """Does the same where the template shows an answer otherwise than the model decodes it.

        The prompt may end in a blank, which joins the answer's first token, or open a thought that the template drops
        from answers.  The model goes on behind the prompt, whatever the template shows later.
        """
        prompt, shown = self._text(turns[:-1], True), self._text(turns, False)
        if whole and shown.startswith(prompt):
            return asked, continuation(self.tokenizer, shown[len(prompt):])
        content = turns[-1]["content"]
        before, _, after = self._text([*turns[:-1], {**turns[-1], "content": MARK}], False).partition(MARK)
        opening = prompt[_shared(prompt, before):]
        closing = _closing(opening)
        if whole and closing and closing not in content:
            # An answer without the thought that the prompt opens: its context is the template's.
            answered = self._ids(shown)
            shared = _shared(asked, answered)
            return answered[:shared], answered[shared:]
        said = _without(opening, content)
        return asked, continuation(self.tokenizer, said + after if whole else said)

    def _text(self, turns: Sequence[Turn], ask: bool) -> str:
        plain = [dict(turn) for turn in turns]
        return self.tokenizer.apply_chat_template(plain, add_generation_prompt=ask, tokenize=False)

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def _shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Returns the number of items with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _closing(opening: str) -> str:
    """Returns the tag that closes the last tag of a prompt's end, such as "</think>"; "" if none is open."""
    tags = list(TAG.finditer(opening))
    if not tags:
        return ""
    begin, name, end = tags[-1].groups()
    closing = f"{begin}/{name}{end}"
    return "" if closing in opening[tags[-1].end():] else closing


def _without(opening: str, content: str) -> str:
    """Returns an answer without the opening that the prompt has already."""
    tag = opening.strip()
    if not tag or not content.lstrip().startswith(tag):
        return content
    blank = opening[len(opening.rstrip()):]
    return content.lstrip()[len(tag):].removeprefix(blank)

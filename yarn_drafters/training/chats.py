"""Encodes chats in a tokenizer's template: answers as the model decodes them, and all else as context."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from longgraft.engine.encoder import continuation
from longgraft.yarn_drafters.training.documents import Document

# Stands for a message's content, so that the template's own text around it is seen.
MARK = "\u2063text\u2063"
TAG = re.compile(r"([<\[]\|?)([^<>\[\]|/\s]+)(\|?[>\]])")  # such as <think> or [THINK]

Turn = Mapping[str, Any]


class ChatEncoder:
    """An encoder of chats, with ~id for all tokens outside the assistant's answers.

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
        if parts:
            return f"Chats left out: {' and '.join(parts)}."
        return ""

    def documents(self, chat: Document) -> list[list[int]]:
        """Returns a chat as one document; none if it has no answer or the template refuses its turns.

        If the template rewrites earlier turns (Qwen3 drops earlier thoughts), there are several: each answer
        follows the past as the template shows it at that turn.
        """
        if not self.tokenizer.chat_template:
            raise ValueError(
                "The data holds chats, and the tokenizer has no chat template. Give plain text, "
                "or the tokenizer of an instruct model."
            )
        documents: list[list[int]] = []
        refused = False
        for at, turn in enumerate(chat.turns):
            if turn["role"] != "assistant" or at == 0:
                continue
            # A role, an order or a content that the template refuses.
            try:
                context, learnt = self._answer(chat.turns[: at + 1], chat.ended or at + 1 < len(chat.turns))
            except (TemplateError, TypeError) as error:
                refused = True
                self.reason = self.reason or " ".join(str(error).split()).rstrip(".")
                break
            ids_before = []
            if documents:
                ids_before = [~token if token < 0 else token for token in documents[-1]]
            if not documents or context[: len(ids_before)] != ids_before:
                documents.append([])
                ids_before = []
            documents[-1] += [~token for token in context[len(ids_before) :]] + learnt
        if not documents and refused:
            self.refused += 1
        elif not documents:
            self.silent += 1
        return documents

    def _answer(self, turns: Sequence[Turn], whole: bool) -> tuple[list[int], list[int]]:
        """Returns (tokens before the last turn, which is an answer, tokens of it).  whole: it was not cut off"""
        prompt_ids = self._ids(self._text(turns[:-1], True))
        if whole:
            answered = self._ids(self._text(turns, False))
            if answered[: len(prompt_ids)] == prompt_ids:
                return prompt_ids, answered[len(prompt_ids) :]
        return self._as_decoded(turns, whole, prompt_ids)

    def _as_decoded(self, turns: Sequence[Turn], whole: bool, prompt_ids: list[int]) -> tuple[list[int], list[int]]:
        """Does the same where the template shows an answer otherwise than the model decodes it.

        The prompt may end in a blank, which joins the answer's first token, or open a thought that the
        template drops from answers.  The model goes on behind the prompt, whatever the template shows later.
        """
        prompt = self._text(turns[:-1], True)
        shown = self._text(turns, False)
        if whole and shown.startswith(prompt):
            return prompt_ids, continuation(self.tokenizer, shown[len(prompt) :])
        content = turns[-1]["content"]
        before, _, after = self._text([*turns[:-1], {**turns[-1], "content": MARK}], False).partition(MARK)
        opening = prompt[_shared(prompt, before) :]
        closing = _closing(opening)
        if whole and closing and closing not in content:
            # An answer without the thought that the prompt opens: its context is the template's.
            answered = self._ids(shown)
            shared = _shared(prompt_ids, answered)
            return answered[:shared], answered[shared:]
        answer = _without(opening, content)
        if whole:
            answer += after
        return prompt_ids, continuation(self.tokenizer, answer)

    def _text(self, turns: Sequence[Turn], ask: bool) -> str:
        plain = [dict(turn) for turn in turns]
        return self.tokenizer.apply_chat_template(plain, add_generation_prompt=ask, tokenize=False)

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def _shared(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Returns the number of items with which both begin."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))


def _closing(opening: str) -> str:
    """Returns the tag that closes the last tag of a prompt's end, such as "</think>"; "" if none is open."""
    tags = list(TAG.finditer(opening))
    if not tags:
        return ""
    begin, name, end = tags[-1].groups()
    closing = f"{begin}/{name}{end}"
    if closing in opening[tags[-1].end() :]:
        return ""
    return closing


def _without(opening: str, content: str) -> str:
    """Returns an answer without the opening that the prompt has already."""
    tag = opening.strip()
    if not tag or not content.lstrip().startswith(tag):
        return content
    blank = opening[len(opening.rstrip()) :]
    return content.lstrip()[len(tag) :].removeprefix(blank)

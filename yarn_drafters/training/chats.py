"""Encodes chats in a tokenizer's template: answers as the model decodes them, and all else as context."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from longgraft.engine.encoder import continuation
from longgraft.yarn_drafters.training.chat_template import REFUSALS, ChatTemplate, Turn, words_of
from longgraft.yarn_drafters.training.documents import Document

# Stands for a message's content, so that the template's own text around it is seen.
MARK = "\u2063text\u2063"
TAG = re.compile(r"([<\[]\|?)([^<>\[\]|/\s]+)(\|?[>\]])")  # such as <think> or [THINK]
THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # keys of an answer's thought


class ChatEncoder:
    """An encoder of chats, with ~id for all tokens outside the assistant's answers.

    Attributes:
        silent: Places of the chats without an answer.
        refused: Places of the chats that the template does not show whole.
        reason: Why the first of those is refused.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.silent: list[str] = []
        self.refused: list[str] = []
        self.reason = ""

    @property
    def left_out(self) -> str:
        """Says how many chats were left out and why; "" if none was."""
        parts = []
        if self.silent:
            parts.append(f"{len(self.silent):,} without an answer ({_first(self.silent)})")
        if self.refused:
            first = _first(self.refused, self.reason)
            parts.append(f"{len(self.refused):,} that the chat template does not take ({first})")
        if parts:
            return f"Chats left out: {' and '.join(parts)}."
        return ""

    def documents(self, chat: Document) -> list[list[int]]:
        """Returns a chat as one document; none if it has no answer or the template does not show it whole.

        If the template rewrites earlier turns (Qwen3 drops earlier thoughts), there are several: each answer
        follows the past as the template shows it at that turn.  The first turn, an empty answer and turns that are
        not to be learnt are only context; turns after the last answer teach nothing.
        """
        if not self.tokenizer.chat_template:
            raise ValueError(
                "The data holds chats, and the tokenizer has no chat template. Give plain text, "
                "or the tokenizer of an instruct model."
            )
        answers = [at for at, turn in enumerate(chat.turns) if _is_answer(chat, at, turn)]
        if not answers:
            self.silent.append(chat.place)
            return []
        template = ChatTemplate(self.tokenizer, chat.tools)
        reason = template.refusal(chat.turns[: answers[-1] + 1])
        documents: list[list[int]] = []
        if not reason:
            try:
                for at in answers:
                    whole = chat.ended or at + 1 < len(chat.turns)
                    _add(documents, *_answer(template, chat.turns[: at + 1], whole))
            except REFUSALS as error:  # the template looks at contents, or refuses an order that ends here
                reason = words_of(error)
        if reason:
            self.refused.append(chat.place)
            self.reason = self.reason or reason
            return []
        return documents


def _first(places: Sequence[str], reason: str = "") -> str:
    """Returns a clause about the first of several; a chat that was made in Python has no place."""
    return ": ".join(part for part in ("first", places[0], reason) if part)


def _is_answer(chat: Document, at: int, turn: Turn) -> bool:
    """Returns True for a turn of the assistant that is learnt."""
    said = turn["content"].strip() or turn.get("tool_calls") or any(turn.get(name) for name in THOUGHTS)
    return turn["role"] == "assistant" and at > 0 and at not in chat.unlearnt and bool(said)


def _add(documents: list[list[int]], context: list[int], learnt: list[int]) -> None:
    """Adds an answer to the last document if its context goes on with it, else as a new one."""
    ids_before = []
    if documents:
        ids_before = [~token if token < 0 else token for token in documents[-1]]
    if not documents or context[: len(ids_before)] != ids_before:
        documents.append([])
        ids_before = []
    documents[-1] += [~token for token in context[len(ids_before) :]] + learnt


def _answer(template: ChatTemplate, turns: Sequence[Turn], whole: bool) -> tuple[list[int], list[int]]:
    """Returns (tokens before the last turn, which is an answer, tokens of it).  whole: it was not cut off

    Raises:
        TypeError: the template does not show the answer's thought.
    """
    prompt = template.text(turns[:-1], True)
    prompt_ids = template.ids(prompt)
    shown = template.text(turns, False)
    for name in THOUGHTS:
        thought = turns[-1].get(name)
        if isinstance(thought, str) and thought.strip() not in shown:
            raise TypeError(f"it does not show {name} of turn {len(turns)}")
    if whole:
        answered = template.ids(shown)
        if answered[: len(prompt_ids)] == prompt_ids:
            return prompt_ids, answered[len(prompt_ids) :]
        if shown.startswith(prompt):
            return prompt_ids, continuation(template.tokenizer, shown[len(prompt) :])
    return _as_decoded(template, turns, whole, prompt, shown)


def _as_decoded(
    template: ChatTemplate, turns: Sequence[Turn], whole: bool, prompt: str, shown: str
) -> tuple[list[int], list[int]]:
    """Does the same where the template shows an answer otherwise than the model decodes it.

    The prompt may end in a blank, which joins the answer's first token, or open a thought that the
    template drops from answers.  The model goes on behind the prompt, whatever the template shows later.
    """
    prompt_ids = template.ids(prompt)
    content = turns[-1]["content"]
    before, _, after = template.text([*turns[:-1], {**turns[-1], "content": MARK}], False).partition(MARK)
    opening = prompt[_shared(prompt, before) :]
    closing = _closing(opening)
    if whole and closing and closing not in content:
        # An answer without the thought that the prompt opens: its context is the template's.
        answered = template.ids(shown)
        shared = _shared(prompt_ids, answered)
        return answered[:shared], answered[shared:]
    answer = _without(opening, content)
    if whole:
        answer += after
    return prompt_ids, continuation(template.tokenizer, answer)


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

"""One evaluation prompt: its parts, its turns, what may be replayed, and the ids that are fed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from longgraft.runtime.fingerprint import digest


@dataclass(frozen=True)
class Example:
    """One evaluation prompt: before + body + after. Only the body may be cut."""

    suite: str
    id: str  # the row's id; later turns are 81#2, 81#3, ...
    before: str  # the template up to the context, or the whole prompt of a short question
    body: str  # the long context; "" for questions
    after: str  # the rest of the template
    answers: tuple[str, ...] = ()  # right answers, for scores
    follow_ups: tuple[str, ...] = ()  # later turns of a conversation
    chat: bool = True  # True to use the target's chat template; False for text to be continued
    unit: str = "line"  # where the body may be cut: between turns, sentences or lines
    max_new_tokens: int | None = None  # the benchmark's own limit of an answer
    # Source -> text to replay. A source is "true" (the file's own next text) or a model's name. The user's texts come
    # first, in the given order, then "true", then the others, longest first.
    continuations: Mapping[str, str] = field(default_factory=dict, hash=False)
    later: tuple[Mapping[str, str], ...] = field(default=(), hash=False)  # continuations of the later turns
    history: tuple[tuple[str, str], ...] = ()  # (question, answer) of earlier turns
    prediction: str = ""  # text that the answer may repeat: the file to edit
    # The only bucket that the prompt belongs to, uncut, however many tokens the target's tokenizer makes of it; None:
    # any that its length reaches.
    fixed_length: int | None = None

    @property
    def turn(self) -> int:
        """The turn's number, from 1."""
        return len(self.history) + 1

    @property
    def turn_ids(self) -> tuple[str, ...]:
        """Ids of this turn and of all later turns."""
        first = self.id
        if self.history:
            first = first.removesuffix(f"#{self.turn}")
        last_turn = self.turn + len(self.follow_ups)
        return self.id, *(turn_id(first, turn) for turn in range(self.turn + 1, last_turn + 1))

    @property
    def recording(self) -> str:
        """The text that is replayed: the first of the continuations; "" if there are none."""
        return next(iter(self.continuations.values()), "")

    def next_turn(self, answer: str) -> Example:
        """Returns the follow-up, asked after this answer; it is replayed only if the turns before it are."""
        continuations: Mapping[str, str] = {}
        if self.later and self.continuations:
            continuations = self.later[0]
        return replace(
            self,
            id=self.turn_ids[1],
            before=self.follow_ups[0],
            body="",
            after="",
            answers=(),
            follow_ups=self.follow_ups[1:],
            continuations=continuations,
            later=self.later[1:],
            history=(*self.history, (self.prompt(), answer)),
        )

    def turns(self) -> list[Example]:
        """Returns this turn and the later ones, without the answers between them."""
        turns = [self]
        while turns[-1].follow_ups:
            turns.append(turns[-1].next_turn(""))
        return turns

    def prompt(self, body: str | None = None) -> str:
        """Returns the prompt with the whole body, or with the given part of it."""
        if body is None:
            body = self.body
        return self.before + body + self.after

    def fingerprint(self, mode: str) -> str:
        """Returns the fingerprint of the uncut texts that an answer in this mode depends on.

        Answers before it are left out, because each has a row of its own.
        """
        questions = [question for question, _ in self.history]
        questions.append(self.prompt())
        recording = ""
        if mode == "replay":
            recording = self.recording
        texts = [questions, self.chat, self.max_new_tokens, recording]
        if self.prediction:
            texts.append(self.prediction)
        return digest(tuple(texts))

    def predicted(self, tokenizer: Any) -> list[int]:
        """Returns the ids of the prediction; [] if there is none."""
        if not self.prediction:
            return []
        return list(tokenizer(self.prediction, add_special_tokens=False)["input_ids"])

    def encode(self, tokenizer: Any, body: str | None = None) -> list[int]:
        """Returns the ids that are fed.

        With a chat template these are the template's ids up to the answer. Otherwise they are the plain text's, with
        blank lines between turns and answers.
        """
        messages = []
        for question, answer in self.history:
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": self.prompt(body)})
        if self.chat and getattr(tokenizer, "chat_template", None):
            encoded = tokenizer.apply_chat_template(
                messages, tokenize=True, add_generation_prompt=True, return_dict=True
            )
            return encoded["input_ids"]
        return tokenizer("\n\n".join(message["content"] for message in messages))["input_ids"]


def turn_id(first: str, turn: int) -> str:
    """Returns the id of a conversation's turn: 81, 81#2, 81#3, ..."""
    if turn == 1:
        return first
    return f"{first}#{turn}"

"""Chats and continuations that a model is to write: where their requests come from, and the rows that they become."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from longgraft.yarn_drafters.training.chat_template import Turn
from longgraft.yarn_drafters.training.document_tasks import LONGEST, SHORTEST, document_request, excerpt_of
from longgraft.yarn_drafters.training.documents import Document, read_documents


@dataclass(frozen=True)
class ChatSampling:
    """Settings of the sampling of chats.

    Attributes:
        tokens: Answer tokens in total.
        batch: Rows sampled at once.
        most: Maximum number of tokens of a turn.
        temperatures: One is drawn for each chat.
        follow_up: Share of chats for which the model invents a second request.
        longest: Longest excerpt of a document or of a text to continue, in characters.
    """

    tokens: int = 1_000_000
    batch: int = 64
    most: int = 512
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    follow_up: float = 0.2
    seed: int = 0
    longest: int = LONGEST


@dataclass(frozen=True)
class PromptSources:
    """The requests that the model answers, and the texts that it continues.

    Attributes:
        given: Chats or texts whose user turns are answered, each once.
        documents: Texts for `document_request`.
        continued: Texts of which excerpts are continued.
        magpie: True if the model invents requests (arXiv 2406.08464).
    """

    given: Sequence[Document] = ()
    documents: Sequence[Document] = ()
    continued: Sequence[Document] = ()
    magpie: bool = False

    @classmethod
    def read(
        cls,
        prompts: Sequence[Path] = (),
        documents: Sequence[Path] = (),
        continued: Sequence[Path] = (),
        magpie: bool = False,
    ) -> PromptSources:
        """Reads the files (see `read_documents`); raises ValueError if they hold nothing to answer or continue."""
        given = list(read_documents(prompts))
        for document in given:
            plan_of(document)
        sources = cls(given, long_texts(documents, "--documents"), long_texts(continued, "--continue"), magpie)
        if not sources.kinds:
            raise ValueError("Nothing to answer: give --prompts, --documents, --continue or --magpie.")
        return sources

    @property
    def kinds(self) -> list[str]:
        """The names of the sources that are there."""
        return [name for name in ("given", "documents", "continued", "magpie") if getattr(self, name)]


def long_texts(paths: Sequence[Path], option: str) -> list[Document]:
    """Returns the texts of files that are long enough for an excerpt; says on stderr how many are not.

    Raises:
        ValueError: a row is a chat, or all texts are too short.
    """
    texts = []
    short = 0
    for document in read_documents(paths):
        if document.turns:
            raise ValueError(f"{document.place} is a chat, and {option} takes texts. Give chats as --prompts.")
        if len(document.text) >= SHORTEST:
            texts.append(document)
        else:
            short += 1
    if short and not texts:
        raise ValueError(f"No text of {option} has {SHORTEST} characters, which an excerpt needs. Give longer ones.")
    if short:
        print(
            f"longgraft: texts of {option} with fewer than {SHORTEST} characters: {short:,} left out", file=sys.stderr
        )
    return texts


class Own(Enum):
    """Turns that the model writes."""

    ANSWER = "answer"
    REQUEST = "request"


def plan_of(document: Document) -> list[Turn | Own]:
    """Returns the turns of a given chat, with a place for each answer that the model is to write.

    A text is a user's turn.  The chat's own answers are replaced; those that tool results follow, those before the
    first request, and those that are not to be learnt stay, as context.

    Raises:
        ValueError: there is no request.
    """
    turns = document.turns
    if document.text.strip():
        turns = ({"role": "user", "content": document.text},)
    plan: list[Turn | Own] = []
    waiting = False  # True while a request or a tool's result has no answer
    for at, turn in enumerate(turns):
        if turn["role"] == "assistant":
            has_result = at + 1 < len(turns) and turns[at + 1]["role"] == "tool"
            if has_result or at in document.unlearnt or not (waiting or Own.ANSWER in plan):
                plan.append({**turn, "train": False})
            elif waiting:
                plan.append(Own.ANSWER)
            waiting = False
            continue
        if waiting and turn["role"] == "user":
            plan.append(Own.ANSWER)
        plan.append(turn)
        waiting = waiting or turn["role"] in ("user", "tool")
    if waiting:
        plan.append(Own.ANSWER)
    if Own.ANSWER not in plan:
        raise ValueError(f"{document.place or 'A chat'} has no request to answer. Add a user's turn, or leave it out.")
    while plan[-1] is not Own.ANSWER:
        plan.pop()
    return plan


@dataclass
class Chat:
    """A chat, or a continuation of a text, that is being sampled.

    Attributes:
        plan: Its turns in order, those that are given and those that the model writes.
        begun: The document whose text the model continues.
        tools: Its tools, in OpenAI's form.
        place: Its file and line; "": it was not given.
    """

    index: int
    plan: Sequence[Turn | Own]
    source: str
    temperature: float = 0.0
    messages: list[Turn] = field(default_factory=list)
    ended: bool = True  # True if the last answer ended with an end token
    tokens: int = 0  # tokens of the answers
    dropped: str = ""  # reason why the chat is dropped; "": it is not
    begun: Document | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    place: str = ""

    @property
    def goes_on(self) -> bool:
        """True while turns are left."""
        return len(self.messages) < len(self.plan)

    def take_given(self) -> None:
        """Takes the given turns up to the next one that the model writes."""
        for turn in self.plan[len(self.messages) :]:
            if isinstance(turn, Own):
                break
            self.messages.append(turn)

    def drop_unanswered(self) -> None:
        """Takes back the turns after the last one that the model wrote."""
        while self.messages and self.plan[len(self.messages) - 1] is not Own.ANSWER:
            self.messages.pop()

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = {"messages": self.messages, "type": "chat"}
        if self.begun is not None:
            row = {"text": self.begun.text + self.messages[0]["content"], "type": self.begun.type}
        if self.tools:
            row["tools"] = list(self.tools)
        return row | {
            "source": self.source,
            "index": self.index,
            "temperature": self.temperature,
            "ended": self.ended,
            "tokens": self.tokens,
        }


def requests_of(sources: PromptSources, sampling: ChatSampling) -> Iterator[Chat]:
    """Yields chats to answer and texts to continue, in an order that depends only on the seed and the index.

    If several kinds of sources are given, they alternate.
    """
    kinds = sources.kinds
    documents = sources.given
    order = np.random.default_rng([sampling.seed, 1]).permutation(len(documents))
    taken = 0
    for index in count():
        rng = np.random.default_rng([sampling.seed, 2, index])
        kind = kinds[index % len(kinds)]
        if kind == "given":
            if taken == len(documents):
                kinds.remove("given")
                if not kinds:
                    return
                continue
            given = documents[order[taken]]
            taken += 1
            rng.random()  # the place of a follow-up's draw, which given chats do not have
            temperature = float(rng.choice(sampling.temperatures))
            yield Chat(index, plan_of(given), kind, temperature, tools=given.tools, place=given.place)
        elif kind == "continued":
            document = sources.continued[int(rng.integers(len(sources.continued)))]
            temperature = float(rng.choice(sampling.temperatures))
            excerpt = replace(document, text=excerpt_of(document, rng, sampling.longest))
            yield Chat(index, [Own.ANSWER], kind, temperature, begun=excerpt)
        else:
            plan: list[Turn | Own] = [Own.REQUEST, Own.ANSWER]
            if kind == "documents":
                plan[0] = {"role": "user", "content": document_request(sources.documents, rng, sampling.longest)}
            if rng.random() < sampling.follow_up:
                plan += [Own.REQUEST, Own.ANSWER]
            yield Chat(index, plan, kind, float(rng.choice(sampling.temperatures)))

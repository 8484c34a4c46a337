"""Chats and continuations that a model is to write: where their requests come from, and the rows that they become."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

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

        def texts(paths: Sequence[Path]) -> list[Document]:
            return [document for document in read_documents(paths) if len(document.text) >= SHORTEST]

        sources = cls(list(read_documents(prompts)), texts(documents), texts(continued), magpie)
        if not sources.kinds:
            raise ValueError("Nothing to answer: give --prompts, --documents, --continue or --magpie.")
        return sources

    @property
    def kinds(self) -> list[str]:
        """The names of the sources that are there."""
        return [name for name in ("given", "documents", "continued", "magpie") if getattr(self, name)]


@dataclass
class Chat:
    """A chat, or a continuation of a text, that is being sampled.

    Attributes:
        requests: The user's turns, None for one that the model invents.
        begun: The document whose text the model continues.
    """

    index: int
    requests: list[str | None]
    source: str
    temperature: float = 0.0
    messages: list[dict[str, str]] = field(default_factory=list)
    ended: bool = True  # True if the last answer ended with an end token
    tokens: int = 0  # tokens of the answers
    dropped: str = ""  # reason why the chat is dropped; "": it is not
    begun: Document | None = None

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = {"messages": self.messages, "type": "chat"}
        if self.begun is not None:
            row = {"text": self.begun.text + self.messages[0]["content"], "type": self.begun.type}
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
            document = documents[order[taken]]
            taken += 1
            requests: list[str | None] = [t["content"] for t in document.turns if t["role"] == "user"] or [
                document.text
            ]
        elif kind == "continued":
            document = sources.continued[int(rng.integers(len(sources.continued)))]
            yield Chat(
                index,
                [],
                kind,
                float(rng.choice(sampling.temperatures)),
                begun=replace(document, text=excerpt_of(document, rng, sampling.longest)),
            )
            continue
        else:
            requests = [document_request(sources.documents, rng, sampling.longest) if kind == "documents" else None]
        if rng.random() < sampling.follow_up and kind != "given":
            requests.append(None)
        yield Chat(index, requests, kind, float(rng.choice(sampling.temperatures)))

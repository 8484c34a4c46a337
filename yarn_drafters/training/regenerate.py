"""Samples training texts as JSONL: a target's own answers to given, invented and document requests, and its own
continuations of texts.

A head learns its target's distributions best from the target's own answers.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longgraft.config.data_files import parse_json
from longgraft.config.json_lines import read_json_lines
from longgraft.config.settings import Settings
from longgraft.engine.end_tokens import end_tokens
from longgraft.engine.repetition import loops
from longgraft.models.targets import ModelSource, load_target
from longgraft.yarn_drafters.training.batched_sampling import SampledTurn, Turn, sample
from longgraft.yarn_drafters.training.document_tasks import SHORTEST, document_request, excerpt_of
from longgraft.yarn_drafters.training.documents import Document, read_documents
from longgraft.yarn_drafters.training.loop import differences
from longgraft.yarn_drafters.training.packages import shingles

MARK = "\u2063request\u2063"    # stands for a user's turn in the template
LONGEST_REQUEST = 160           # tokens of an invented request: longer ones seldom end
SHARED_WORDS = 8                # consecutive words that a request must not share with excluded rows
INVENTED_TEMPERATURE = 0.8      # temperature of invented requests: at 1, those of small models make no sense


@dataclass(frozen=True)
class ChatSampling:
    """Settings of the sampling of chats.

    tokens: answer tokens in total; batch: rows sampled at once; most: maximum number of tokens of a turn; temperatures:
    one is drawn for each chat; follow_up: share of chats for which the model invents a second request
    """

    tokens: int = 1_000_000
    batch: int = 64
    most: int = 512
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    follow_up: float = 0.2
    seed: int = 0


@dataclass(frozen=True)
class Sources:
    """The requests that the model answers, and the texts that it continues.

    given: chats or texts whose user turns are answered, each once; documents: texts for `document_request`; continued:
    texts of which excerpts are continued; magpie: True if the model invents requests (arXiv 2406.08464)
    """

    given: Sequence[Document] = ()
    documents: Sequence[Document] = ()
    continued: Sequence[Document] = ()
    magpie: bool = False

    @classmethod
    def read(cls, prompts: Sequence[Path] = (), documents: Sequence[Path] = (), continued: Sequence[Path] = (),
             magpie: bool = False) -> Sources:
        """Reads the files (see `read_documents`); raises ValueError if they hold nothing to answer or continue."""
        def texts(paths: Sequence[Path]) -> list[Document]:
            return [document for document in read_documents(paths) if len(document.text) >= SHORTEST]

        found = cls(list(read_documents(prompts)), texts(documents), texts(continued), magpie)
        if not found.kinds:
            raise ValueError("Nothing to answer: give --prompts, --documents, --continue or --magpie.")
        return found

    @property
    def kinds(self) -> list[str]:
        """The names of the sources that are there."""
        return [name for name in ("given", "documents", "continued", "magpie") if getattr(self, name)]


@dataclass
class Chat:
    """A chat, or a continuation of a text, that is being sampled.

    requests: the user's turns, None for one that the model invents; begun: the document whose text the model continues
    """

    index: int
    requests: list[str | None]
    source: str
    temperature: float = 0.0
    messages: list[dict[str, str]] = field(default_factory=list)
    ended: bool = True          # True if the last answer ended with an end token
    tokens: int = 0             # tokens of the answers
    dropped: str = ""           # reason why the chat is dropped; "": it is not
    begun: Document | None = None

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = {"messages": self.messages, "type": "chat"}
        if self.begun is not None:
            row = {"text": self.begun.text + self.messages[0]["content"], "type": self.begun.type}
        return row | {"source": self.source, "index": self.index, "temperature": self.temperature, "ended": self.ended,
                      "tokens": self.tokens}


def requests_of(sources: Sources, sampling: ChatSampling) -> Iterator[Chat]:
    """Yields chats to answer and texts to continue, in an order that depends only on the seed and the index.

    If several kinds of sources are given, they alternate.
    """
    kinds, given = sources.kinds, sources.given
    order = np.random.default_rng([sampling.seed, 1]).permutation(len(given))
    taken = 0
    for index in count():
        rng = np.random.default_rng([sampling.seed, 2, index])
        kind = kinds[index % len(kinds)]
        if kind == "given":
            if taken == len(given):
                kinds.remove("given")
                if not kinds:
                    return
                continue
            document, taken = given[order[taken]], taken + 1
            asked: list[str | None] = [t["content"] for t in document.turns if t["role"] == "user"] or [document.text]
        elif kind == "continued":
            document = sources.continued[int(rng.integers(len(sources.continued)))]
            yield Chat(index, [], kind, float(rng.choice(sampling.temperatures)),
                       begun=replace(document, text=excerpt_of(document, rng)))
            continue
        else:
            asked = [document_request(sources.documents, rng) if kind == "documents" else None]
        if rng.random() < sampling.follow_up and kind != "given":
            asked.append(None)
        yield Chat(index, asked, kind, float(rng.choice(sampling.temperatures)))


@dataclass(frozen=True, eq=False)
class ChatTurn(Turn):
    """A turn of a chat: its next answer, a request that the model invents, or the continuation of a text."""

    chat: Chat = field(kw_only=True)
    answer: bool = field(kw_only=True)


class Regenerator:
    """Samples chats of one model into one file, each written when it ends; the same call again continues the file."""

    def __init__(self, model: Any, tokenizer: Any, sampling: ChatSampling, excluded: Iterable[str] = (),
                 name: str = "") -> None:
        """excluded: texts that no request may repeat; name: the model's"""
        self.model, self.tokenizer, self.sampling = model, tokenizer, sampling
        # Settings that rows depend on, as JSON returns them.
        self.made_with = {"model": name, "seed": sampling.seed, "temperatures": list(sampling.temperatures),
                          "max_new_tokens": sampling.most, "follow_up": sampling.follow_up}
        self.ends = end_tokens(model, tokenizer)
        self.excluded = {run for text in excluded for run in shingles(_words(text), SHARED_WORDS)}
        self.seen: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.done: set[int] = set()         # indices of chats that were kept or dropped
        self.begun: list[Chat] = []         # chats that wait for their next turn

    def run(self, chats: Iterator[Chat], out: Path) -> Counter[str]:
        """Writes chats until there are enough answer tokens; returns the numbers of kept and dropped chats, by
        reason."""
        from tqdm import tqdm

        self._resume(out)
        chats = (chat for chat in chats if chat.index not in self.done)

        def more(count: int) -> Iterator[ChatTurn]:
            begun, self.begun = self.begun, []
            return map(self._next, [*begun, *islice(chats, max(0, count - len(begun)))])

        with open(out, "ab") as file, tqdm(total=self.sampling.tokens, initial=self.counts["tokens"], unit="tok",
                                           unit_scale=True, disable=not sys.stderr.isatty()) as bar:
            if self.counts["tokens"] >= self.sampling.tokens:
                return self.counts
            for turn, found in sample(self.model, more, self.ends, self.sampling.batch):
                chat = turn.chat
                if self._take(turn, found):
                    self.begun.append(chat)
                    continue
                self._judge(chat)
                if not chat.dropped:
                    file.write(json.dumps(chat.row(), ensure_ascii=False).encode() + b"\n")
                    file.flush()
                    bar.update(chat.tokens)
                self.done.add(chat.index)
                part = _progress(out).with_suffix(".partial")
                part.write_text(json.dumps({"done": _ranges(self.done), "bytes": file.tell(), "counts": self.counts,
                                            "made_with": self.made_with}))
                part.replace(_progress(out))
                if self.counts["tokens"] >= self.sampling.tokens:
                    break
        return self.counts

    def _next(self, chat: Chat) -> ChatTurn:
        """Returns the chat's next turn."""
        answer = chat.begun is not None or (bool(chat.messages) and chat.messages[-1]["role"] == "user")
        if not answer and (given := chat.requests[len(chat.messages) // 2]) is not None:
            chat.messages.append({"role": "user", "content": given})
            answer = True
        sampling = self.sampling
        return ChatTurn(
            self._prompt(chat, answer), (sampling.seed, 3, chat.index, len(chat.messages)),
            chat.temperature if answer else INVENTED_TEMPERATURE,
            sampling.most if answer else min(sampling.most, LONGEST_REQUEST), chat=chat, answer=answer)

    def _take(self, turn: ChatTurn, found: SampledTurn) -> bool:
        """Adds a sampled turn to its chat; returns True if the chat goes on."""
        chat, text = turn.chat, self._text(turn, found)
        if turn.answer:
            chat.ended = found.ended
            chat.tokens += len(found.tokens)
            chat.dropped = "empty" if not text.strip() else "loops" if loops(found.tokens) else ""
        elif not found.ended or not text.strip():
            # Without a first request there is nothing to answer; a second one may be missing.
            chat.dropped = "" if chat.messages else "unfinished request"
            return False
        chat.messages.append({"role": "assistant" if turn.answer else "user", "content": text})
        return not chat.dropped and chat.ended and (not turn.answer or len(chat.messages) < 2 * len(chat.requests))

    def _text(self, turn: ChatTurn, found: SampledTurn) -> str:
        """Returns what was sampled as text, without the tokens that end it.

        An answer keeps its special tokens, which may mark its thoughts.  A continuation is what it adds to its prompt's
        text: some tokenizers drop the space that begins a text.
        """
        tokens = [token for token in found.tokens if token not in self.ends]
        if turn.chat.begun is not None:
            before, whole = (self.tokenizer.decode(ids, skip_special_tokens=True)
                             for ids in (turn.prompt, [*turn.prompt, *tokens]))
            if whole.startswith(before):
                return whole[len(before):]
        return self.tokenizer.decode(tokens, skip_special_tokens=not turn.answer)

    def _prompt(self, chat: Chat, answer: bool) -> list[int]:
        """Returns the ids before the next turn: the template up to the start of an answer, or of a user's turn; or the
        text to continue."""
        if chat.begun is not None:
            return list(self.tokenizer(chat.begun.text)["input_ids"])
        if answer:
            text = self.tokenizer.apply_chat_template(chat.messages, tokenize=False, add_generation_prompt=True)
        else:
            asked = [*chat.messages, {"role": "user", "content": MARK}]
            text = self.tokenizer.apply_chat_template(asked, tokenize=False).split(MARK)[0]
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _judge(self, chat: Chat) -> None:
        """Drops a chat that repeats another one or a request of excluded rows, and counts it.

        Excerpts of documents and of texts to continue are not compared with excluded rows.
        """
        if not chat.dropped and chat.begun is None:
            requests = [m["content"] for m in chat.messages if m["role"] == "user"]
            if chat.source != "documents" and any(
                    self.excluded & shingles(_words(text), SHARED_WORDS) for text in requests):
                chat.dropped = "excluded"
            elif (known := _digest(requests[0])) in self.seen:
                chat.dropped = "repeated"
            else:
                self.seen.add(known)
        self.counts[chat.dropped or "kept"] += 1
        self.counts["tokens"] += 0 if chat.dropped else chat.tokens

    def _resume(self, out: Path) -> None:
        """Restores the state of an interrupted run; text that was written after the saved state is cut off."""
        if not out.exists():
            return
        try:
            state = parse_json(_progress(out).read_text(encoding="utf-8"), str(_progress(out)))
            size, self.counts = int(state["bytes"]), Counter(state["counts"])
            self.done = {index for first, last in state["done"] for index in range(first, last + 1)}
            changed = list(differences(state.get("made_with", self.made_with), self.made_with))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{out} exists, and {_progress(out)} does not say how far it is. Give another --out, or "
                             "delete the file to begin again.") from error
        if changed:
            raise ValueError(f"{out} was sampled with other settings: {'; '.join(changed)}.\nGive another --out, or "
                             "the old settings.")
        with open(out, "r+b") as file:
            file.truncate(size)
        self.seen = {_digest(document.turns[0]["content"]) for document in read_documents([out]) if document.turns}


def regenerate(model: str, out: Path, sampling: ChatSampling, sources: Sources, excluded: Sequence[Path] = (),
               dtype: torch.dtype = torch.bfloat16, device: str | None = None) -> Counter[str]:
    """Samples a model's own answers and continuations into `out`, JSONL with messages or text.

    Args:
        model: A name for `place_of`.
        out: The file; an interrupted run is continued.
        sampling: Settings.
        sources: What is answered and continued.
        excluded: JSONL of rows whose requests are dropped.
        dtype: Number type of the model, or of what is computed between the blocks of a GGUF file.
        device: As in `Settings`.

    Returns:
        The numbers of kept and dropped rows.

    Raises:
        ValueError: Requests are to be answered, and the model has no chat template.
    """
    loaded = load_target(ModelSource(model), Settings(dtype=str(dtype)[6:], device=device))
    if not loaded.tokenizer.chat_template and sources.kinds != ["continued"]:
        raise ValueError("The model has no chat template, so it answers no requests. Let it continue texts "
                         "(--continue), or give an instruct model.")
    worker = Regenerator(loaded.target.model, loaded.tokenizer, sampling, texts_of(excluded), model)
    return worker.run(requests_of(sources, sampling), out)


def _progress(out: Path) -> Path:
    return out.with_name(out.name + ".progress")


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Returns the runs of consecutive numbers as [first, last]."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def texts_of(files: Iterable[Path]) -> Iterator[str]:
    """Yields all strings of the rows of JSONL files."""
    for path in files:
        for line in read_json_lines(path):
            yield from _strings(line.value)


def _strings(value: Any) -> Iterator[str]:
    """Yields all strings of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def _words(text: str) -> str:
    """Returns the text without case and punctuation."""
    return " ".join(re.findall(r"\w+", text.lower()))


def _digest(text: str) -> str:
    return hashlib.sha256(_words(text).encode()).hexdigest()

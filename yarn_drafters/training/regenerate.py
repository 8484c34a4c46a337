"""Samples training texts as JSONL: a target's own answers to given, invented and document requests, and its
own continuations of texts.

A head learns its target's distributions best from the target's own answers.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from longgraft.engine.repetition import loops
from longgraft.engine.session import Session
from longgraft.files.data_files import parse_json
from longgraft.files.json_lines import read_json_lines
from longgraft.files.whole_files import RowFile, write_whole
from longgraft.yarn_drafters.training import batched_sampling, scheduled_sampling
from longgraft.yarn_drafters.training.chat_template import REFUSALS, ChatTemplate, Turn, words_of
from longgraft.yarn_drafters.training.documents import read_documents
from longgraft.yarn_drafters.training.loop import differences
from longgraft.yarn_drafters.training.packages import shingles
from longgraft.yarn_drafters.training.sampled_chats import Chat, ChatSampling, Own, PromptSources, requests_of
from longgraft.yarn_drafters.training.turns import NextTurns, PromptTurn, SampledTurn

MARK = "\u2063request\u2063"  # stands for a user's turn in the template
LONGEST_REQUEST = 160  # tokens of an invented request: longer ones seldom end
SHARED_WORDS = 8  # consecutive words that a request must not share with excluded rows
REFUSED = "not taken by the chat template"  # reason why a chat is dropped
INVENTED_TEMPERATURE = 0.8  # temperature of invented requests: at 1, those of small models make no sense


@dataclass(frozen=True, eq=False)
class ChatTurn(PromptTurn):
    """A turn of a chat: its next answer, a request that the model invents, or the continuation of a text."""

    chat: Chat = field(kw_only=True)
    answer: bool = field(kw_only=True)


class Regenerator:
    """A sampler of chats of one model into one file, each written when it ends; the same call again continues
    the file."""

    def __init__(self, session: Session, sampling: ChatSampling, excluded: Iterable[str] = ()) -> None:
        """excluded: texts that no request may repeat"""
        self.session = session
        self.tokenizer = session.tokenizer
        self.sampling = sampling
        # Settings that rows depend on, as JSON returns them.
        self.made_with = {
            "model": session.target.name,
            "seed": sampling.seed,
            "temperatures": list(sampling.temperatures),
            "max_new_tokens": sampling.most,
            "follow_up": sampling.follow_up,
            "excerpt": sampling.longest,
        }
        self.excluded = {run for text in excluded for run in shingles(_words(text), SHARED_WORDS)}
        self.seen: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.done: set[int] = set()  # indices of chats that were kept or dropped
        self.begun: list[Chat] = []  # chats that wait for their next turn

    def run(self, chats: Iterator[Chat], out: Path) -> Counter[str]:
        """Writes chats until there are enough answer tokens; returns the numbers of kept and dropped chats,
        by reason."""
        self._resume(out)
        if self._enough:
            return self.counts
        left = (chat for chat in chats if chat.index not in self.done)
        with (
            closing(RowFile(out)) as file,
            tqdm(
                total=self.sampling.tokens,
                initial=self.counts["tokens"],
                unit="tok",
                unit_scale=True,
                disable=not sys.stderr.isatty(),
            ) as bar,
        ):
            for turn, sampled in self._sampled(partial(self._more, left, file)):
                if self._take(turn, sampled):
                    self.begun.append(turn.chat)
                    continue
                self._finish(turn.chat, file)
                bar.update(self.counts["tokens"] - bar.n)
                if self._enough:
                    break
        return self.counts

    @property
    def _enough(self) -> bool:
        return self.counts["tokens"] >= self.sampling.tokens

    def _sampled(self, more: NextTurns[ChatTurn]) -> Iterator[tuple[ChatTurn, SampledTurn]]:
        """Yields turns and what was sampled for them."""
        target = self.session.target
        batch = self.sampling.batch
        if target.device.type == "cuda" and batched_sampling.computes(target.model):
            # On a GPU the scheduler launches attention once per request and layer; a padded batch launches it once.
            return batched_sampling.sample(target.model, more, self.session.eos, batch)
        return scheduled_sampling.sample(self.session, more, batch)

    def _more(self, chats: Iterator[Chat], file: RowFile, number: int) -> Iterator[ChatTurn]:
        """Yields so many next turns, of begun chats and then of new ones; ends chats that no longer fit the model."""
        while number > 0:
            chat = self.begun.pop(0) if self.begun else next(chats, None)
            if chat is None:
                return
            turn = self._taken_by_template(chat)
            if turn is not None and turn.most > 0:
                number -= 1
                yield turn
                continue
            if turn is not None:
                chat.drop_unanswered()
                chat.dropped = "" if chat.messages else "too long"
            self._finish(chat, file)

    def _taken_by_template(self, chat: Chat) -> ChatTurn | None:
        """Returns the chat's next turn; drops the chat if the template does not show it whole."""
        reason = ""
        if chat.source == "given" and not chat.messages:
            placeholder = {"role": "assistant", "content": "Yes."}
            turns = [placeholder if isinstance(turn, Own) else turn for turn in chat.plan]
            reason = ChatTemplate(self.tokenizer, chat.tools).refusal(turns)
        if not reason:
            try:
                return self._next(chat)
            except REFUSALS as error:
                reason = words_of(error)
        chat.dropped = REFUSED
        if not self.counts[REFUSED]:
            first = chat.place or f"chat {chat.index}"
            print(f"longgraft: {first} is left out: the chat template does not take it ({reason})", file=sys.stderr)
        return None

    def _finish(self, chat: Chat, file: RowFile) -> None:
        """Writes a chat that has ended, unless it is dropped, and the state of the run."""
        self._judge(chat)
        if not chat.dropped:
            file.append(json.dumps(chat.row(), ensure_ascii=False))
        self.done.add(chat.index)
        state = {
            "done": _ranges(self.done),
            "bytes": file.size,
            "counts": self.counts,
            "made_with": self.made_with,
        }
        write_whole(_progress(file.path), json.dumps(state))

    def _next(self, chat: Chat) -> ChatTurn:
        """Returns the chat's next turn; its `most` is not positive if the model has no positions for it."""
        chat.take_given()
        answer = chat.plan[len(chat.messages)] is Own.ANSWER
        sampling = self.sampling
        prompt = self._prompt(chat, answer)
        most = sampling.most
        temperature = chat.temperature
        if not answer:
            most = min(most, LONGEST_REQUEST)
            temperature = INVENTED_TEMPERATURE
        room = min(self.session.engine.limits.values()) - len(prompt)
        seed = (sampling.seed, 3, chat.index, len(chat.messages))
        return ChatTurn(prompt, seed, temperature, min(most, room), chat=chat, answer=answer)

    def _take(self, turn: ChatTurn, sampled: SampledTurn) -> bool:
        """Adds a sampled turn to its chat; returns True if the chat goes on."""
        chat = turn.chat
        text = self._text(turn, sampled)
        if turn.answer:
            chat.ended = sampled.ended
            chat.tokens += len(sampled.tokens)
            if not text.strip():
                chat.dropped = "empty"
            elif loops(sampled.tokens):
                chat.dropped = "loops"
            else:
                chat.dropped = ""
        elif not sampled.ended or not text.strip():
            # Without a first request there is nothing to answer; a second one may be missing.
            chat.dropped = "" if chat.messages else "unfinished request"
            return False
        chat.messages.append({"role": "assistant" if turn.answer else "user", "content": text})
        return not chat.dropped and chat.ended and chat.goes_on

    def _text(self, turn: ChatTurn, sampled: SampledTurn) -> str:
        """Returns what was sampled as text, without the tokens that end it.

        An answer keeps its special tokens, which may mark its thoughts.  A continuation is what it adds to
        its prompt's
        text: some tokenizers drop the space that begins a text.
        """
        tokens = [token for token in sampled.tokens if token not in self.session.eos]
        if turn.chat.begun is not None:
            before, whole = (
                self.tokenizer.decode(ids, skip_special_tokens=True) for ids in (turn.prompt, [*turn.prompt, *tokens])
            )
            if whole.startswith(before):
                return whole[len(before) :]
        return self.tokenizer.decode(tokens, skip_special_tokens=not turn.answer)

    def _prompt(self, chat: Chat, answer: bool) -> list[int]:
        """Returns the ids before the next turn: the template up to the start of an answer, or of a user's
        turn; or the text to continue."""
        if chat.begun is not None:
            return list(self.tokenizer(chat.begun.text)["input_ids"])
        template = ChatTemplate(self.tokenizer, chat.tools)
        if answer:
            return template.ids(template.text(chat.messages, True))
        opened = template.text([*chat.messages, {"role": "user", "content": MARK}], False)
        return template.ids(opened.split(MARK)[0])

    def _judge(self, chat: Chat) -> None:
        """Drops a chat that repeats another one or a request of excluded rows, and counts it.

        Excerpts of documents and of texts to continue are not compared with excluded rows.
        """
        if not chat.dropped and chat.begun is None:
            digest = _digest(chat.source, chat.messages, chat.tools)
            texts = (turn["content"] for turn in chat.messages if turn["role"] == "user")
            if chat.source != "documents" and any(
                self.excluded & shingles(_words(text), SHARED_WORDS) for text in texts
            ):
                chat.dropped = "excluded"
            elif digest in self.seen:
                chat.dropped = "repeated"
            else:
                self.seen.add(digest)
        self.counts[chat.dropped or "kept"] += 1
        self.counts["tokens"] += 0 if chat.dropped else chat.tokens

    def _resume(self, out: Path) -> None:
        """Restores the state of an interrupted run; text that was written after the saved state is cut off."""
        if not out.exists():
            return
        try:
            state = parse_json(_progress(out).read_text(encoding="utf-8"), str(_progress(out)))
            size = int(state["bytes"])
            self.counts = Counter(state["counts"])
            self.done = {index for first, last in state["done"] for index in range(first, last + 1)}
            changed = list(differences(state["made_with"], self.made_with))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{out} exists, and {_progress(out)} does not say how far it is. Give another "
                "--out, or delete the file to begin again."
            ) from error
        if changed:
            raise ValueError(
                f"{out} was sampled with other settings: {'; '.join(changed)}.\nGive another "
                "--out, or the old settings."
            )
        with open(out, "r+b") as file:
            file.truncate(size)
        for document in read_documents([out]):
            if document.turns:
                self.seen.add(_digest(document.source, document.turns, document.tools))


def regenerate(
    session: Session, out: Path, sampling: ChatSampling, sources: PromptSources, excluded: Sequence[Path] = ()
) -> Counter[str]:
    """Samples a model's own answers and continuations into `out`, JSONL with messages or text.

    Args:
        session: The model; its method decodes, except on a GPU.
        out: The file; an interrupted run is continued.
        sampling: Settings.
        sources: What is answered and continued.
        excluded: JSONL of rows whose requests are dropped.

    Returns:
        The numbers of kept and dropped rows.

    Raises:
        ValueError: Requests are to be answered, and the model has no chat template.
    """
    if not session.tokenizer.chat_template and sources.kinds != ["continued"]:
        raise ValueError(
            "The model has no chat template, so it answers no requests. Let it continue texts "
            "(--continue), or give an instruct model."
        )
    return Regenerator(session, sampling, texts_of(excluded)).run(requests_of(sources, sampling), out)


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


def _digest(source: str, messages: Sequence[Turn], tools: Sequence[Mapping[str, Any]]) -> str:
    """Returns a digest of what a chat asks; of requests that the model invents the first one counts alone."""
    asked = [turn for turn in messages if turn["role"] != "assistant"]
    if source != "given":
        asked = asked[:1]
    turns = [(turn["role"], _words(turn["content"])) for turn in asked]
    return hashlib.sha256(json.dumps([turns, list(tools)], sort_keys=True).encode()).hexdigest()

"""Training text as tokens: training a tokenizer, encoded corpora, endless deterministic token streams.

Knows documents, bytes and token ids; knows no model, no optimizer and no learning rate.  A token that is context only
(a chat's question) is stored as ~id, so that packing, shuffling and resuming need not know of it.
"""

from __future__ import annotations

import hashlib
import math
import sys
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from longgraft.yarn_drafters.training.documents import PROSE, Document, read_documents

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"

# Order matters: the first alternative that matches at a position wins.  Newlines and indentation are separate pieces,
# so that a prompt that ends with a newline is split like the training text.
PIECES = "|".join((
    r"(?<![^\n])[ \t]+",            # a line's whole indentation, at most one token per common depth
    r"(?:\r?\n)+",                  # a run of line ends
    r"\p{N}",                       # digits one by one
    r"[ ._]?\p{L}+",                # a word with its space, its dot (attribute) or its underscore
    r" ?[^\s\p{L}\p{N}]+",          # operators and brackets
    r"[^\S\r\n]+(?!\S)",            # inner spaces, leaving one for the word that follows
    r"\s",
))


def train_tokenizer(texts: Iterable[str], vocab_size: int = 4096) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer; its one special token, `<|endoftext|>` (id 0), ends and pads."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END,
                                   clean_up_tokenization_spaces=False)


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """[V] int64: bytes of text per token; 0 for the special token."""
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    # A byte-level vocabulary spells each byte as one character.
    return np.array([0 if name == END else len(name) for name in names], dtype=np.int64)


@dataclass(frozen=True)
class EncodedCorpus:
    """tokens: [N] int32, the end token after each document, ~id where context only; starts: [documents + 1] int64."""

    tokens: np.ndarray
    starts: np.ndarray
    types: tuple[str, ...]
    sources: tuple[str, ...]

    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def gather(self, documents: np.ndarray) -> np.ndarray:
        """The concatenated tokens of these documents, [sum of lengths] int32."""
        return np.concatenate([self.tokens[self.starts[d]:self.starts[d + 1]] for d in documents])


def encode_corpus(paths: Iterable[Path], tokenizer: PreTrainedTokenizerFast,
                  cache: Path) -> EncodedCorpus:
    """The files' documents as ids, read from `cache` (.npz) if files and tokenizer are the same."""
    paths = [Path(path) for path in paths]
    rules = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else sorted(tokenizer.get_vocab().items())
    digest = hashlib.sha256(repr([rules, tokenizer.chat_template]).encode())
    for file in sorted(f for path in paths for f in ([path] if path.is_file() else path.rglob("*")) if f.is_file()):
        digest.update(file.read_bytes())
    if (found := _cached(cache, digest.hexdigest())) is not None:
        return found
    corpus = encode(read_documents(paths), tokenizer)
    if not len(corpus.tokens):
        raise ValueError(f"{', '.join(map(str, paths)) or 'No file'}: nothing to learn from, no text and no chat with "
                         "an answer. Give other files.")
    partial = cache.with_suffix(".partial.npz")
    np.savez(partial, tokens=corpus.tokens, starts=corpus.starts, types=corpus.types,
             sources=corpus.sources, digest=digest.hexdigest())
    partial.replace(cache)
    return corpus


def _cached(cache: Path, digest: str) -> EncodedCorpus | None:
    """The corpus of the cache; None if it is of other files, damaged or missing, since it can always be rebuilt."""
    try:
        with np.load(cache) as saved:
            if str(saved["digest"]) == digest:
                types, sources = (tuple(saved[name].tolist()) for name in ("types", "sources"))
                return EncodedCorpus(saved["tokens"], saved["starts"], types, sources)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        pass
    return None


def encode(documents: Iterable[Document], tokenizer: PreTrainedTokenizerFast) -> EncodedCorpus:
    """The documents as ids; chats that cannot be encoded are left out and counted on stderr."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    pieces, types, sources, dropped = [], [], [], 0
    documents = (document for document in documents if document.text or document.turns)
    while batch := list(islice(documents, 64)):     # small: encodings hold offsets and strings too
        # With the special tokens that the tokenizer puts before a prompt.
        plain = iter(tokenizer([d.text for d in batch if not d.turns] or [""])["input_ids"])
        for document in batch:
            found = _chat_ids(document, tokenizer) if document.turns else [[*next(plain), *end]]
            dropped += not found
            for ids in found:
                pieces.append(np.array(ids, dtype=np.int32))
                types.append(document.type)
                sources.append(document.source)
    if dropped:
        print(f"longgraft: {dropped:,} chats were left out: no answer, or turns that the chat template does not take.",
              file=sys.stderr)
    starts = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    return EncodedCorpus(np.concatenate([np.empty(0, np.int32), *pieces]), starts, tuple(types), tuple(sources))


def _chat_ids(chat: Document, tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    """A chat in the tokenizer's template, ~id for all tokens outside the assistant's answers.

    One document, or several if the template rewrites earlier turns (Qwen3 drops earlier thoughts): then each answer
    follows the past as the template shows it at that turn.  [] without an answer or if the template refuses the turns.
    """
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        raise ValueError("The data holds chats, and the tokenizer has no chat template. Give plain text, or the "
                         "tokenizer of an instruct model.")

    turns = chat.turns

    def ids(count: int, ask: bool) -> list[int]:
        plain = [dict(turn) for turn in turns[:count]]
        found: Any = tokenizer.apply_chat_template(plain, add_generation_prompt=ask, return_dict=True)
        return list(found["input_ids"])

    documents: list[list[int]] = []
    for i, turn in enumerate(turns):
        if turn["role"] != "assistant" or i == 0:
            continue
        try:
            asked = ids(i, True)
            whole = chat.ended or i + 1 < len(turns)
            answered = ids(i + 1, False) if whole else asked + list(
                tokenizer(turn["content"], add_special_tokens=False)["input_ids"])
        except TemplateError:       # a role or an order that this template does not know
            break
        if answered[:len(asked)] != asked:
            continue                # the answer's tokens cannot be separated from those before it
        known = [~token if token < 0 else token for token in documents[-1]] if documents else []
        if not documents or asked[:len(known)] != known:
            documents.append([])
            known = []
        documents[-1] += [~token for token in asked[len(known):]] + answered[len(asked):]
    return documents


def split_coded(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coded ids -> (ids, whether each is a target of learning)."""
    return np.where(rows < 0, ~rows, rows), rows >= 0


def held_out_rows(corpus: EncodedCorpus, rows: int, length: int = 2048) -> dict[str, np.ndarray]:
    """A fixed sample per kind, [r, length + 1] coded: `rows` of code, half as many of prose and of other text."""
    kinds = {"code": lambda t: t.startswith("code"), "prose": lambda t: t in PROSE,
             "text": lambda t: not t.startswith("code") and t not in PROSE}
    sample = {}
    for kind, known in kinds.items():
        chosen = [d for d, t in enumerate(corpus.types) if known(t)]
        if chosen and rows:
            def order(_: EncodedCorpus, rng: np.random.Generator, chosen: list[int] = chosen) -> np.ndarray:
                return rng.permutation(chosen)

            count = rows if kind == "code" else math.ceil(rows / 2)
            sample[kind] = TokenStream(corpus, 0, order).rows(0, count, length)
    return sample


def mixed_documents(corpus: EncodedCorpus, rng: np.random.Generator,
                    prose_share: float | None) -> np.ndarray:
    """Shuffled indices of all documents, with prose up to `prose_share` of the tokens (None: all)."""
    order = rng.permutation(len(corpus.types))
    prose = np.array([corpus.types[d] in PROSE for d in order])
    lengths = corpus.lengths()[order]
    if prose.all() or prose_share is None:
        return order
    room = lengths[~prose].sum() * prose_share / max(1e-9, 1.0 - prose_share)
    return order[~prose | (np.cumsum(np.where(prose, lengths, 0)) <= room)]


def grouped_documents(corpus: EncodedCorpus, rng: np.random.Generator, prose_share: float | None,
                      run: int = 32768) -> np.ndarray:
    """The mixed documents in shuffled runs of about `run` tokens of one repository, by path.

    Distant text is only worth copying if it is related to the text at hand.
    """
    chosen = sorted(mixed_documents(corpus, rng, prose_share), key=lambda d: corpus.sources[d])
    runs: list[list[int]] = []
    lengths, group, size = corpus.lengths(), None, 0
    for document in chosen:
        here = Document("", "", corpus.sources[document]).group
        if here != group or size >= run:
            runs.append([])
            group, size = here, 0
        runs[-1].append(document)
        size += lengths[document]
    return np.concatenate([runs[i] for i in rng.permutation(len(runs))])


class TokenStream:
    """An endless token sequence: epochs, each an order of documents drawn from (seed, epoch).

    Reading depends on the position alone, so that resuming needs only a position.
    shuffled: the rows of a window come in random order, so that a batch does not consist of one long document;
    repeated: tokens of an epoch, of which each then is the first one again, so that its rows repeat.
    """

    window = 2 ** 20        # tokens within which rows are shuffled: some 250 files

    def __init__(self, corpus: EncodedCorpus, seed: int,
                 order: Callable[[EncodedCorpus, np.random.Generator], np.ndarray],
                 shuffled: bool = False, repeated: int | None = None) -> None:
        self._corpus, self._seed, self._order, self._shuffled = corpus, seed, order, shuffled
        self._repeated, self.window = repeated, repeated or TokenStream.window
        self._bounds = [0]                  # the stream position at which each epoch begins
        self._held: dict[int, np.ndarray] = {}

    def read(self, start: int, count: int) -> np.ndarray:
        """[count] int64, coded: the tokens at positions start .. start + count - 1."""
        parts = []
        while count > 0:
            epoch = self._epoch_at(start)
            part = self._tokens(epoch)[start - self._bounds[epoch]:][:count]
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return np.concatenate(parts).astype(np.int64)

    def rows(self, start: int, rows: int, length: int) -> np.ndarray:
        """[rows, length + 1] int64, coded: the rows at stream position `start`, each with the token after it.

        Neighbouring rows share one token: in an epoch each token is an input once and a target once.
        `start` is a multiple of `length`.
        """
        if start % length or self.window % length:
            raise ValueError(f"Rows of {length:,} tokens must divide {self.window:,}, begin at a "
                             f"multiple; got {start:,}. Use `aligned` when the length changes.")
        return np.stack([self.read(self._place(turn, length) * length, length + 1)
                         for turn in range(start // length, start // length + rows)])

    def size(self) -> int:
        """Tokens of the first epoch."""
        return int(self._corpus.lengths()[self._order(self._corpus, np.random.default_rng([self._seed, 0]))].sum())

    def aligned(self, start: int) -> int:
        """The first position from `start` on where rows of any length may begin."""
        return -(-start // self.window) * self.window

    def _place(self, turn: int, length: int) -> int:
        """The index in the text of the row that is read at this turn."""
        if not self._shuffled:
            return turn
        per_window = self.window // length
        window, inside = divmod(turn, per_window)
        rng = np.random.default_rng([self._seed, window, length])
        return window * per_window + int(rng.permutation(per_window)[inside])

    def _epoch_at(self, position: int) -> int:
        while self._bounds[-1] <= position:
            self._bounds.append(self._bounds[-1] + len(self._tokens(len(self._bounds) - 1)))
        return int(np.searchsorted(self._bounds, position, side="right")) - 1

    def _tokens(self, epoch: int) -> np.ndarray:
        if epoch not in self._held:
            rng = np.random.default_rng([self._seed, epoch if self._repeated is None else 0])
            # A window may span two epochs, so two are kept.
            kept = {e: held for e, held in self._held.items() if abs(e - epoch) == 1}
            order = self._order(self._corpus, rng)
            if not self._corpus.lengths()[order].sum():     # no number of epochs would fill a row
                raise ValueError("The files hold no tokens to read, or prose_share leaves none. Give other text.")
            self._held = kept | {epoch: self._corpus.gather(order)[:self._repeated]}
        return self._held[epoch]

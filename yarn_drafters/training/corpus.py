"""Trains tokenizers and encodes training text as tokens.

A token that is only context (a chat's question) is stored as ~id, so packing, shuffling and resuming can
ignore the difference.
"""

from __future__ import annotations

import hashlib
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from longgraft.engine.token_bytes import TokenBytes
from longgraft.files.whole_files import written_whole
from longgraft.yarn_drafters.training.chats import ChatEncoder
from longgraft.yarn_drafters.training.documents import Document, read_documents

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"
READING = 2  # version of how rows become tokens; another one makes a cached corpus out of date

# Order matters: the first alternative that matches at a position wins.  Newlines and indentation are separate
# pieces, so that a prompt that ends with a newline is split like the training text.
PIECES = "|".join(
    (
        r"(?<![^\n])[ \t]+",  # a line's whole indentation, at most one token per common depth
        r"(?:\r?\n)+",  # a run of line ends
        r"\p{N}",  # digits one by one
        r"[ ._]?\p{L}+",  # a word with its space, its dot (attribute) or its underscore
        r" ?[^\s\p{L}\p{N}]+",  # operators and brackets
        r"[^\S\r\n]+(?!\S)",  # inner spaces, leaving one for the word that follows
        r"\s",
    )
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = 4096) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE tokenizer; its one special token, `<|endoftext|>` (id 0), ends and pads."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END],
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False
    )


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Returns [V] int64, the bytes of text per token; 0 for the special tokens."""
    spelt = TokenBytes(tokenizer)
    special = set(tokenizer.all_special_ids)
    return np.array([0 if token in special else len(spelt(token)) for token in range(len(tokenizer))], dtype=np.int64)


@dataclass(frozen=True)
class EncodedCorpus:
    """Encoded documents.

    Attributes:
        tokens: [N] int32, an end token after each whole document, ~id for context only.
        starts: [documents + 1] int64.
    """

    tokens: np.ndarray
    starts: np.ndarray
    types: tuple[str, ...]
    sources: tuple[str, ...]

    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def gather(self, documents: np.ndarray) -> np.ndarray:
        """Returns the concatenated tokens of these documents, [sum of lengths] int32."""
        return np.concatenate([self.tokens[self.starts[d] : self.starts[d + 1]] for d in documents])


def encode_corpus(paths: Iterable[Path], tokenizer: PreTrainedTokenizerFast, cache: Path) -> EncodedCorpus:
    """Returns the files' documents as ids; reads them from `cache` (.npz) if files and tokenizer are the same."""
    paths = [Path(path) for path in paths]
    rules = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else sorted(tokenizer.get_vocab().items())
    digest = hashlib.sha256(repr([READING, rules, tokenizer.chat_template]).encode())
    for file in sorted(f for path in paths for f in ([path] if path.is_file() else path.rglob("*")) if f.is_file()):
        digest.update(file.name.encode() + file.read_bytes())
    cached = _cached(cache, digest.hexdigest())
    if cached is not None:
        return cached
    chats = ChatEncoder(tokenizer)
    corpus = encode(read_documents(paths), chats)
    if not len(corpus.tokens):
        raise ValueError(
            f"{', '.join(map(str, paths)) or 'No file'}: nothing to learn from, no text and no "
            f"chat with an answer. {chats.left_out or 'Give other files.'}"
        )
    with written_whole(cache) as part, open(part, "wb") as out:
        np.savez(
            out,
            tokens=corpus.tokens,
            starts=corpus.starts,
            types=corpus.types,
            sources=corpus.sources,
            digest=digest.hexdigest(),
        )
    return corpus


def _cached(cache: Path, digest: str) -> EncodedCorpus | None:
    """Returns the cached corpus; None if it belongs to other files, is damaged or missing, since it can be rebuilt."""
    try:
        with np.load(cache) as saved:
            if str(saved["digest"]) == digest:
                types, sources = (tuple(saved[name].tolist()) for name in ("types", "sources"))
                return EncodedCorpus(saved["tokens"], saved["starts"], types, sources)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        pass
    return None


def encode(documents: Iterable[Document], chats: ChatEncoder) -> EncodedCorpus:
    """Returns the documents as ids; chats that cannot be encoded are left out and counted on stderr.

    Args:
        chats: Encodes chats; other texts are encoded with its tokenizer.
    """
    tokenizer = chats.tokenizer
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    pieces = []
    types = []
    sources = []
    documents = (document for document in documents if document.text or document.turns)
    while batch := list(islice(documents, 64)):  # small: encodings hold offsets and strings too
        # These ids include the special tokens that the tokenizer puts before a prompt.
        plain = iter(tokenizer([d.text for d in batch if not d.turns] or [""])["input_ids"])
        for document in batch:
            text_end = end
            if not document.ended:
                text_end = []
            encoded = chats.documents(document) if document.turns else [[*next(plain), *text_end]]
            for ids in encoded:
                pieces.append(np.array(ids, dtype=np.int32))
                types.append(document.type)
                sources.append(document.source)
    if pieces and chats.left_out:
        print(f"longgraft: {chats.left_out}", file=sys.stderr)
    starts = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    return EncodedCorpus(np.concatenate([np.empty(0, np.int32), *pieces]), starts, tuple(types), tuple(sources))


def split_coded(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Splits coded ids into (ids, bool: True for tokens that are learnt)."""
    return np.where(rows < 0, ~rows, rows), rows >= 0

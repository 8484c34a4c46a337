"""The draft vocabulary of a new head: the tokens that its target writes most often."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longgraft.yarn_drafters.training.chats import ChatEncoder
from longgraft.yarn_drafters.training.corpus import EncodedCorpus, encode
from longgraft.yarn_drafters.training.documents import read_documents


def draft_vocabulary(coded: np.ndarray, vocab: int, size: int, always: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Returns (d2t [D] int64 offsets, t2d [V] bool) for the most frequent learnt tokens and `always`, by
    ascending id."""
    counts = np.bincount(coded[coded >= 0], minlength=vocab).astype(np.int64)
    counts[list(always)] = counts.max() + 1
    ids = torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:size]))
    t2d = torch.zeros(vocab, dtype=torch.bool)
    t2d[ids] = True
    return ids - torch.arange(size), t2d


def written_tokens(paths: Iterable[Path], tokenizer: Any) -> np.ndarray:
    """Returns the tokens that a model wrote, [n] int32.

    These are the answers of chats, the continuations in rows of `train regenerate` without the excerpts
    before them, and all other texts.

    Raises:
        ValueError: there are none.
    """
    documents = list(read_documents(paths))
    chats = ChatEncoder(tokenizer)
    answers = encode((document for document in documents if document.turns), chats).tokens
    texts = [document for document in documents if document.text and not document.turns]
    coded = encode(texts, chats)
    parts = [answers[answers >= 0]]
    for document, start, end in zip(texts, coded.starts, coded.starts[1:], strict=False):
        first = start
        if document.own is not None:
            first = max(start, end - document.own - document.ended)
        parts.append(coded.tokens[first:end])
    tokens = np.concatenate(parts)
    if not len(tokens):
        raise ValueError(
            f"{', '.join(map(str, paths)) or 'No file'}: no answer and no text to count the "
            "draft vocabulary over. "
            f"{chats.left_out or 'Give a file of `longgraft train regenerate`.'}"
        )
    return tokens


def covered(corpus: EncodedCorpus, t2d: Tensor) -> dict[str, float]:
    """Returns the share of the learnt tokens of each type of text that a draft vocabulary has.

    Args:
        t2d: [V] bool.
    """
    shares = {}
    for kind in sorted(set(corpus.types)):
        coded = corpus.gather(np.flatnonzero(np.array(corpus.types) == kind))
        learnt = torch.from_numpy(coded[coded >= 0]).long()
        if len(learnt):
            shares[kind] = round(t2d[learnt].float().mean().item(), 4)
    return shares

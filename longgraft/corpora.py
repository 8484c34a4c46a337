"""Corpora: texts that answers may repeat, as tokens and their suffix array, in one memory-mapped file.

REST's datastore (arXiv 2311.08252) is a corpus.  All corpora lie in one folder, by name.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from longgraft.files.cache import cache_folder
from longgraft.files.identified_file import MODEL, read_identified, save_identified

VERSION = "1"
SORTED = 32  # tokens by which places are sorted: a match and its continuation together are at most as long
MOST = 2**31 - 1 - SORTED  # most tokens: places and the ends of their continuations are int32
PASSAGES = 4  # passages that are read per match, evenly spaced among the places
PASSAGE = 128  # tokens of a passage after the match
ENDING = ".safetensors"
NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as tokens, and its suffix array.

    Attributes:
        tokens: [N] int32.
        order: [N] int32, places in `tokens`, sorted by the SORTED tokens that begin there.
    """

    tokens: np.ndarray
    order: np.ndarray

    @classmethod
    def build(cls, tokens: np.ndarray, progress: Callable[[Iterable[int]], Iterable[int]] = iter) -> Corpus:
        """Builds a corpus from tokens [N] of any integer type; progress: shows how far sorting is.

        Raises:
            ValueError: there are too few or too many tokens.
        """
        if not 0 < len(tokens) <= MOST:
            raise ValueError(f"The text has {len(tokens):,} tokens; a corpus holds 1 to {MOST:,}. Give other files.")
        order = rank = np.unique(tokens, return_inverse=True)[1]
        for done in progress([2**n for n in range(SORTED.bit_length() - 1)]):
            # Ranks are by the first `done` tokens; the ranks of the next `done` are that far on, or 0.
            key = rank.astype(np.int64) * (len(rank) + 1)
            key[:-done] += rank[done:] + 1
            order = np.argsort(key, kind="stable")
            rank[order] = np.concatenate([[0], np.cumsum(np.diff(key[order]) != 0)])
        return cls(tokens.astype(np.int32), order.astype(np.int32))

    def longest(self, context: Sequence[int], longest: int, shortest: int) -> tuple[int, slice]:
        """Returns (length of the context's longest match, its places as a slice of `order`) or (0, empty)."""
        length = 0
        places = slice(0, 0)
        low = shortest
        high = min(longest, len(context))
        while low <= high:  # if an end of the context matches, its shorter ends match, too
            middle = (low + high) // 2
            matches = self.find(context[-middle:])
            if matches.start < matches.stop:
                length = middle
                places = matches
                low = middle + 1
            else:
                high = middle - 1
        return length, places

    def find(self, string: Sequence[int]) -> slice:
        """Returns the places where the string occurs, as a slice of `order`."""
        wanted = list(string)

        def string_at(place: int) -> list[int]:
            return self.tokens[place : place + len(wanted)].tolist()

        first = bisect_left(self.order, wanted, key=string_at)
        if first == len(self.order) or string_at(self.order[first]) != wanted:
            return slice(first, first)
        return slice(first, bisect_right(self.order, wanted, lo=first, key=string_at))

    def passages(self, context: Sequence[int], lengths: Iterable[int]) -> list[list[int]]:
        """Returns some passages that contain the longest match of one of these lengths and what follows it.

        lengths: ascending; [] is returned if the shortest does not match
        """
        longest = 0
        places = slice(0, 0)
        for length in lengths:  # if an end of the context matches, its shorter ends match, too
            if length > len(context):
                break
            matches = self.find(context[-length:])
            if matches.start == matches.stop:
                break
            longest = length
            places = matches
        count = places.stop - places.start
        chosen = min(count, PASSAGES)
        evenly = places.start + np.arange(chosen) * count // max(1, chosen)
        return [self.tokens[at : at + longest + PASSAGE].tolist() for at in self.order[evenly].tolist()]

    def save(self, path: Path, identity: Mapping[str, str]) -> None:
        """Writes one safetensors file, whole or not at all; `identity` names the ids' tokenizer and its model."""
        tensors = {"tokens": torch.from_numpy(self.tokens), "order": torch.from_numpy(self.order)}
        save_identified(path, tensors, {"version": VERSION}, identity)

    @classmethod
    def load(cls, path: Path, identity: Mapping[str, str]) -> Corpus:
        """Maps a file; raises ValueError if it is damaged or holds another tokenizer's ids."""
        _, tensors = read_identified(path, identity, VERSION, _unfit)
        tokens = tensors.get("tokens", torch.empty(0))
        order = tensors.get("order", torch.empty(0))
        alike = tokens.ndim == 1 and len(tokens) > 0 and tokens.shape == order.shape
        if not alike or {tokens.dtype, order.dtype} != {torch.int32}:
            raise _unfit(
                path,
                f"holds tokens {tokens.dtype} {list(tokens.shape)} and order {order.dtype} {list(order.shape)}; two "
                "of [N] int32 are needed",
            )
        return cls(tokens.numpy(), order.numpy())


def _unfit(path: Path, why: str) -> ValueError:
    name = path.name.removesuffix(ENDING)  # only the name, because a client need not know the path
    return ValueError(
        f"Corpus {name!r} {why}. Remove it, and make it for this model: `longgraft corpus "
        f"remove {name}`, `longgraft corpus add {name} FILES --model MODEL`."
    )


def corpora_folder() -> Path:
    return cache_folder() / "corpora"


def corpus_path(name: str) -> Path:
    """Returns the path of a corpus, which may not exist; raises ValueError if this cannot be its name."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a corpus: letters, digits, _, and inside . and - are. Give another.")
    return corpora_folder() / f"{name}{ENDING}"


def known_corpora() -> list[str]:
    """Returns the names of all corpora, sorted."""
    names = [path.name.removesuffix(ENDING) for path in corpora_folder().glob(f"*{ENDING}")]
    return sorted(filter(NAME.fullmatch, names))


def tokens_in(path: Path) -> int | None:
    """Returns the number of tokens in a corpus's file, from its header alone; None if the file is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return int(file.get_slice("tokens").get_shape()[0])
    except (OSError, SafetensorError, IndexError):
        return None


def existing_corpus(name: str) -> Path:
    """Returns the file of the corpus of this name; raises ValueError if there is none."""
    path = corpus_path(name)
    if not path.exists():
        names = ", ".join(known_corpora()) or "none"
        raise ValueError(
            f"There is no corpus {name!r}; known: {names}. Make it: `longgraft corpus add {name} FILES --model MODEL`."
        )
    return path


def open_corpus(name: str, tokenizer: str, vocab_size: int, model: str) -> Corpus:
    """Opens the corpus of this name; raises ValueError if there is none for this tokenizer and vocabulary.

    tokenizer: its fingerprint; ids are checked because one too large would end the process on a GPU
    """
    path = existing_corpus(name)
    corpus = Corpus.load(path, {"tokenizer": tokenizer, MODEL: model})
    least = int(corpus.tokens.min())
    most = int(corpus.tokens.max())
    if least < 0 or most >= vocab_size:
        raise _unfit(path, f"has token ids from {least} to {most}, and the model knows 0 to {vocab_size - 1}")
    return corpus


def changing(path: Path) -> FileLock:
    """Returns a lock on the file for a `with` block, which waits while another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f".{path.name}.lock"))

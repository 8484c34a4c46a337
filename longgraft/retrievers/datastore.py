"""REST's datastore (arXiv 2311.08252): tokens and their suffix array, in one file that is mapped, not read.

Knows ids and files; knows no tokenizer and no model.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longgraft.config.file_errors import reason

VERSION = "1"
SORTED = 32     # tokens by which places are sorted: a match and its continuation together are no longer
MOST = 2 ** 31 - 1


@dataclass(frozen=True, eq=False)
class Datastore:
    """tokens: [N] int32; order: [N] int32, the places in `tokens` sorted by the SORTED tokens from there on."""

    tokens: np.ndarray
    order: np.ndarray

    @classmethod
    def build(cls, tokens: np.ndarray, progress: Callable[[Iterable[int]], Iterable[int]] = iter) -> Datastore:
        """tokens [N] of any integer type; progress: shows how far sorting is.  ValueError where there are
        too few or too many."""
        if not 0 < len(tokens) <= MOST:
            raise ValueError(f"The text has {len(tokens):,} tokens; a datastore holds 1 to {MOST:,}. Give other files.")
        order = rank = np.unique(tokens, return_inverse=True)[1]
        for done in progress([2 ** n for n in range(SORTED.bit_length() - 1)]):
            # Ranks are by the first `done` tokens; those by the next `done` are that far on, 0 past the end.
            key = rank.astype(np.int64) * (len(rank) + 1)
            key[:-done] += rank[done:] + 1
            order = np.argsort(key, kind="stable")
            rank[order] = np.concatenate([[0], np.cumsum(np.diff(key[order]) != 0)])
        return cls(tokens.astype(np.int32), order.astype(np.int32))

    def longest(self, context: Sequence[int], longest: int, shortest: int) -> tuple[int, slice]:
        """(tokens of the context's longest match, its places as a slice of `order`); (0, an empty slice) if none."""
        match, found = 0, slice(0, 0)
        low, high = shortest, min(longest, len(context))
        while low <= high:      # shorter ends of a match match, too
            n = (low + high) // 2
            part = self.find(context[-n:])
            if part.start < part.stop:
                match, found, low = n, part, n + 1
            else:
                high = n - 1
        return match, found

    def find(self, string: Sequence[int]) -> slice:
        """Where it occurs, as a slice of `order`."""
        n, wanted = len(string), list(string)

        def there(place: int) -> list[int]:
            return self.tokens[place:place + n].tolist()

        first = bisect_left(self.order, wanted, key=there)
        if first == len(self.order) or there(self.order[first]) != wanted:
            return slice(first, first)
        return slice(first, bisect_right(self.order, wanted, lo=first, key=there))

    def save(self, path: Path, identity: Mapping[str, str]) -> None:
        """One safetensors file, written whole or not at all; `identity` names the tokenizer of the ids."""
        from safetensors.numpy import save_file

        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.partial")
        save_file({"tokens": self.tokens, "order": self.order}, part,
                  {"version": VERSION, "identity": json.dumps(dict(identity))})
        part.replace(path)

    @classmethod
    def load(cls, path: Path, identity: Mapping[str, str]) -> Datastore:
        """Mapped; ValueError where the file is damaged, or holds another tokenizer's ids."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                meta = dict(file.metadata() or {})
                found = {**json.loads(meta["identity"]), "version": meta["version"]}
                tokens, order = (file.get_tensor(name).numpy() for name in ("tokens", "order"))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise _unfit(path, f"cannot be read: {reason(error)}") from error
        for key, needed in {**identity, "version": VERSION}.items():
            if found.get(key) != needed:
                raise _unfit(path, f"belongs to {key} {found.get(key)!r}, and {needed!r} is loaded")
        if tokens.ndim != 1 or tokens.shape != order.shape or {tokens.dtype, order.dtype} != {np.dtype(np.int32)}:
            raise _unfit(path, f"holds tokens {tokens.dtype} {tokens.shape} and order {order.dtype} {order.shape}; "
                               "two of (N,) int32 are needed")
        return cls(tokens, order)


def _unfit(path: Path, why: str) -> ValueError:
    return ValueError(f"Datastore {path} {why}. Make it again for this model: `longgraft datastore build FILES --out "
                      f"{path.name}`.")

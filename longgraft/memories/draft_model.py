"""A smaller model of the target's tokenizer, with a cache of its own: fed what is committed, asked what comes next.

Knows a model and its cache; knows no target and no way to draft.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation, Wants
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.runtime.devices import sent
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.model import Segment, Target
from longgraft.target_model.static_pass import FixedPass
from longgraft.trees.padded import SIZES, PaddedTree, size_of
from longgraft.trees.tree import ProposalTree

SCRATCH = 64            # rows behind the committed ones, where nobody asked for more
MOST_WAITING = 256      # committed tokens that may wait until something is asked


class SmallModel(Memory):
    """The committed tokens in a smaller model's cache, and a scratch chain behind them.

    Fed lazily: what decoding steps observe waits until `extend` is called, in whose pass it is read.  So the last
    drafted token, which the model has not read when all of a draft was accepted, needs no care.  A prompt's chunks are
    fed at once: reading them is part of the prefill.

    vocab: of the target, whose ids are understood and answered, where the two models pad their vocabularies differently
    """

    name = "small model"

    def __init__(self, model: Target, vocab: int, clock: Clock | None = None, regions: Regions = EAGER) -> None:
        self.model, self.vocab, self.clock, self.regions = model, vocab, clock or Clock(), regions
        self.positions = model.max_positions
        self.cache: KVCache = model.cache(0)
        self._room = SCRATCH
        self._waiting: tuple[Tensor, ...] = ()
        self._chain = 0

    @property
    def waiting(self) -> int:
        """Committed tokens that are not in the cache yet."""
        return sum(map(len, self._waiting))

    @property
    def chain(self) -> int:
        """Tokens of the scratch chain."""
        return self._chain

    @property
    def aligned(self) -> KVCache:
        return self.cache

    @property
    def identity(self) -> dict[str, str]:
        return self.model.identity

    def room(self, rows: int) -> None:
        """Somebody's scratch chains have up to this many tokens."""
        self._room = max(self._room, rows)

    def begin(self) -> None:
        """Forget the scratch chain."""
        self.back(0)

    def back(self, tokens: int) -> None:
        """Forget the scratch chain but for its first `tokens`."""
        assert 0 <= tokens <= self._chain, f"a chain of {self._chain} has no first {tokens}"
        self.cache.crop(self.cache.length - self._chain + tokens)
        self._chain = tokens

    def extend(self, tokens: Tensor) -> Tensor:
        """tokens [n] int64 -> logits [V] after the last of them: read behind the committed tokens and the chain so far,
        and part of the chain until `begin` or `back`."""
        with self.clock.part("draft"):
            if self._waiting:
                assert self._chain == 0, "what was committed stands before the scratch chain: begin first"
            device = self.model.device
            logits = self._read(torch.cat([sent(part, device) for part in (*self._waiting, tokens)]), last=True)
            self._waiting, self._chain = (), self._chain + len(tokens)
            return self._as_target(logits)

    def _read(self, tokens: Tensor, last: bool) -> Tensor:
        """tokens [n], behind all that is in the cache -> logits [1, V'] after the last, [0, V'] unless asked for."""
        n = len(tokens)
        self.clock.ran("draft")
        known = tokens.clamp(max=self.model.vocab_size - 1)     # a draft may misread what it has no word for
        # Before there is a cache, there is nothing to record on.
        if self.regions.fixed and self.cache.length and n <= SIZES[-1]:
            logits = self._fixed(known)
        else:
            segment = Segment(ProposalTree.chain(known.cpu()), self.cache, "last" if last else "none")
            logits = self.model.run([segment], Wants())[0].logits
        self.cache.length += n
        return logits

    @torch.inference_mode()
    def _fixed(self, tokens: Tensor) -> Tensor:
        """tokens [n] on the device, which the host never reads -> logits [1, V'] after the last."""
        n, rows = len(tokens), size_of(len(tokens))
        key = self.cache, self.cache.age, rows
        fixed = self.regions.kept(key, lambda: FixedPass(self.model, self.cache, rows, Wants(), self.regions))
        chain = self.regions.kept((*key, n), lambda: PaddedTree.of(
            ProposalTree.chain(torch.zeros(n, dtype=torch.int64)), rows, self.model.device))
        fixed.load(replace(chain, tokens=F.pad(tokens, (0, rows - n))))
        return fixed.forward()[0].logits[n - 1:n].clone()

    def _as_target(self, logits: Tensor) -> Tensor:
        """[1, V'] -> [V] float32: what the target does not have is left out, what only it has is never said."""
        own = logits[0].float()[:self.vocab]
        return F.pad(own, (0, self.vocab - len(own)), value=float("-inf"))

    def _feed(self) -> None:
        if self._waiting:
            with self.clock.part("draft"):
                self._read(sent(torch.cat(self._waiting), self.model.device), last=False)
                self._waiting = ()

    def reset(self, capacity: int) -> None:
        self.cache.clear()
        self.cache.reserve(capacity + self._room)
        self._waiting, self._chain = (), 0

    def observe(self, seen: Observation) -> None:
        self.begin()
        self._waiting += (seen.kept,)
        if seen.prompt or self.waiting > MOST_WAITING:
            self._feed()

    def mark(self) -> Any:
        return self.cache.length - self._chain, self._waiting

    def rewind(self, mark: Any) -> None:
        length, self._waiting = mark
        self.cache.crop(length)
        self._chain = 0

    def state(self) -> Any:
        self.begin()
        self._feed()
        return self.cache.state()

    def restore(self, state: Any) -> None:
        self._waiting, self._chain = (), 0
        self.cache.restore(state)

    def release(self) -> None:
        self.cache.release()
        self._waiting, self._chain = (), 0

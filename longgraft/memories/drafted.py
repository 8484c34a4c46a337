"""What a drafter network remembers of the committed tokens: its own keys and values, and its newest state.

Knows the network and its cache; knows no tree of guesses and no policy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from longgraft.attention.backends import BACKENDS, choose
from longgraft.attention.layout import Layout
from longgraft.clock import Clock
from longgraft.kernels.few_rows import FewRows
from longgraft.kv import KVCache
from longgraft.observation import Observation, Wants
from longgraft.proposer import Memory
from longgraft.yarn_drafters.network import Eagle3Network

JUDGED = 64             # fed tokens of which it is known whether the network had foretold them
MOST_WAITING = 256      # observed tokens that may wait, with their features, until they are needed


class DrafterMemory(Memory):
    """The pairs of an EAGLE-3 drafter: slot t pairs feature t with token t + 1 at position t, so the root's pair is
    the last one observed.

    Fed lazily: what decoding steps observe waits until `newest` is asked for, so that a step which proposes nothing
    costs no draft forward.  A prompt's chunks are fed at once: their features would be large.

    window: tokens of its own past that each slot sees, itself included; None: the network's own choice.  Rotary
    embeddings only know differences, so a window needs no other positions: none above it is ever met.
    """

    name = "drafter"

    def __init__(self, network: Eagle3Network, window: int | None = None, clock: Clock | None = None,
                 kernels: FewRows | None = None) -> None:
        self.network, self.clock = network, clock or Clock()
        self.window = window or network.config.window
        self.wants = Wants(layers=tuple(sorted(set(network.config.feature_layers))))
        self.positions = None if self.window else network.config.max_positions
        weight = network.fc.weight
        self.device = weight.device
        # Both leave to torch what they are not made for: many rows, another device or dtype.
        self.product = kernels.product if kernels else linear
        self._backend = kernels.attention if kernels else BACKENDS[choose("auto", weight.device, weight.dtype)]
        self.cache = KVCache(network.config.layers, 0)
        self._scratch = 0
        self._newest: Tensor | None = None
        self._waiting: tuple[tuple[Tensor, Tensor], ...] = ()
        self._fed: tuple[tuple[Tensor, Tensor], ...] = ()      # states [n, H] and tokens [n] of the last feedings

    @property
    def waiting(self) -> int:
        """Observed tokens that are not in the cache yet."""
        return sum(len(tokens) for _, tokens in self._waiting)

    def room(self, rows: int) -> None:
        """A drafter needs this many scratch rows behind the committed ones."""
        self._scratch = max(self._scratch, rows)

    def reset(self, capacity: int) -> None:
        self.cache.clear()
        self.cache.reserve(capacity + self._scratch)
        self._newest, self._waiting, self._fed = None, (), ()

    def observe(self, seen: Observation) -> None:
        """The kept tokens' pairs with the target's own features; a drafter's own guesses were never kept."""
        self._waiting += ((seen.features(self.network.config.feature_layers), seen.following),)
        if seen.prompt or self.waiting > MOST_WAITING:
            self._feed()

    def newest(self) -> Tensor:
        """[1, 1, H]: the state of the newest pair, from which drafting starts."""
        self._feed()
        assert self._newest is not None, "the drafter has observed nothing"
        return self._newest

    @torch.inference_mode()
    def _feed(self) -> None:
        if not self._waiting:
            return
        with self.clock.part("draft"):
            hidden, tokens = self._fused()
            n = len(tokens)
            layout = Layout(self.cache.length, torch.arange(n), None, self.device)
            states = self.forward(hidden, tokens.to(self.device), self.cache.length + torch.arange(n), layout)
            self.cache.length += n
            # A copy: a view would hold a prompt chunk's states.
            self._newest = states[:, -1:].clone()
            self._fed += ((states[0, -JUDGED:].clone(), tokens[-JUDGED:]),)
            while sum(len(tokens) for _, tokens in self._fed[1:]) >= JUDGED:
                self._fed = self._fed[1:]

    def _fused(self) -> tuple[Tensor, Tensor]:
        """What waited, hidden [1, n, H] and tokens [n]; its features, several times as wide, are gone before the
        forward."""
        features, tokens = (torch.cat(column) for column in zip(*self._waiting, strict=True))
        self._waiting = ()
        return self.network.fuse(features[None].to(self.device, self.network.fc.weight.dtype)), tokens

    @torch.no_grad()
    def foretold(self) -> tuple[int, int]:
        """(tokens whose best guess came true, tokens) of the newest fed ones, each guessed from the target's own
        features: what the network would be worth here, known without a draft."""
        states, tokens = (torch.cat(column) for column in zip(*self._fed, strict=True))
        best = self.network.target_ids(self.network.logits(states[:-1]).argmax(-1))
        return int((best == tokens[1:].to(best.device)).sum()), len(best)

    def forward(self, hidden: Tensor, tokens: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """hidden [1, n, H], tokens [n], positions [n] -> states [1, n, H]; keys and values are written behind the
        cache's length."""
        scale = self.network.config.head_dim ** -0.5

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.cache.update(k, v, layer)
            return self._backend(q, keys, values, layout, scale, self.window)

        return self.network(hidden, tokens[None], positions[None].to(self.device), attend, self.product)

    def mark(self) -> Any:
        return self.cache.length, self._newest, self._waiting, self._fed

    def rewind(self, mark: Any) -> None:
        length, self._newest, self._waiting, self._fed = mark
        self.cache.crop(length)

    def state(self) -> Any:
        self._feed()
        return self.cache.state(), self._newest, self._fed

    def restore(self, state: Any) -> None:
        rows, self._newest, self._fed = state
        self._waiting = ()
        self.cache.restore(rows)

    def release(self) -> None:
        self.cache.release()
        self._newest, self._waiting, self._fed = None, (), ()

"""One prompt, prefilled once; every method decodes from that state, timed on decoding alone.

Knows targets, methods and clocks; knows no suite, no file and no table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from longgraft.acceptance import Greedy
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.methods import Parts, build, find
from longgraft.observation import Clock, Observation, Proposer, PruningPolicy
from longgraft.prefill.chunked import prefill
from longgraft.retrievers.matrix import MatrixRetriever
from longgraft.session import Sampling, Stats, decode, peak_memory
from longgraft.target import Target
from longgraft.templates import envelope
from longgraft.tree import ROOT, ProposalTree
from longgraft.verifier import Verifier

PLAIN = "ar"                    # our plain decoding, which every method is paired with
TRANSFORMERS = "transformers"   # the other baseline: transformers' own generate


@dataclass(frozen=True)
class Variant:
    """A method with one of the heads, written `method` or `method@head`; `transformers` is no method of ours."""

    name: str
    method: str
    head: str = ""

    @classmethod
    def parse(cls, name: str) -> Variant:
        bare, _, head = name.partition("@")
        if bare != TRANSFORMERS:
            find(bare)
        return cls(name, bare, head)

    def budget(self, wanted: int | None) -> int:
        """Nodes per verification: the wanted, the method's own, or fewer for chains that are short by nature."""
        own = find(self.method).budget
        return own if wanted is None or own == 1 else wanted


class _Seen(Eagle3Drafter):
    """A drafter whose shared cache holds the prompt's pairs, but for the last, already."""

    origin: Eagle3Drafter
    length: int

    def reset(self, capacity: int) -> None:
        self.cache, self.state = self.origin.cache, None
        self.cache.crop(self.length)

    def observe(self, seen: Observation) -> None:
        if seen.features is not None:
            super().observe(seen)


@dataclass
class _Known(Parts):
    """Parts that have seen the prompt.  drafters: by window; rows: the matrix after the prompt, None before it."""

    drafters: dict[int | None, Eagle3Drafter] = field(default_factory=dict)
    rows: torch.Tensor | None = None
    length: int = 0

    def drafter(self, policy: PruningPolicy, window: int | None = None) -> Eagle3Drafter:
        made = super().drafter(policy, window)
        if self.rows is None:       # before the prompt: this one will see it for all of its kind
            return self.drafters.setdefault(made.window, made)
        seen = _Seen(made.network, policy, made.levels, made.top_k, made.clock, made.window)
        seen.origin, seen.length = self.drafters[made.window], self.length
        return seen

    def retriever(self, shape: Any = envelope) -> MatrixRetriever:
        made = super().retriever(shape)
        if self.rows is not None:
            made.snapshot, made.persist = self.rows, False
        return made


class Prefilled:
    """A prompt that target, drafters and matrix have seen once; `decode` starts there as often as one likes.

    heads: name -> the parts of methods that use this head; "" is the default one.
    """

    def __init__(self, target: Target, heads: Mapping[str, Parts], variants: Sequence[Variant], ids: Sequence[int],
                 room: int, chunk: int | None = None) -> None:
        self.target, self.ids = target, list(ids)
        self.capacity = len(ids) + room
        self.parts = {name: _Known(**vars(parts)) for name, parts in heads.items()}
        ours = [variant for variant in variants if variant.method != TRANSFORMERS]
        for variant in ours:
            build(variant.method, self._of(variant))        # registers the drafters that must see the prompt
        observers: list[Proposer] = [d for parts in self.parts.values() for d in parts.drafters.values()]
        retriever = next(iter(self.parts.values())).retriever()
        if any(find(variant.method).needs_matrix for variant in ours):
            observers.append(retriever)
        for observer in observers:
            observer.reset(self.capacity)
        self.cache = target.cache(self.capacity)
        clock = self._new_clock()
        with clock.part("host"):
            prefill(target, self.cache, torch.tensor(self.ids), observers, Greedy(), clock, chunk, progress=False)
        self.seconds = sum(clock.seconds.values())
        rows = retriever.matrix.snapshot()
        for parts in self.parts.values():
            parts.rows, parts.length = rows, len(ids) - 1

    def decode(self, variant: Variant, sampling: Sampling, limit: int, budget: int | None = None,
               eos: Sequence[int] = ()) -> tuple[list[int], Stats]:
        """(new tokens, what they cost).  The last prompt token is fed again, untimed: the pair that a drafter holds
        for it depends on the drawn root."""
        stats = Stats(prompt_tokens=len(self.ids), prefill_seconds=self.seconds)
        if variant.method == TRANSFORMERS:
            return self._transformers(limit, stats), stats
        parts, rule = self._of(variant), sampling.rule(len(self.ids))
        parts.clock = clock = self._new_clock()
        made, nodes = build(variant.method, parts), variant.budget(budget)
        self.cache.crop(len(self.ids) - 1)
        made.reset(self.capacity)
        if len(self.ids) > 1:
            known = torch.tensor(self.ids[:-1])
            made.observe(Observation(ProposalTree.chain(known, origin=ROOT), torch.arange(len(known)), self.ids[-1],
                                     None, None, prompt=True))
        root = prefill(self.target, self.cache, torch.tensor(self.ids[-1:]), [made], rule, clock, progress=False)
        clock.seconds.clear()
        verifier = Verifier(self.target, self.cache, rule, clock)
        with clock.part("host"):
            tokens = [t for step in decode(verifier, made, root, limit, nodes, stats, eos) for t in step]
        stats.decode_seconds, stats.seconds_by_part = sum(clock.seconds.values()), dict(clock.seconds)
        stats.peak_memory_bytes = peak_memory(self.target.device)
        return tokens, stats

    def _of(self, variant: Variant) -> _Known:
        if variant.head not in self.parts:
            known = ", ".join(name for name in self.parts if name) or "none"
            raise ValueError(f"{variant.name} names the head {variant.head!r}, which was not given. Given: {known}. "
                             "Add --head NAME=PATH.")
        return self.parts[variant.head]

    def _new_clock(self) -> Clock:
        clock = Clock()
        if self.target.device.type == "cuda":
            clock.wait = torch.cuda.synchronize
        return clock

    def _transformers(self, limit: int, stats: Stats) -> list[int]:
        """Greedy decoding by the model's own `generate` from a copy of the cache: `limit` tokens whatever they are."""
        from transformers import DynamicCache

        cache, n = DynamicCache(), len(self.ids) - 1
        for index, layer in enumerate(self.cache.rows):
            cache.update(layer.keys[:, :, :n].clone(), layer.values[:, :, :n].clone(), index)
        ids = torch.tensor([self.ids], device=self.target.device)
        clock = self._new_clock()
        with torch.no_grad(), clock.part("host"):
            out: Any = self.target.model.generate(
                ids, attention_mask=torch.ones_like(ids), past_key_values=cache, do_sample=False,
                max_new_tokens=limit, min_new_tokens=limit, pad_token_id=0, use_cache=True)
        tokens = out[0, len(self.ids):].tolist()
        # The pass over the last prompt token is inside; ours is not: it counts as one more token.
        stats.new_tokens, stats.accepted_per_step = len(tokens) + 1, [0] * len(tokens)
        stats.decode_seconds, stats.seconds_by_part = sum(clock.seconds.values()), dict(clock.seconds)
        return tokens



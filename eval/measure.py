"""One prompt, prefilled once; every method decodes from that state, timed on decoding alone.

Knows targets, methods and clocks; knows no suite, no file and no table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from longgraft.acceptance import Greedy
from longgraft.calibration import Calibration
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


# Of one method, `method+name=value`: nodes per verification; bounds of the retrieved tree; levels and width of the
# drafted one; calibrations, by the name they were given under, for the thresholds or the matrix's first rows.
NUMBERS, NAMES = ("budget", "depth", "width", "levels", "top_k"), ("thresholds", "warm")


@dataclass(frozen=True)
class Variant:
    """A method with one of the heads and settings of its own: `method[@head][+setting=value ...]`.

    `transformers` is no method of ours.
    """

    name: str
    method: str
    head: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict, hash=False)
    calibrations: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, name: str) -> Variant:
        """ValueError names what is unknown."""
        who, *settings = name.split("+")
        bare, _, head = who.partition("@")
        if bare != TRANSFORMERS:
            find(bare)
        numbers, names = {}, {}
        for setting in settings:
            key, _, value = setting.partition("=")
            if key in NUMBERS and value.isdigit() and int(value) > 0:
                numbers[key] = int(value)
            elif key in NAMES and value:
                names[key] = value
            else:
                raise ValueError(f"{setting!r} in {name!r} is no setting. Known: "
                                 f"{', '.join(f'{key}=NUMBER' for key in NUMBERS)}, "
                                 f"{', '.join(f'{key}=NAME' for key in NAMES)}.")
        return cls(name, bare, head, numbers, names)

    def budget(self, wanted: int | None) -> int:
        """Nodes per verification: its setting, the wanted, the method's own, or one where nothing is proposed."""
        own = find(self.method).budget
        return own if own == 1 else self.numbers.get("budget", own if wanted is None else wanted)


@dataclass(frozen=True)
class Stock:
    """What variants are made of: the parts of each head (\"\": the default one's), calibrations by name."""

    heads: Mapping[str, Parts]
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)

    def parts(self, variant: Variant) -> Parts:
        """This variant's; ValueError where a head or calibration was not given."""
        parts = self._find(variant, variant.head, self.heads, "head", "head")
        taken = {key: self._find(variant, name, self.calibrations, "calibration", "calibrated")
                 for key, name in variant.calibrations.items()}
        changes: dict[str, Any] = {key: value for key, value in variant.numbers.items() if key != "budget"}
        if "thresholds" in taken:
            changes["thresholds"], changes["split"] = taken["thresholds"].thresholds, taken["thresholds"].split
        if "warm" in taken:
            changes["snapshot"] = taken["warm"].snapshot
        return replace(parts, **changes)

    @staticmethod
    def _find(variant: Variant, name: str, given: Mapping[str, Any], what: str, option: str) -> Any:
        if name not in given:
            known = ", ".join(key for key in given if key) or "none"
            raise ValueError(f"{variant.name} names the {what} {name!r}, which was not given. Given: {known}. "
                             f"Add --{option} NAME=PATH.")
        return given[name]


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
class _Prompt:
    """What the proposers of all variants have seen of the prompt, each kind once.

    drafters: by (network, window); retrievers: by the rows that they started from; rows: those after the prompt
    """

    length: int
    drafters: dict[tuple, Eagle3Drafter] = field(default_factory=dict)
    retrievers: dict[int, MatrixRetriever] = field(default_factory=dict)
    rows: dict[int, torch.Tensor] = field(default_factory=dict)
    over: bool = False


@dataclass
class _Known(Parts):
    """Parts whose proposers share what was seen of the prompt."""

    prompt: _Prompt = field(default_factory=lambda: _Prompt(0))

    def drafter(self, policy: PruningPolicy, window: int | None = None) -> Eagle3Drafter:
        made = super().drafter(policy, window)
        kind = id(made.network), made.window
        if not self.prompt.over:        # this one will see the prompt for all of its kind
            return self.prompt.drafters.setdefault(kind, made)
        seen = _Seen(made.network, policy, made.levels, made.top_k, made.clock, made.window)
        seen.origin, seen.length = self.prompt.drafters[kind], self.prompt.length
        return seen

    def retriever(self, shape: Any = envelope) -> MatrixRetriever:
        made = super().retriever(shape)
        kind = id(self.snapshot)
        if not self.prompt.over:
            return self.prompt.retrievers.setdefault(kind, made)
        made.snapshot, made.persist = self.prompt.rows[kind], False
        return made


class Prefilled:
    """A prompt that target, drafters and matrix have seen once; `decode` starts there as often as one likes."""

    def __init__(self, target: Target, stock: Stock, variants: Sequence[Variant], ids: Sequence[int], room: int,
                 chunk: int | None = None) -> None:
        self.target, self.ids = target, list(ids)
        self.capacity = len(ids) + room
        self._stock, self._prompt = stock, _Prompt(len(ids) - 1)
        for variant in variants:
            if variant.method != TRANSFORMERS:
                build(variant.method, self._parts(variant))     # registers what must see the prompt
        retrievers = self._prompt.retrievers
        observers: list[Proposer] = [*self._prompt.drafters.values(), *retrievers.values()]
        for observer in observers:
            observer.reset(self.capacity)
        self.cache = target.cache(self.capacity)
        clock = self._new_clock()
        with clock.part("host"):
            prefill(target, self.cache, torch.tensor(self.ids), observers, Greedy(), clock, chunk, progress=False)
        self.seconds = sum(clock.seconds.values())
        self._prompt.rows = {kind: retriever.matrix.snapshot() for kind, retriever in retrievers.items()}
        self._prompt.over = True

    def decode(self, variant: Variant, sampling: Sampling, limit: int, budget: int | None = None,
               eos: Sequence[int] = ()) -> tuple[list[int], Stats]:
        """(new tokens, what they cost).  The last prompt token is fed again, untimed: the pair that a drafter holds
        for it depends on the drawn root."""
        stats = Stats(prompt_tokens=len(self.ids), prefill_seconds=self.seconds)
        if variant.method == TRANSFORMERS:
            return self._transformers(limit, stats), stats
        if self.target.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.target.device)
        parts, rule = self._parts(variant), sampling.rule(len(self.ids))
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

    def _parts(self, variant: Variant) -> _Known:
        return _Known(**vars(self._stock.parts(variant)), prompt=self._prompt)

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



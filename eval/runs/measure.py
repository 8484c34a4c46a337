"""One prompt, prefilled once; every method decodes from that state, timed on decoding alone.

Knows targets, methods and clocks; knows no suite, no file and no table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from longgraft.acceptance import Greedy
from longgraft.calibration import Calibration
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.methods import Parts, build, find
from longgraft.observation import Clock, Observation, Proposer, PruningPolicy, Wants
from longgraft.prefill.chunked import prefill
from longgraft.retrievers.matrix import MatrixRetriever
from longgraft.session import Sampling, Stats, decode, peak_memory
from longgraft.target.model import Target
from longgraft.templates import envelope
from longgraft.tree import ROOT, ProposalTree
from longgraft.verifier import Verifier

COLD = "none"                   # for +warm: an empty matrix
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
        needs = None if bare == TRANSFORMERS else find(bare)
        idle = {key for key, used in (("budget", needs and needs.budget > 1),
                                      *((key, needs and needs.needs_matrix) for key in ("depth", "width", "warm")),
                                      *((key, needs and needs.needs_drafter) for key in ("levels", "top_k",
                                                                                         "thresholds"))) if not used}
        numbers, names = {}, {}
        for setting in settings:
            key, _, value = setting.partition("=")
            if key in idle:
                raise ValueError(f"{name!r}: {bare} has nothing that {key} could set.")
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
                 for key, name in variant.calibrations.items() if name != COLD}
        changes: dict[str, Any] = {key: value for key, value in variant.numbers.items() if key != "budget"}
        if "thresholds" in taken:
            changes["thresholds"], changes["split"] = taken["thresholds"].thresholds, taken["thresholds"].split
        if "warm" in taken:
            changes["snapshot"] = taken["warm"].snapshot
        elif "warm" in variant.calibrations:
            changes["snapshot"] = None
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


class _Watched:
    """A proposer that sees the prompt, and how long that takes."""

    def __init__(self, inner: Proposer, clock: Clock) -> None:
        self.inner, self.wants, self._clock = inner, inner.wants, clock
        self.seconds = 0.0

    def reset(self, capacity: int) -> None:
        self.inner.reset(capacity)

    def propose(self, root: int, budget: int) -> ProposalTree:
        return self.inner.propose(root, budget)

    def observe(self, seen: Observation) -> None:
        began = self._clock.now()
        self.inner.observe(seen)
        self.seconds += self._clock.now() - began


@dataclass
class _Prompt:
    """What the proposers of all variants have seen of the prompt, each kind once.

    drafters: by (network, window); retrievers: by the rows that they started from; rows: those after the prompt;
    seconds: what each kind's seeing took
    """

    length: int
    drafters: dict[tuple, Eagle3Drafter] = field(default_factory=dict)
    retrievers: dict[int, MatrixRetriever] = field(default_factory=dict)
    rows: dict[int, torch.Tensor] = field(default_factory=dict)
    seconds: dict[Any, float] = field(default_factory=dict)
    over: bool = False


@dataclass
class _Known(Parts):
    """Parts whose proposers share what was seen of the prompt.  kinds: those that were asked for."""

    prompt: _Prompt = field(default_factory=lambda: _Prompt(0))
    kinds: set[Any] = field(default_factory=set)

    def drafter(self, policy: PruningPolicy, window: int | None = None) -> Eagle3Drafter:
        made = super().drafter(policy, window)
        kind = id(made.network), made.window
        self.kinds.add(kind)
        if not self.prompt.over:        # this one will see the prompt for all of its kind: it needs the widest's room
            widest = self.prompt.drafters.setdefault(kind, made)
            if widest.levels * widest.top_k < made.levels * made.top_k:
                self.prompt.drafters[kind] = made
            return made
        seen = _Seen(made.network, policy, made.levels, made.top_k, made.clock, made.window)
        seen.origin, seen.length = self.prompt.drafters[kind], self.prompt.length
        return seen

    def retriever(self, shape: Any = envelope) -> MatrixRetriever:
        made = super().retriever(shape)
        kind = id(self.snapshot)
        self.kinds.add(kind)
        if not self.prompt.over:
            return self.prompt.retrievers.setdefault(kind, made)
        made.snapshot, made.persist = self.prompt.rows[kind], False
        return made


class Prefilled:
    """A prompt that target, drafters and matrix have seen once; `decode` starts there as often as one likes."""

    def __init__(self, target: Target, stock: Stock, variants: Sequence[Variant], ids: Sequence[int], limit: int,
                 budget: int | None = None, profile: bool = False) -> None:
        """limit: tokens that may follow; budget: nodes per verification (None: each method's own); profile: `Clock`'s.
        """
        self.target, self.ids, self._budget, self._profile = target, list(ids), budget, profile
        budgets = [variant.budget(budget) for variant in variants if variant.method != TRANSFORMERS]
        self.capacity = len(ids) + limit + max(budgets, default=1)
        self._stock, self._prompt = stock, _Prompt(len(ids) - 1)
        for variant in variants:
            if variant.method != TRANSFORMERS:
                build(variant.method, self._parts(variant))     # registers what must see the prompt
        clock = self._new_clock()
        seeing: dict[Any, Proposer] = {**self._prompt.drafters, **self._prompt.retrievers}
        watched = {kind: _Watched(inner, clock) for kind, inner in seeing.items()}
        for observer in watched.values():
            observer.reset(self.capacity)
        self.cache = target.cache(self.capacity)
        began = clock.now()
        prefill(target, self.cache, torch.tensor(self.ids), list(watched.values()), Greedy(), clock, progress=False)
        self.seconds = clock.now() - began      # of the target and of all that watched
        self._prompt.seconds = {kind: observer.seconds for kind, observer in watched.items()}
        self._prompt.rows = {kind: made.matrix.snapshot() for kind, made in self._prompt.retrievers.items()}
        self._prompt.over = True

    def decode(self, variant: Variant, sampling: Sampling, limit: int,
               eos: Sequence[int] = ()) -> tuple[list[int], Stats]:
        """(new tokens, what they cost).  The last prompt token is fed again, untimed: the pair that a drafter holds
        for it depends on the drawn root.  prefill_seconds: the target's and those of this variant's own proposers."""
        alone = self.seconds - sum(self._prompt.seconds.values())
        stats = Stats(prompt_tokens=len(self.ids), prefill_seconds=alone)
        if variant.method == TRANSFORMERS:
            return self._transformers(limit, stats, eos), stats
        if self.target.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.target.device)
        parts, rule = self._parts(variant), sampling.rule(len(self.ids))
        parts.clock = clock = self._new_clock()
        made, nodes = build(variant.method, parts), variant.budget(self._budget)
        stats.prefill_seconds += sum(self._prompt.seconds[kind] for kind in parts.kinds)
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

    def margin(self, tokens: Sequence[int]) -> tuple[float, float]:
        """(difference of the target's two largest logits, the larger) after the prompt and these tokens."""
        self.cache.crop(len(self.ids) - 1)
        chain = ProposalTree.chain(torch.tensor([self.ids[-1], *tokens]))
        best = self.target.run(chain, self.cache, Wants(), rows="last").logits[0].float().topk(2).values
        return float(best[0] - best[1]), float(best[0])

    def _parts(self, variant: Variant) -> _Known:
        return _Known(**vars(self._stock.parts(variant)), prompt=self._prompt)

    def _new_clock(self) -> Clock:
        clock = Clock(profile=self._profile)
        if self.target.device.type == "cuda":
            clock.wait = partial(torch.cuda.synchronize, self.target.device)
        return clock

    def _transformers(self, limit: int, stats: Stats, eos: Sequence[int]) -> list[int]:
        """Greedy decoding by the model's own `generate` from a copy of the cache.

        `limit` tokens are timed, whatever they are; what follows an end token is left out of those returned.  The
        model's own settings (a repetition penalty, say) are set aside: they would decode something else.
        """
        from transformers import DynamicCache, GenerationConfig

        cache, n = DynamicCache(), len(self.ids) - 1
        for index, layer in enumerate(self.cache.rows):
            cache.update(layer.keys[:, :, :n].clone(), layer.values[:, :, :n].clone(), index)
        ids = torch.tensor([self.ids], device=self.target.device)
        clock, model = self._new_clock(), self.target.model
        own = model.generation_config
        model.generation_config = GenerationConfig(do_sample=False, max_new_tokens=limit, pad_token_id=0,
                                                   use_cache=True)
        try:
            with torch.no_grad(), clock.part("host"):
                out: Any = model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache)
        finally:
            model.generation_config = own
        tokens = out[0, len(self.ids):].tolist()
        # The pass over the last prompt token is inside; ours is not: it counts as one more token.
        stats.new_tokens, stats.accepted_per_step = len(tokens) + 1, [0] * len(tokens)
        stats.decode_seconds, stats.seconds_by_part = sum(clock.seconds.values()), dict(clock.seconds)
        ends = [index for index, token in enumerate(tokens) if token in set(eos)]
        return tokens[:ends[0] + 1] if ends else tokens

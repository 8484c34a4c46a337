"""Reads one prompt once; every method decodes from that state, and only decoding is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any

import torch

from longgraft.acceptance.rules import Greedy
from longgraft.acceptance.sampling import Sampling
from longgraft.config.settings import Budget
from longgraft.engine.decoder import Decoder, Goal
from longgraft.engine.request import Request
from longgraft.engine.stats import Stats
from longgraft.eval.checks.losslessness import margin
from longgraft.eval.runs.variants import COLD, TRANSFORMERS, Variant
from longgraft.methods.calibration import Calibration
from longgraft.methods.find import build, verifies
from longgraft.methods.parts import Parts
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Proposer, memories_of
from longgraft.runtime.byte_rows import numbers_of
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.runtime.device_memory import peak_memory, reset_peak_memory
from longgraft.target_model.model import Target
from longgraft.target_model.verifier import Verifier
from longgraft.trees.padded import SIZES


@dataclass(frozen=True)
class Stock:
    """The parts that variants are made of: those of each head ("": the default head), and calibrations by name.

    budget: nodes per verification; None: each method's own.  profile: as in `Clock`
    """

    heads: Mapping[str, Parts]
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)
    budget: Budget = None
    profile: bool = False

    @property
    def target(self) -> Target:
        """The target, which all heads share."""
        return self.heads[""].target

    @property
    def regions(self) -> Regions:
        """The recorder of the steps' regions, the same for all heads."""
        return next((parts.regions for parts in self.heads.values()), EAGER)

    def parts(self, variant: Variant) -> Parts:
        """Returns a variant's parts; raises ValueError if a head or calibration was not given."""
        parts = self._find(variant, variant.head, self.heads, "head", "head")
        taken = {key: self._find(variant, name, self.calibrations, "calibration", "calibrated")
                 for key, name in variant.calibrations.items() if name != COLD}
        numbers = {key: value for key, value in variant.numbers.items() if key != "budget"}
        calibration, none = parts.calibration, Calibration()        # what COLD stands for
        if "thresholds" in variant.calibrations:
            made = taken.get("thresholds", none)
            calibration = replace(calibration, thresholds=made.thresholds, split=made.split)
        if "warm" in variant.calibrations:
            calibration = replace(calibration, snapshot=taken.get("warm", none).snapshot)
        return replace(parts, shape=replace(parts.shape, **numbers), calibration=calibration)

    @staticmethod
    def _find(variant: Variant, name: str, given: Mapping[str, Any], what: str, option: str) -> Any:
        if name not in given:
            known = ", ".join(key for key in given if key) or "none"
            raise ValueError(f"{variant.name} names the {what} {name!r}, which was not given. Given: {known}. "
                             f"Add --{option} NAME=PATH.")
        return given[name]


@dataclass
class Learned:
    """State that lasting memories learnt from earlier prompts, by variant and run.

    A run is one pass over all prompts in one mode; it does not know what another one learnt.

    runs: their names, which are the modes' names
    """

    runs: Sequence[str] = ()
    _states: dict[tuple[str, str], tuple[int, list[Any]]] = field(default_factory=dict)

    def prompts(self, variant: str, run: str) -> int:
        """Returns the number of prompts that it has learnt from."""
        return self._states.get((variant, run), (0, []))[0]

    def recall(self, variant: str, run: str, memories: Sequence[Memory]) -> None:
        """Restores what was learnt."""
        _, states = self._states.get((variant, run), (0, []))
        for memory, state in zip(memories, states, strict=bool(states)):
            memory.rewind(state)

    def learn(self, variant: str, run: str, memories: Sequence[Memory], prompts: int) -> None:
        """Keeps what the memories hold after so many prompts."""
        self._states[variant, run] = prompts, [memory.mark() for memory in memories]


@dataclass
class AlreadyRead:
    """Tells a request how many tokens of its prompt target and memories have seen."""

    tokens: int
    first_difference: int | None = None
    cell: int | None = None

    def recall(self) -> int:
        """Returns this number."""
        return self.tokens

    def keep(self, seen: Observation) -> None:
        """Keeps nothing."""


class Prefilled:
    """A prompt that target and memories have seen once; `decode` starts from there any number of times.

    Every memory is fed the prompt, marked, and rewound before each decoding.  Each decoding feeds the last prompt token
    again, because the pair that a drafter holds for it depends on the drawn root.
    """

    def __init__(self, stock: Stock, variants: Sequence[Variant], ids: Sequence[int], limit: int,
                 learned: Learned | None = None) -> None:
        """limit: tokens that may follow; learned: the state from which lasting memories go on."""
        target, budget = stock.target, stock.budget
        self.target, self.ids, self._budget = target, list(ids), budget
        self._clock = Clock(profile=stock.profile)
        if target.device.type == "cuda":
            self._clock.wait = partial(torch.cuda.synchronize, target.device)
        self._regions = stock.regions.anew()
        self._learned = learned or Learned()
        self._verifies: dict[str, Callable[[Verifier], Verifier]] = {}
        self._proposers = self._build(stock, [v for v in variants if v.ours])
        self._before = {key: self._learned.prompts(*key) for key in self._proposers}
        memories = memories_of(self._proposers.values())
        self.capacity = len(ids) + limit + max((v.budget(budget) for v in variants if v.ours), default=1)
        if self._regions.fixed:
            self.capacity += SIZES[-1]      # padded rows
        self.cache = target.cache(self.capacity)
        self._read(memories)
        self._marks = {id(memory): memory.mark() for memory in memories}

    def _build(self, stock: Stock, variants: Sequence[Variant]) -> dict[tuple[str, str], Proposer]:
        """Builds the proposers by variant and run; all share their memories, except that each run has its own lasting
        ones.  Run "" stands for no run."""
        kept: dict[tuple, Memory] = {}
        of_prompt: dict[tuple, Any] = {}    # a prompt knows nothing of the prompts before it
        made = {}
        # Each prompt begins with the costs that were measured at load, because a rewound memory restores them.
        costs = {head: parts.costs and parts.costs.copy() for head, parts in stock.heads.items()}
        for variant in variants:
            parts = replace(stock.parts(variant), clock=self._clock, regions=self._regions, kept=kept, shared=of_prompt,
                            costs=costs[variant.head])
            make = partial(build, variant.method, adaptive=variant.adaptive(self._budget))
            proposer = made[variant.name, ""] = make(parts)
            self._verifies[variant.name] = verifies(variant.method, parts)
            for run in self._learned.runs if any(memory.lasting for memory in proposer.memories) else ():
                shared = {key: memory for key, memory in kept.items() if not memory.lasting}
                own = made[variant.name, run] = make(replace(parts, kept=shared))
                if own is proposer:
                    raise ValueError(f"{variant.name} is one object whose memory lasts, and every run needs one of its "
                                     "own. Give a longgraft.methods.Method whose build makes it.")
        return made

    def _read(self, memories: Sequence[Memory]) -> None:
        for memory in memories:
            memory.reset(self.capacity)
        for (name, run), proposer in self._proposers.items():
            self._learned.recall(name, run, _lasting(proposer))
        self._seconds, self._seeing = 0.0, dict.fromkeys(map(id, memories), 0.0)
        if len(self.ids) < 2:
            return
        verifier = Verifier(self.target, self.cache, Greedy(), self._clock)
        wants = Wants.union(memory.wants for memory in memories)
        for seen in read_prompt(verifier, torch.tensor(self.ids[:-1]), wants, following=self.ids[-1]):
            self._seconds += sum(self._clock.lap().values())
            for memory in memories:
                with self._clock.part("observe"):
                    memory.observe(seen)
                self._seeing[id(memory)] += sum(self._clock.lap().values())
        self.cache.mark()

    @property
    def prefill_seconds(self) -> float:
        """Seconds of the target and of all memories that observed."""
        return self._seconds + sum(self._seeing.values())

    def learned_from(self, variant: Variant, run: str) -> int | None:
        """Returns how many prompts the variant's lasting memories had learnt from before this one; None without any."""
        return self._before.get((variant.name, run)) if run else None

    def decode(self, variant: Variant, sampling: Sampling, limit: int, eos: Sequence[int] = (),
               run: str = "") -> tuple[list[int], Stats]:
        """Returns (new tokens, their statistics).

        prefill_seconds are the target's and those of this variant's own memories.  run: the run whose lasting memories
        are used, and learn, from the same state in every repeat
        """
        if not variant.ours:
            return self._transformers(TRANSFORMERS[variant.method], limit, eos)
        run = run if (variant.name, run) in self._proposers else ""
        proposer, clock, recorded = self._proposers[variant.name, run], self._clock, self._regions.recorded
        reset_peak_memory(self.target.device)
        self.cache.crop(len(self.ids) - 1)
        for memory in proposer.memories:
            memory.rewind(self._marks[id(memory)])
        verifier = self._verifies[variant.name](
            Verifier(self.target, self.cache, sampling.rule(len(self.ids)), clock, self._regions))
        decoder = Decoder(verifier, proposer, variant.budget(self._budget), Goal(limit, frozenset(eos)))
        clock.lap()
        clock.counted()
        request = Request(decoder, self.ids, 1, lambda: None, partial(peak_memory, self.target.device),
                          AlreadyRead(len(self.ids) - 1))
        with clock.part("host"):        # the outermost part alone waits for a GPU
            tokens = [token for step in request for token in step.tokens]
        last = sum(clock.lap().values())
        if self._regions.recorded != recorded:      # recordings were made, whose time is not this answer's cost
            return self.decode(variant, sampling, limit, eos, run)
        if run:     # repeats still start from this prompt's marks
            self._learned.learn(variant.name, run, _lasting(proposer), self._before[variant.name, run] + 1)
        stats = request.stats
        prefill = stats.prefill_seconds + self._seconds + sum(self._seeing[id(memory)] for memory in proposer.memories)
        by_part = {**stats.seconds_by_part, "host": stats.seconds_by_part.get("host", 0.0) + last}
        return tokens, replace(stats, prefill_seconds=prefill, decode_seconds=stats.decode_seconds + last,
                               seconds_by_part=by_part, reused_tokens=0)

    def release(self) -> None:
        """Drops the recordings: they hold memory, and refer to objects that refer to them."""
        self._regions.forget()

    def margin(self, tokens: Sequence[int]) -> tuple[float, float]:
        """Returns (difference of the target's two largest logits, the larger) after the prompt and these tokens."""
        self.cache.crop(len(self.ids) - 1)
        return margin(self.target, self.cache, [self.ids[-1], *tokens])

    def _transformers(self, how: Mapping[str, Any], limit: int, eos: Sequence[int]) -> tuple[list[int], Stats]:
        """Decodes greedily by the model's own `generate` from a copy of the cache; how: its further arguments.

        The model's own settings, such as a repetition penalty, are set aside, because they would decode something else.
        """
        from transformers import DynamicCache, GenerationConfig

        ids, clock, model = torch.tensor([self.ids], device=self.target.device), self._clock, self.target.model
        cache: Any = DynamicCache()
        self.cache.crop(len(self.ids) - 1)
        if self.cache.stateful:     # states are kept in a form of our own: its cache reads the prompt, untimed
            with torch.no_grad():
                cache = getattr(model.get_decoder()(ids[:, :-1], use_cache=True), self.target.cache_name)
        else:
            for index, rows in enumerate(self.cache.state().rows):
                if rows is not None:
                    cache.update(*(numbers_of(part, self.target.dtype) for part in rows), index)
        own, prepare, steps = model.generation_config, model.prepare_inputs_for_generation, _Steps()
        model.generation_config = GenerationConfig(do_sample=False, max_new_tokens=limit, pad_token_id=0,
                                                   eos_token_id=list(eos) or None, use_cache=True, **how)

        @wraps(prepare)     # generate reads its signature
        def prepared(ids: torch.Tensor, next_sequence_length: int | None = None, **more: Any) -> Any:
            # Its first assisted pass would otherwise read the whole prompt again, although the cache has it.
            return prepare(ids, next_sequence_length=next_sequence_length or ids.shape[1] - len(self.ids) + 1, **more)

        model.prepare_inputs_for_generation = prepared      # type: ignore[assignment]
        clock.lap()
        try:
            with torch.no_grad(), clock.part("host"):
                out: Any = model.generate(ids, attention_mask=torch.ones_like(ids), streamer=steps,
                                          **{self.target.cache_name: cache})
        finally:
            model.generation_config = own
            del model.prepare_inputs_for_generation         # the class's method is visible again
        tokens, seconds = out[0, len(self.ids):].tolist(), clock.lap()
        # The pass over the last prompt token is timed here and not for our methods, so it counts as one more token.
        return tokens, Stats(
            prompt_tokens=len(self.ids), new_tokens=len(tokens) + 1,
            accepted_per_step=tuple(size - 1 for size in steps.sizes), prefill_seconds=self._seconds,
            decode_seconds=sum(seconds.values()), seconds_by_part=seconds)


class _Steps:
    """A streamer of transformers that records how many tokens each pass brought."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._begun = False

    def put(self, ids: torch.Tensor) -> None:
        if self._begun:     # the first are the prompt's
            self.sizes.append(ids.numel())
        self._begun = True

    def end(self) -> None:
        """Does nothing: no token is held back."""


def _lasting(proposer: Proposer) -> list[Memory]:
    return [memory for memory in proposer.memories if memory.lasting]

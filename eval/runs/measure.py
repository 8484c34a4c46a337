"""Measures the variants of a run on one prompt, which is read once for all of them; only decoding is timed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.engine import Engine
from longgraft.engine.fork import Fork
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.stats import Stats
from longgraft.eval.checks.losslessness import margin
from longgraft.eval.runs.transformers_baseline import generate
from longgraft.eval.runs.variant_engines import VariantEngines
from longgraft.eval.runs.variants import TRANSFORMERS, Variant


class PromptMeasurement:
    """One prompt, from which `decode` starts any number of times, by any of the variants."""

    def __init__(
        self,
        factory: VariantEngines,
        variants: Iterable[Variant],
        ids: Sequence[int],
        limit: int,
        learning: bool = True,
        prediction: Sequence[int] = (),
        pool: str = "",
    ) -> None:
        """Reads the prompt.

        Args:
            limit: Most tokens of an answer.
            learning: False: lasting memories begin empty, and nothing is kept of what they learn.
            prediction: Token ids of a text that the answers may repeat.
            pool: Names the prompts that learn from one another.
        """
        self.target = factory.target
        self.ids = list(ids)
        self._factory = factory
        self._engines = factory.of([variant for variant in variants if variant.ours], learning, pool)
        self._pool = pool
        self._before = {key: factory.prompts[*key, pool] for key in self._engines}
        self._fork = Fork(list(self._engines.values()), self.ids, limit, prediction)

    @property
    def prefill_seconds(self) -> float:
        """Seconds of the target and of all memories that observed."""
        return self._fork.prefill_seconds(self._fork.memories)

    def learned_from(self, variant: Variant, run: str) -> int | None:
        """Returns how many prompts the variant's lasting memories had learnt from before this one; None without any."""
        if not run:
            return None
        return self._before.get((variant.name, run))

    def decode(
        self, variant: Variant, sampling: Sampling, limit: int, eos: Sequence[int] = (), run: str = ""
    ) -> tuple[list[int], Stats]:
        """Returns (new tokens, their statistics).

        Every repeat starts from the same state.

        Args:
            sampling: How tokens are drawn.
            eos: Tokens that end the answer.
            run: The run whose lasting memories are used, and learn; "": none.
        """
        factory = self._factory
        if not variant.ours:
            return generate(self.target, self._fork, factory.clock, limit, eos, TRANSFORMERS[variant.method])
        key = variant.name, run
        if key not in self._engines:
            key = variant.name, ""
        recorded_before = factory.regions.recorded, factory.regions.fixed
        request = GenerationRequest(self.ids, limit, sampling, eos=frozenset(eos))
        tokens, stats = self._answer(self._engines[key], request)
        if (factory.regions.recorded, factory.regions.fixed) != recorded_before:
            # Recordings were made or refused, whose time is not this answer's cost.
            return self.decode(variant, sampling, limit, eos, run)
        if key[1]:
            factory.prompts[*key, self._pool] = self._before[key] + 1
        return tokens, stats

    def _answer(self, engine: Engine, generation: GenerationRequest) -> tuple[list[int], Stats]:
        """Answers a request; its prefill has the time of this method's own memories."""
        request = engine.open(generation)
        clock = engine.clock
        clock.counted()
        with clock.part("host"):  # the outermost part alone waits for a GPU
            tokens = [token for step in request for token in step.tokens]
        last = sum(clock.lap().values())
        stats = request.stats
        prefill = stats.prefill_seconds + self._fork.prefill_seconds(engine.proposer.memories)
        by_part = {**stats.seconds_by_part, "host": stats.seconds_by_part.get("host", 0.0) + last}
        return tokens, replace(
            stats,
            prefill_seconds=prefill,
            decode_seconds=stats.decode_seconds + last,
            seconds_by_part=by_part,
            reused_tokens=0,
        )

    def margin(self, tokens: Sequence[int]) -> tuple[float, float]:
        """Returns (difference of the target's two largest logits, the larger) after the prompt and these tokens."""
        return margin(self.target, self._fork.rewound(), [self.ids[-1], *tokens])

    def __enter__(self) -> PromptMeasurement:
        return self

    def __exit__(self, *_: object) -> None:
        """Frees caches and recordings."""
        self._fork.close()

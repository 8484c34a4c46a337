"""The engine: a target with one method, which opens requests.

It serves one request at a time: a new request supersedes the one before, unless another thread is stepping that one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from weakref import ref

from torch import Tensor

from longgraft.acceptance.sampling import Sampling
from longgraft.acceptance.shaping import Shaped, Shaping
from longgraft.corpora import Corpus
from longgraft.engine.decoder import Decoder, Goal
from longgraft.engine.detokenizer import Detokenizer
from longgraft.engine.request import Request
from longgraft.prefill.prefixes import CELL, Prefixes, PrefixReader
from longgraft.protocol.memory import Memory
from longgraft.protocol.proposer import Proposer
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.runtime.device_memory import peak_memory, reset_peak_memory
from longgraft.runtime.kv_cache import ROUND, KVCache
from longgraft.target_model.model import TOPK_ROWS, Target
from longgraft.target_model.verifier import Verifier
from longgraft.trees.padded import SIZES

Reads = Callable[[Sequence[int], KVCache, Sequence[Memory]], PrefixReader]
"""(prompt ids, the target's empty cache, empty memories) -> a reader that keeps the prompt's rows for later prompts"""

CAPACITY_STEPS = 16     # with CUDA graphs, cache capacities are multiples of 1 / 16 of a power of two


class Engine:
    """A target with one method.

    Args:
        target: The target model.
        proposer: The method's proposer.
        clock: Measures the parts of steps.
        budget: Nodes per verification, root included.
        chunk: Prompt tokens per prefill pass; None: as many as memory allows.
        regions: Record passes of fixed shape, or run them eagerly.
        verifies: Wraps a request's verifier.
        prefixes: The prefix cache; None: prompts are not kept.
    """

    def __init__(self, target: Target, proposer: Proposer, clock: Clock, budget: int = 60,
                 chunk: int | None = None, regions: Regions = EAGER,
                 verifies: Callable[[Verifier], Verifier] = lambda verifier: verifier,
                 prefixes: Prefixes | None = None) -> None:
        self.target, self.proposer, self.clock, self.budget, self.chunk = target, proposer, clock, budget, chunk
        self.regions, self.verifies, self.prefixes = regions, verifies, prefixes
        self.cache: KVCache = target.cache(0)
        self._lock = threading.Lock()
        self._current: Callable[[], Request | None] = lambda: None

    @property
    def limits(self) -> dict[str, int]:
        """Positions that target and memories allow, by their names."""
        return limits(self.target, self.proposer.memories)

    def check(self, prompt_tokens: int, max_new_tokens: int) -> None:
        """Raises ValueError if the request does not fit the positions of the target or of a memory."""
        _whole(max_new_tokens, "max_new_tokens")
        for name, limit in self.limits.items():
            if prompt_tokens + max_new_tokens > limit:
                raise ValueError(
                    f"The prompt has {prompt_tokens:,} tokens and {max_new_tokens:,} are to follow, but {name} "
                    f"allows {limit:,} positions. Shorten the prompt"
                    f"{'' if name == self.target.name else ', give the drafter a window (draft_window) or use pld'}.")

    @property
    def busy(self) -> bool:
        """True while a request is being answered."""
        return (current := self._current()) is not None and current.finish_reason is None

    def rows(self, prompt_tokens: int, max_new_tokens: int) -> int:
        """Returns the rows of the target's cache that a request reserves."""
        return prompt_tokens + max_new_tokens + self.budget

    @property
    def bytes_per_token(self) -> int:
        """Bytes per token of the target's cache, and of the drafters' caches as far as they are allocated."""
        drafters = (memory.aligned for memory in self.proposer.memories)
        return self.target.cache_bytes_per_token() + sum(
            cache.bytes() // rows for cache in drafters if cache is not None and (rows := cache.capacity))

    @property
    def cell(self) -> int:
        """Tokens of a cell of the prefix cache."""
        return CELL if self.prefixes is None else self.prefixes.cell

    def open(self, ids: Sequence[int], sampling: Sampling, goal: Goal, text: Detokenizer | None = None,
             predictions: Iterable[Tensor] = (), reads: Reads | None = None, budget: int | None = None,
             corpora: Iterable[Corpus] = (), shaping: Shaping | None = None) -> Request:
        """Opens a request for these ids, before its prefill.  A replayed recording ends it where the recording ends.

        Args:
            ids: The prompt's token ids.
            sampling: How tokens are drawn.
            goal: When the answer ends.
            text: Detokenizes the answer; None: the answer has no text.
            predictions: [n] int64 each, texts that the answer may repeat, for memories that learn from ids alone.
            reads: Makes the reader of this prompt; None: made from the engine's prefix cache.
            budget: Most nodes per verification, root included, if less than the engine's budget.
            corpora: Texts that the answer may repeat, for memories that read corpora.
            shaping: Changes logits by the tokens before them; the passes of such a request are eager, also with CUDA
                graphs.
        """
        _whole(goal.limit, "max_new_tokens")
        if budget is not None:
            _whole(budget, "budget")
        if sampling.replay is not None:
            goal = Goal(min(goal.limit, len(sampling.replay)), stop=goal.stop)
        self.check(len(ids), goal.limit)
        with self._lock:
            if (current := self._current()) is not None:
                current.supersede()
            capacity = self.rows(len(ids), goal.limit)
            if self.regions.fixed:
                capacity = self._padded_capacity(capacity)
            self.cache.clear()
            self.cache.reserve(capacity)
            for memory in self.proposer.memories:
                memory.reset(capacity)
            self.clock.lap()
            with self.clock.part("host"):
                for memory, corpus in product(self.proposer.memories, corpora):
                    memory.observe_corpus(corpus)
                for tokens in predictions:
                    for memory in self.proposer.memories:
                        memory.observe_prediction(tokens)
            reset_peak_memory(self.target.device)
            drawn = sampling.rule(len(ids))
            rule = drawn if shaping is None else Shaped(drawn, shaping)
            reads_prompt = shaping is not None and shaping.reads_prompt
            verifier = Verifier(self.target, self.cache, rule, self.clock, self.regions,
                                shaping.read if shaping is not None and reads_prompt else None)
            nodes = self.budget if budget is None else min(budget, self.budget)
            decoder = Decoder(self.verifies(verifier), self.proposer, nodes, goal, text, shaping)
            if reads is None and self.prefixes is not None and self.target.attention_layers:
                reads = partial(PrefixReader, self.prefixes)
            reader = None if reads is None else reads(ids, self.cache, self.proposer.memories)
            chunk = min(self.chunk or TOPK_ROWS, TOPK_ROWS) if reads_prompt else self.chunk
            request = Request(decoder, ids, chunk, self._release, partial(peak_memory, self.target.device), reader)
            self._current = ref(request)     # a weak reference, so that an unclosed request never blocks
        return request

    def _padded_capacity(self, capacity: int) -> int:
        """Returns a capacity with room for padded rows and a somewhat longer prompt.

        CUDA graphs read these buffers, and a larger buffer means recording them all again.
        """
        capacity += SIZES[-1]
        if capacity <= self.cache.capacity:
            return self.cache.capacity
        self.regions.forget()
        step = max(ROUND, (1 << capacity.bit_length()) // CAPACITY_STEPS)
        return -(-capacity // step) * step

    def _release(self) -> None:
        if self.regions.fixed:
            return      # the next request uses the same buffers and recorded graphs
        self.cache.release()
        for memory in self.proposer.memories:
            memory.release()


def _whole(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number, 1 or more.")


def limits(target: Target, memories: Iterable[Memory]) -> dict[str, int]:
    """Returns the positions that a target and its memories allow, by their names."""
    found = {target.name: target.max_positions}
    return found | {f"{target.name}'s {memory.name}": memory.positions for memory in memories if memory.positions}

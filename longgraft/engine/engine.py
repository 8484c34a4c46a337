"""The engine: a target with one method, which opens requests in its lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from longgraft.acceptance.draws_on_gpu import rule_for
from longgraft.acceptance.rules import AcceptanceRule
from longgraft.acceptance.shaping import Shaped, Shaping
from longgraft.corpora import Corpus
from longgraft.engine.answer_end import AnswerEnd
from longgraft.engine.detokenizer import Detokenizer
from longgraft.engine.earlier_answers import EarlierAnswers
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.lane import Lane
from longgraft.engine.pool_size import fitting_rows, pool_rows, request_rows
from longgraft.engine.prompt_reader import PromptReader
from longgraft.engine.request import Request
from longgraft.prefill.prefixes import CELL, Prefixes, PrefixReader
from longgraft.protocol.memory import Memory
from longgraft.protocol.proposer import Proposer
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import Regions
from longgraft.runtime.device_memory import free_bytes
from longgraft.runtime.kv_cache import KVCache
from longgraft.runtime.kv_pool import KVPool
from longgraft.target_model.model import TOPK_ROWS, Target
from longgraft.target_model.verifier import Verifier

Reads = Callable[[Sequence[int], KVCache, Sequence[Memory]], PrefixReader]
"""(prompt ids, the target's empty cache, empty memories) -> what keeps the prompt's rows for later prompts"""


class Engine:
    """A target with one method.

    Args:
        lane: The first lane.
        budget: Nodes per verification, root included.
        chunk: Prompt tokens per prefill pass; None: as many as memory allows.
        prefixes: The prefix cache; None: prompts are not kept.
        another: Makes a further lane of the same target and method; None: one request runs at a time.
        earlier: Keeps answers for later requests; None: none is kept.
    """

    def __init__(
        self,
        lane: Lane,
        budget: int = 60,
        chunk: int | None = None,
        prefixes: Prefixes | None = None,
        another: Callable[[], Lane] | None = None,
        earlier: EarlierAnswers | None = None,
    ) -> None:
        self.lanes = [lane]
        self.budget = budget
        self.chunk = chunk
        self.prefixes = prefixes
        self.another = another
        self.earlier = earlier

    @property
    def target(self) -> Target:
        return self.lanes[0].target

    @property
    def proposer(self) -> Proposer:
        """The first lane's proposer."""
        return self.lanes[0].proposer

    @property
    def cache(self) -> KVCache:
        """The first lane's cache."""
        return self.lanes[0].cache

    @property
    def clock(self) -> Clock:
        """The first lane's clock."""
        return self.lanes[0].clock

    @property
    def regions(self) -> Regions:
        """The first lane's regions."""
        return self.lanes[0].regions

    @property
    def limits(self) -> dict[str, int]:
        """Positions that target and memories allow, by their names."""
        return limits(self.target, self.proposer.memories)

    def check(self, prompt_tokens: int, max_new_tokens: int) -> None:
        """Raises ValueError if the request does not fit the positions of the target or of a memory."""
        _whole(max_new_tokens, "max_new_tokens")
        for name, limit in self.limits.items():
            if prompt_tokens + max_new_tokens > limit:
                remedy = "Shorten the prompt"
                if name != self.target.name:
                    remedy += ", give the drafter a window (method+window=NUMBER) or use pld"
                raise ValueError(
                    f"The prompt has {prompt_tokens:,} tokens and {max_new_tokens:,} are to "
                    f"follow, but {name} allows {limit:,} positions. {remedy}."
                )

    def rows(self, prompt_tokens: int, max_new_tokens: int) -> int:
        """Returns the rows of the target's cache that a request reserves."""
        if self.regions.fixed:
            return request_rows(prompt_tokens, max_new_tokens, self.budget)
        return prompt_tokens + max_new_tokens + self.budget

    def plan_pool(self, lanes: int) -> None:
        """Has the pool take as much memory as so many requests at once may need, if passes are recorded."""
        pool = self.lanes[0].pool
        if pool is not None:
            pool.plan(partial(self._pool_rows, pool, lanes))

    def _pool_rows(self, pool: KVPool, lanes: int) -> int:
        free = free_bytes(self.target.device) + pool.whole.bytes()
        if self.prefixes is not None:
            free -= max(0, self.prefixes.most - self.prefixes.bytes)
        longest = request_rows(min(self.limits.values()), 0, self.budget)
        return pool_rows(fitting_rows(free, self.target.cache_bytes_per_token()), lanes, longest)

    @property
    def cell(self) -> int:
        """Tokens of a cell of the prefix cache."""
        return CELL if self.prefixes is None else self.prefixes.cell

    def open(
        self,
        requested: GenerationRequest,
        text: Detokenizer | None = None,
        shaping: Shaping | None = None,
        corpora: Iterable[Corpus] = (),
        reads: Reads | None = None,
        lane: Lane | None = None,
    ) -> Request:
        """Opens a request, before its prefill.  A replayed recording ends it where the recording ends.

        Args:
            requested: The request; without end tokens if it names none.
            text: Detokenizes the answer; None: the answer has no text.
            shaping: Changes logits by the tokens before them; the passes of such a request are eager, also
                with CUDA graphs.
            corpora: Texts that the answer may repeat, for memories that read corpora.
            reads: Makes the reader of this prompt; None: made from the engine's prefix cache.
            lane: A free lane; None: the first, whose request ends.
        """
        _whole(requested.max_new_tokens, "max_new_tokens")
        if requested.budget is not None:
            _whole(requested.budget, "budget")
        lane = lane or self.lanes[0]
        corpora = list(corpora)
        # The request's own predictions come last, because retrievers prefer the last text.
        texts = (*self._earlier_answers(lane, requested), *requested.predictions)
        predictions = [torch.tensor(tokens) for tokens in texts]
        end = _answer_end(requested, text)
        rows = self.rows(len(requested.ids), end.limit)
        if lane.snapshot is None:
            self.check(len(requested.ids), end.limit)
        else:
            needs_prompt = shaping is not None and shaping.reads_prompt
            lane.snapshot.check(requested.ids, rows, bool(predictions or corpora or needs_prompt))

        def tell(memory: Memory) -> None:
            for corpus in corpora:
                memory.observe_corpus(corpus)
            for tokens in predictions:
                memory.observe_prediction(tokens)

        return lane.begin(rows, tell, lambda: self._request(lane, requested, end, shaping, reads))

    def _earlier_answers(self, lane: Lane, requested: GenerationRequest) -> list[list[int]]:
        """Returns the answers that this one may repeat.

        A snapshot's memories have read their texts already.
        """
        if self.earlier is None or requested.client is None or lane.snapshot is not None:
            return []
        return self.earlier.of(requested.client)

    def _request(
        self, lane: Lane, requested: GenerationRequest, end: AnswerEnd, shaping: Shaping | None, reads: Reads | None
    ) -> Request:
        """Makes the request from what its lane has and what was requested."""
        drawn = rule_for(requested.sampling.rule(len(requested.ids)), self.target.device)
        rule: AcceptanceRule = drawn
        chunk = self.chunk
        read_prompt_logits = None
        if shaping is not None:
            rule = Shaped(drawn, shaping)
            if shaping.reads_prompt:
                read_prompt_logits = shaping.read
                chunk = min(self.chunk or TOPK_ROWS, TOPK_ROWS)
        verifier = Verifier(self.target, lane.cache, rule, lane.clock, lane.regions, read_prompt_logits)
        budget = self.budget
        if requested.budget is not None:
            budget = min(requested.budget, self.budget)
        keep_answer = None
        if self.earlier is not None and requested.client is not None:
            keep_answer = partial(self.earlier.add, requested.client)
        return Request(
            requested.ids,
            lane.verifies(verifier),
            lane.proposer,
            budget,
            end,
            lane.release,
            chunk,
            shaping,
            self._reader(lane, requested, reads),
            keep_answer,
        )

    def _reader(self, lane: Lane, requested: GenerationRequest, reads: Reads | None) -> PromptReader | None:
        """Returns what recalls and keeps the prompt, if anything does."""
        if lane.snapshot is not None:
            return lane.snapshot
        if reads is None and self.prefixes is not None and self.target.attention_layers:
            reads = partial(PrefixReader, self.prefixes, weights=lane.weight_state)
        if reads is None:
            return None
        return reads(requested.ids, lane.cache, lane.proposer.memories)


def _answer_end(requested: GenerationRequest, text: Detokenizer | None) -> AnswerEnd:
    """Returns where the answer ends; a replayed recording has its own end."""
    recording = requested.sampling.replay
    if recording is None:
        return AnswerEnd(requested.max_new_tokens, requested.eos or (), requested.stop_token_ids, text)
    return AnswerEnd(min(requested.max_new_tokens, len(recording)), (), requested.stop_token_ids, text)


def _whole(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number, 1 or more.")


def limits(target: Target, memories: Iterable[Memory]) -> dict[str, int]:
    """Returns the positions that a target and its memories allow, by their names."""
    positions = {target.name: target.max_positions}
    for memory in memories:
        if memory.positions:
            positions[f"{target.name}'s {memory.name}"] = memory.positions
    return positions

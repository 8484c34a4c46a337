"""The engine: a target with one method, which opens requests in its lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import torch

from longgraft.acceptance.shaping import Shaped, Shaping
from longgraft.corpora import Corpus
from longgraft.engine.decoder import Decoder, Goal
from longgraft.engine.detokenizer import Detokenizer
from longgraft.engine.earlier_answers import EarlierAnswers
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.lane import Lane
from longgraft.engine.request import PromptReader, Request
from longgraft.prefill.prefixes import CELL, Prefixes, PrefixReader
from longgraft.protocol.memory import Memory
from longgraft.protocol.proposer import Proposer
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import Regions
from longgraft.runtime.device_memory import peak_memory
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.model import TOPK_ROWS, Target
from longgraft.target_model.verifier import Verifier

Reads = Callable[[Sequence[int], KVCache, Sequence[Memory]], PrefixReader]
"""(prompt ids, the target's empty cache, empty memories) -> a reader that keeps the prompt's rows for later prompts"""


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

    def __init__(self, lane: Lane, budget: int = 60, chunk: int | None = None, prefixes: Prefixes | None = None,
                 another: Callable[[], Lane] | None = None, earlier: EarlierAnswers | None = None) -> None:
        self.lanes, self.budget, self.chunk, self.prefixes, self.another = [lane], budget, chunk, prefixes, another
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
                raise ValueError(
                    f"The prompt has {prompt_tokens:,} tokens and {max_new_tokens:,} are to follow, but {name} "
                    f"allows {limit:,} positions. Shorten the prompt"
                    f"{'' if name == self.target.name else ', give the drafter a window (draft_window) or use pld'}.")

    def rows(self, prompt_tokens: int, max_new_tokens: int) -> int:
        """Returns the rows of the target's cache that a request reserves."""
        return prompt_tokens + max_new_tokens + self.budget

    @property
    def cell(self) -> int:
        """Tokens of a cell of the prefix cache."""
        return CELL if self.prefixes is None else self.prefixes.cell

    def open(self, asked: GenerationRequest, text: Detokenizer | None = None, shaping: Shaping | None = None,
             corpora: Iterable[Corpus] = (), reads: Reads | None = None, lane: Lane | None = None) -> Request:
        """Opens a request, before its prefill.  A replayed recording ends it where the recording ends.

        Args:
            asked: The request; without end tokens if it names none.
            text: Detokenizes the answer; None: the answer has no text.
            shaping: Changes logits by the tokens before them; the passes of such a request are eager, also with CUDA
                graphs.
            corpora: Texts that the answer may repeat, for memories that read corpora.
            reads: Makes the reader of this prompt; None: made from the engine's prefix cache.
            lane: A free lane; None: the first, whose request ends.
        """
        _whole(asked.max_new_tokens, "max_new_tokens")
        if asked.budget is not None:
            _whole(asked.budget, "budget")
        goal = Goal(asked.max_new_tokens, frozenset(asked.eos or ()), asked.stop, frozenset(asked.stop_token_ids))
        if (recorded := asked.sampling.replay) is not None:
            goal = replace(goal, limit=min(goal.limit, len(recorded)), eos=frozenset())
        place, corpora = lane or self.lanes[0], list(corpora)
        # The request's own predictions come last, because retrievers prefer the last text.
        texts = (*self._earlier_answers(place, asked), *asked.predictions)
        predictions = [torch.tensor(tokens) for tokens in texts]
        rows = self.rows(len(asked.ids), goal.limit)
        if place.snapshot is None:
            self.check(len(asked.ids), goal.limit)
        else:
            needs_prompt = shaping is not None and shaping.reads_prompt
            place.snapshot.check(asked.ids, rows, bool(predictions or corpora or needs_prompt))

        def tell(memory: Memory) -> None:
            for corpus in corpora:
                memory.observe_corpus(corpus)
            for tokens in predictions:
                memory.observe_prediction(tokens)

        return place.begin(rows, tell, lambda: self._request(place, asked, goal, text, shaping, reads))

    def _earlier_answers(self, lane: Lane, asked: GenerationRequest) -> list[list[int]]:
        """Returns the answers that this one may repeat.  A snapshot's memories have read their texts already."""
        if self.earlier is None or asked.client is None or lane.snapshot is not None:
            return []
        return self.earlier.of(asked.client)

    def _request(self, lane: Lane, asked: GenerationRequest, goal: Goal, text: Detokenizer | None,
                 shaping: Shaping | None, reads: Reads | None) -> Request:
        drawn = asked.sampling.rule(len(asked.ids))
        rule = drawn if shaping is None else Shaped(drawn, shaping)
        reads_prompt = shaping is not None and shaping.reads_prompt
        verifier = lane.verifies(Verifier(self.target, lane.cache, rule, lane.clock, lane.regions,
                                          shaping.read if shaping is not None and reads_prompt else None))
        nodes = self.budget if asked.budget is None else min(asked.budget, self.budget)
        if reads is None and self.prefixes is not None and self.target.attention_layers:
            reads = partial(PrefixReader, self.prefixes, weights=lane.weight_state)
        reader: PromptReader | None = lane.snapshot
        if reader is None and reads is not None:
            reader = reads(asked.ids, lane.cache, lane.proposer.memories)
        chunk = min(self.chunk or TOPK_ROWS, TOPK_ROWS) if reads_prompt else self.chunk
        keeps = None
        if self.earlier is not None and asked.client is not None:
            keeps = partial(self.earlier.add, asked.client)
        return Request(Decoder(verifier, lane.proposer, nodes, goal, text, shaping), asked.ids, chunk,
                       lane.release, partial(peak_memory, self.target.device), reader, keeps)


def _whole(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number, 1 or more.")


def limits(target: Target, memories: Iterable[Memory]) -> dict[str, int]:
    """Returns the positions that a target and its memories allow, by their names."""
    found = {target.name: target.max_positions}
    return found | {f"{target.name}'s {memory.name}": memory.positions for memory in memories if memory.positions}

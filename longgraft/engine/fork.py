"""Forks: a prompt is read once, and several methods continue from there, each any number of times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from longgraft.acceptance.rules import Greedy
from longgraft.engine.engine import Engine
from longgraft.engine.snapshot import Snapshot
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Wants
from longgraft.protocol.proposer import memories_of
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.verifier import Verifier


class Fork:
    """A prompt that is read once for several engines of one target.

    Until the fork is closed, a request of one of these engines starts where the prompt ends: the first lane's
    cache and memories go back to their state before the last prompt token.  The request reads that token
    itself, because what a drafter keeps for it depends on the token that is drawn.  So only decoding is
    repeated.

        with Fork([graft.engine, plain.engine], ids, 128):
            ours, theirs = (answer(session.open(ids, 128)) for session in (graft, plain))

    Attributes:
        target_seconds: Seconds that the target took for the prompt.
        memory_seconds: Seconds that each memory took for it, by the `id` of the memory.
    """

    def __init__(
        self, engines: Sequence[Engine], ids: Sequence[int], limit: int, prediction: Sequence[int] = ()
    ) -> None:
        """Reads the prompt.

        Args:
            engines: Their first lanes are used; lanes may share memories.
            ids: The prompt.
            limit: Most tokens of an answer.
            prediction: Token ids of a text that the answers may repeat.
        """
        self._lanes = [engine.lanes[0] for engine in engines]
        self._first = engines[0]
        self.memories = memories_of(lane.proposer for lane in self._lanes)
        self.target_seconds = 0.0
        self.memory_seconds = dict.fromkeys(map(id, self.memories), 0.0)
        capacity = max(engine.rows(len(ids), limit) for engine in engines)
        cache = self._first.target.cache(capacity)
        for lane in self._lanes:
            lane.continue_from(None)
        for memory in self.memories:
            memory.reset(capacity)
            if prediction:
                memory.observe_prediction(torch.tensor(prediction))
        self._read(cache, ids)
        cache.mark()
        self.snapshot = Snapshot(tuple(ids), cache, {id(memory): memory.mark() for memory in self.memories})
        for lane in self._lanes:
            lane.continue_from(self.snapshot)

    def _read(self, cache: KVCache, ids: Sequence[int]) -> None:
        """Shows every memory the prompt without its last token."""
        if len(ids) < 2:
            return
        engine = self._first
        clock = engine.clock
        verifier = Verifier(engine.target, cache, Greedy(), clock)
        wants = Wants.union(memory.wants for memory in self.memories)
        for observation in read_prompt(verifier, torch.tensor(ids[:-1]), wants, engine.chunk, following=ids[-1]):
            self.target_seconds += sum(clock.lap().values())
            for memory in self.memories:
                with clock.part("observe"):
                    memory.observe(observation)
                self.memory_seconds[id(memory)] += sum(clock.lap().values())

    def prefill_seconds(self, memories: Iterable[Memory]) -> float:
        """Returns the seconds that the prompt takes with these memories alone."""
        return self.target_seconds + sum(self.memory_seconds[id(memory)] for memory in memories)

    def rewound(self) -> KVCache:
        """Returns the target's cache as it was before the prompt's last token."""
        self.snapshot.restore(())
        return self.snapshot.cache

    def close(self) -> None:
        """Gives the engines their lanes back, and frees the caches."""
        for lane in self._lanes:
            lane.continue_from(None)
        self.snapshot.cache.release()

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

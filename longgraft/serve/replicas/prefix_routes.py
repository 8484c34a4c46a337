"""Routing by prefix: finds the replica that has probably kept the beginning of a prompt.

A prompt is the JSON text of the fields that the prompt is made of, cut into blocks. Each block has the hash
of all text up to its end. Nobody tells the front what a replica has kept; it remembers where it sent which
blocks. A request goes where it ends first: reading a block again costs as much as waiting for a block of
another request.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from longgraft.files.data_files import json_problem

Id = TypeVar("Id")
BLOCK = 512  # characters of a block; a kept cell of a prompt has 128 tokens
# Fields that prompts are made of, in the order in which models' templates write them.
FIELDS = ("tools", "system", "instructions", "messages", "prompt", "input_extra", "input_prefix", "input", "content")


def blocks_of(body: bytes) -> tuple[int, ...]:
    """Returns the hashes of a request's prompt.

    None if the body is no JSON object, or shorter than a block.
    """
    if json_problem(body):
        return ()
    try:
        value: Any = json.loads(body)
    except ValueError:  # the replica answers with the error
        return ()
    if not isinstance(value, dict):
        return ()
    text = json.dumps([value.get(name) for name in FIELDS], separators=(",", ":"))
    blocks = list[int]()
    last = 0
    for end in range(BLOCK, len(text) + 1, BLOCK):
        last = hash((last, text[end - BLOCK : end]))
        blocks.append(last)
    return tuple(blocks)


@dataclass
class PrefixRoutes(Generic[Id]):
    """The blocks that each replica got, and the work that it has.

    The work of a request is the number of its blocks that its replica did not know, and `request` for its
    answer.  The defaults come from a simulation (docs/replicas.md).

    Attributes:
        request: Work of an answer, in blocks that are read.
        imbalance: Requests that a replica may have more than the one with the fewest, and still be preferred.
        blocks_each: Blocks that are remembered per replica; the least recently used ones are forgotten.
    """

    request: float = 2.0
    imbalance: int = 4
    blocks_each: int = 4096
    _sent: OrderedDict[int, set[Id]] = field(default_factory=OrderedDict)
    _running: dict[Hashable, tuple[Id, float]] = field(default_factory=dict)
    _requests: Counter[Id] = field(default_factory=Counter)
    _work: dict[Id, float] = field(default_factory=dict)
    _turns: dict[Id, int] = field(default_factory=dict)  # number of the last request that a replica got
    _count: int = 0

    def ranked(self, blocks: Sequence[int], replicas: Collection[Id]) -> list[Id]:
        """Returns the replicas, the best first: those with the least work once this request is added.

        Of equal ones, the one comes first that has been longest without a request.
        """
        recalled = self._recalled(blocks, set(replicas))
        fewest = min((self._requests[replica] for replica in replicas), default=0)

        def order(replica: Id) -> tuple[bool, float, int]:
            busy = self._requests[replica] > fewest + self.imbalance
            work = self._work.get(replica, 0.0) - recalled.get(replica, 0)
            return busy, work, self._turns.get(replica, 0)

        return sorted(replicas, key=order)

    def send(self, key: Hashable, blocks: Sequence[int], replica: Id, replicas: int) -> None:
        """Takes note that a replica has a request.

        Args:
            key: Names the request. If another replica had it, it has it no longer.
            replicas: Their number.
        """
        if self._running.get(key, (None,))[0] == replica:
            return
        self.end(key)
        work = self.request + len(blocks) - self._recalled(blocks, {replica}).get(replica, 0)
        self._running[key] = replica, work
        self._requests[replica] += 1
        self._work[replica] = self._work.get(replica, 0.0) + work
        self._count += 1
        self._turns[replica] = self._count
        for block in reversed(blocks):  # the last blocks of a prompt are forgotten first
            self._sent.setdefault(block, set()).add(replica)
            self._sent.move_to_end(block)
        while len(self._sent) > self.blocks_each * replicas:
            self._sent.popitem(last=False)

    def end(self, key: Hashable) -> None:
        """Takes note that a request has ended, in whatever way; unknown ones are ignored."""
        if key not in self._running:
            return
        replica, work = self._running.pop(key)
        self._requests[replica] -= 1
        self._work[replica] -= work
        if not self._requests[replica]:  # replicas come and go
            del self._requests[replica], self._work[replica]

    def _recalled(self, blocks: Sequence[int], replicas: set[Id]) -> dict[Id, int]:
        """Returns how many of the first blocks each replica got."""
        recalled: dict[Id, int] = {}
        for count, block in enumerate(blocks, 1):
            replicas = replicas & self._sent.get(block, set())
            if not replicas:
                break
            recalled |= dict.fromkeys(replicas, count)
        return recalled

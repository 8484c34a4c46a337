"""Routing by prefix: which replica has probably kept the beginning of a prompt.

A prompt is the JSON text of the fields that the prompt is made of, cut into blocks. Each block has the hash of all text
up to its end. Nobody tells the front what a replica has kept; it remembers where it sent which blocks.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Id = TypeVar("Id")
BLOCK = 512     # characters of a block; a kept cell of a prompt has 128 tokens
# Fields that prompts are made of, in the order in which models' templates write them.
FIELDS = ("tools", "system", "instructions", "messages", "prompt", "input_extra", "input_prefix", "input", "content")


def blocks_of(body: bytes) -> tuple[int, ...]:
    """Returns the hashes of a request's prompt; none if the body is no JSON object, or shorter than a block."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):        # the replica answers with the error
        return ()
    if not isinstance(value, dict):
        return ()
    text = json.dumps([value.get(name) for name in FIELDS], separators=(",", ":"))
    found, last = list[int](), 0
    for end in range(BLOCK, len(text) + 1, BLOCK):
        last = hash((last, text[end - BLOCK:end]))
        found.append(last)
    return tuple(found)


@dataclass
class PrefixRoutes(Generic[Id]):
    """Which replicas got which blocks.

    worth: blocks that a replica must know more than another one to be preferred in spite of one request more;
    imbalance: requests that a replica may have more than the least loaded one, and still be preferred for its blocks;
    blocks_each: blocks that are remembered per replica; the least recently used ones are forgotten.
    The defaults come from docs/scale.md.
    """

    worth: float = 4.0
    imbalance: int = 8
    blocks_each: int = 4096
    _sent: OrderedDict[int, set[Id]] = field(default_factory=OrderedDict)
    _turns: dict[Id, int] = field(default_factory=dict)     # number of the last request that a replica got
    _count: int = 0

    def ranked(self, blocks: Sequence[int], loads: Mapping[Id, int]) -> list[Id]:
        """Returns the replicas, the best first; of equal ones, the one that has been longest without a request.

        Args:
            blocks: The request's blocks.
            loads: Requests that each replica has now.
        """
        most = min(loads.values(), default=0) + self.imbalance
        known = self._known(blocks, {one for one, load in loads.items() if load <= most})
        return sorted(loads, key=lambda one: (loads[one] > most, loads[one] - known.get(one, 0) / self.worth,
                                              self._turns.get(one, 0)))

    def _known(self, blocks: Sequence[int], replicas: set[Id]) -> dict[Id, int]:
        """Returns how many of the first blocks each replica got."""
        found: dict[Id, int] = {}
        for count, block in enumerate(blocks, 1):
            replicas = replicas & self._sent.get(block, set())
            if not replicas:
                break
            found |= dict.fromkeys(replicas, count)
        return found

    def sent(self, blocks: Sequence[int], replica: Id, replicas: int) -> None:
        """Remembers that a replica got a request.  replicas: their number"""
        self._count += 1
        self._turns[replica] = self._count
        for block in reversed(blocks):      # the last blocks of a prompt are forgotten first
            self._sent.setdefault(block, set()).add(replica)
            self._sent.move_to_end(block)
        while len(self._sent) > self.blocks_each * replicas:
            self._sent.popitem(last=False)

"""A fleet of replicas and its clients, simulated: requests, passes, kept prefixes and routing, in simulated seconds.

The router is the one that `longgraft serve --ray` uses (`PrefixRoutes`). Costs come from recorded measurements of
Qwen2.5-Coder-0.5B (Q4_K_M) on one core; `docs/scale.md` lists the sources and what is assumed. Decoding is plain.

A replica runs rounds of up to eight passes. In a pass, each running request decodes a token, and prompts that are being
read share a chunk: 128 tokens if nothing is decoded, else as many as there are decoding requests, at least 16. An
eighth goes to the oldest prompt and the rest to the shortest.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections import OrderedDict
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import simpy

from longgraft.files.json_lines import read_json_lines
from longgraft.serve.replicas.prefix_routes import PrefixRoutes

RECORDED = Path(__file__).parents[1] / "docs/results/completion/rows.jsonl.gz"
CELL = 128  # tokens of a kept cell, and of a block of the router (512 characters)
RUNNING = 8  # --max-running
PASSES = 8  # passes of a round
GIB = 2**30
TOKEN_BYTES = 24_576  # a kept token: keys and values of 24 layers, 2 heads of 64, in float32
WARM = 0.25  # share of the time that is not counted
Process = Generator[simpy.Event, Any, Any]


@dataclass(frozen=True)
class Costs:
    """Seconds of a replica's work.

    read, read_depth: a prompt token, and more for each token before it; rows: of a pass, by decoding requests;
    row_depth: more of a row, for each token before it
    """

    read: float = 2.80e-3
    read_depth: float = 0.947e-6
    rows: tuple[tuple[int, float], ...] = ((1, 27.8e-3), (4, 48.9e-3), (8, 80.4e-3), (16, 144.6e-3))
    row_depth: float = 4.2e-6

    def reading(self, tokens: float, after: float) -> float:
        """Returns the seconds for reading so many tokens after so many others."""
        return tokens * (self.read + self.read_depth * (after + tokens / 2))

    def decoding(self, depths: Sequence[int]) -> float:
        """Returns the seconds of a pass with a row for each request.  depths: tokens before each row"""
        if not depths:
            return 0.0
        place = min(max(1, bisect([count for count, _ in self.rows], len(depths))), len(self.rows) - 1)
        (low, least), (high, most) = self.rows[place - 1 : place + 1]
        return least + (most - least) * (len(depths) - low) / (high - low) + self.row_depth * sum(depths)


@dataclass(frozen=True)
class Storage:
    """A place for kept prefixes.

    gib: its size; start, token: seconds to fetch a prefix, and for each of its tokens; shared: one for all replicas
    """

    gib: float = 4.0
    start: float = 0.0
    token: float = 0.0
    shared: bool = False


MEMORY = Storage()
# A file of a prefix: 0.15 s for 37.7 MB and 0.6 s for 302 MB (docs/results/embedded/reuse).
DISK = Storage(100.0, 0.086, 1.7e-9 * TOKEN_BYTES)
# The same, and a network of 1.25 GB/s (assumed).
SHARED = Storage(1000.0, 0.086, 2.5e-9 * TOKEN_BYTES, shared=True)


class Kept:
    """Cells of kept prompts; the least recently used ones are dropped."""

    def __init__(self, gib: float) -> None:
        self._most = int(gib * GIB / TOKEN_BYTES / CELL)
        self._cells: OrderedDict[Hashable, None] = OrderedDict()

    def known(self, cells: Sequence[Hashable]) -> int:
        """Returns how many of the first cells are kept."""
        return next((n for n, cell in enumerate(cells) if cell not in self._cells), len(cells))

    def keep(self, cells: Sequence[Hashable]) -> None:
        """Keeps all cells of a prompt."""
        for cell in reversed(cells):
            self._cells[cell] = None
            self._cells.move_to_end(cell)
        while len(self._cells) > self._most:
            self._cells.popitem(last=False)


@dataclass(eq=False)
class Asked:
    """A request.  cells: its prompt's; new: tokens of the answer; arrived, first, ended: times"""

    cells: Sequence[Hashable]
    tokens: int
    new: int
    arrived: float
    done: simpy.Event
    left: float = 0.0  # prompt tokens that must still be read
    reused: int = 0
    replica: int = 0  # the one that got it
    first: float = 0.0
    ended: float = 0.0
    decoded: int = 0


class Replica:
    """One core with a model.  slow: its passes take so many times as long; reads_only: it hands prompts on when read"""

    def __init__(self, fleet: Fleet, number: int, slow: float = 1.0) -> None:
        self.fleet, self.number, self.slow = fleet, number, slow
        self.reads_only = False
        self.kept = Kept(fleet.plan.memory.gib)
        self._waiting: list[Asked] = []
        self._running: list[Asked] = []
        self._work = fleet.env.event()
        self.busy = 0.0
        fleet.env.process(self._rounds())

    @property
    def load(self) -> int:
        return len(self._waiting) + len(self._running)

    def take(self, asked: Asked) -> None:
        """Queues a request."""
        self._waiting.append(asked)
        if not self._work.triggered:
            self._work.succeed()

    def _rounds(self) -> Process:
        env = self.fleet.env
        while True:
            if not self.load:
                self._work = env.event()
                yield self._work
            while self._waiting and len(self._running) < RUNNING:
                asked = self._waiting.pop(0)
                self._running.append(asked)
                if not asked.decoded and (wait := self._begin(asked)):
                    yield env.timeout(wait)
            seconds = self.slow * self._round()
            self.busy += seconds
            yield env.timeout(seconds)
            for asked in [one for one in self._running if one.left <= 0]:
                self._proceed(asked)

    def _begin(self, asked: Asked) -> float:
        """Looks for a kept prefix; returns the seconds to fetch it."""
        plan, known = self.fleet.plan, self.kept.known(asked.cells)
        wait = 0.0
        for place, kept in self.fleet.stores(self):
            if (found := kept.known(asked.cells)) > known:
                wait, known = place.start + place.token * CELL * (found - known), found
        asked.reused = min(known * CELL, asked.tokens - 1)
        asked.left = asked.tokens - asked.reused
        return wait if wait < plan.costs.reading(asked.reused, 0) else 0.0

    def _round(self) -> float:
        """Does some passes' work; returns their seconds."""
        costs = self.fleet.plan.costs
        reading = [one for one in self._running if one.left > 0]
        rows = [one for one in self._running if one.left <= 0]
        passes: float = min([PASSES, *(one.new - one.decoded for one in rows)])
        chunk = 128 if not rows else max(16, len(rows))
        seconds = 0.0
        if reading:
            shortest, oldest = min(reading, key=lambda one: one.left), reading[0]
            passes = min(passes, max(1.0, shortest.left / chunk))
            for one, share in ((shortest, 7 / 8 if oldest is not shortest else 1.0), (oldest, 1 / 8)):
                tokens = min(one.left, chunk * passes * share)
                seconds += costs.reading(tokens, one.tokens - one.left)
                one.left -= tokens
        for one in rows:
            one.decoded += int(passes)
        return seconds + int(passes) * costs.decoding([one.tokens + one.decoded for one in rows])

    def _proceed(self, asked: Asked) -> None:
        """Notes the first token, and ends or hands on a request."""
        if not asked.decoded:
            asked.first, asked.decoded = self.fleet.env.now, 1
            self.kept.keep(asked.cells)
            for _, kept in self.fleet.stores(self):
                kept.keep(asked.cells)
            if self.reads_only and asked.new > 1:
                self._running.remove(asked)
                self.fleet.hand_on(asked)
                return
        if asked.decoded >= asked.new:
            self._running.remove(asked)
            asked.ended = self.fleet.env.now
            self.fleet.end(asked)


class Clients(Protocol):
    """A kind of clients."""

    def client(self, fleet: Fleet, number: int) -> Process:
        """Sends requests for ever."""


@dataclass(frozen=True)
class Plan:
    """All that is chosen in a simulation.

    clients: their kind; each: their number per replica; route: prefix or load; slow: how many times as slow the first
    replica is; readers: share of the replicas that only read; blocks: that the router remembers per replica
    """

    clients: Clients
    each: float
    replicas: int = 100
    seconds: float = 900.0
    route: str = "prefix"
    request: float = 2.0
    imbalance: int = 4
    blocks: int = 4096
    memory: Storage = MEMORY
    storage: Storage | None = None
    slow: float = 1.0
    readers: float = 0.0
    costs: Costs = field(default_factory=Costs)


class Fleet:
    """Replicas, their router, and clients."""

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        self.plan, self.env, self.dice = plan, simpy.Environment(), random.Random(seed)
        self.replicas = [Replica(self, number, plan.slow if number == 0 else 1.0) for number in range(plan.replicas)]
        readers = min(round(plan.readers * plan.replicas), plan.replicas - 1)
        for replica in self.replicas[:readers]:
            replica.reads_only = True
        self._front, self._decoders = self.replicas[: readers or None], self.replicas[readers:]
        self._routes = PrefixRoutes[int](plan.request, plan.imbalance, plan.blocks)
        own = [Kept(plan.storage.gib if plan.storage else 0) for _ in self.replicas]
        self._stores = own[:1] * plan.replicas if plan.storage and plan.storage.shared else own
        self.answered: list[Asked] = []

    def stores(self, replica: Replica) -> list[tuple[Storage, Kept]]:
        """Returns where a replica finds kept prefixes besides its memory."""
        return [(self.plan.storage, self._stores[replica.number])] if self.plan.storage else []

    def ask(self, cells: Sequence[Hashable], tokens: int, new: int) -> simpy.Event:
        """Routes a request; the event is its end."""
        asked = Asked(cells, tokens, new, self.env.now, self.env.event())
        blocks = [hash(cell) for cell in cells]
        if self.plan.route == "load":  # nothing is known, and requests are only counted
            blocks = []
        asked.replica = best = self._routes.ranked(blocks, range(len(self._front)))[0]
        self._routes.send(asked, blocks, best, len(self._front))
        self.replicas[best].take(asked)
        self.answered.append(asked)
        return asked.done

    def end(self, asked: Asked) -> None:
        """Tells the router and the client that an answer has ended."""
        self._routes.end(asked)
        asked.done.succeed()

    def hand_on(self, asked: Asked) -> None:
        """Sends a prompt that was read to a replica that decodes, over the network."""
        self._routes.end(asked)

        def sent() -> Process:
            yield self.env.timeout(SHARED.start + SHARED.token * asked.tokens)
            min(self._decoders, key=lambda one: (one.load, self.dice.random())).take(asked)

        self.env.process(sent())

    def run(self) -> dict[str, Any]:
        """Simulates; returns the figures of the requests that came after a quarter of the time and have ended."""
        plan = self.plan
        for number in range(round(plan.each * plan.replicas)):
            self.env.process(plan.clients.client(self, number))
        self.env.run(until=plan.seconds)
        found = [one for one in self.answered if one.arrived >= WARM * plan.seconds and one.ended]
        if not found:
            raise ValueError(f"No request ended within {plan.seconds:g} simulated seconds. Simulate more.")
        by_first = [one.first - one.arrived for one in found if one.replica == 0]
        first = sorted(one.first - one.arrived for one in found)
        whole = sorted(one.ended - one.arrived for one in found)
        return {
            "requests": len(found),
            "requests_per_second": len(found) / plan.seconds / (1 - WARM),
            "reused": sum(one.reused for one in found) / sum(one.tokens for one in found),
            "busy": sum(one.busy for one in self.replicas) / plan.seconds / plan.replicas,
            "share_of_first_replica": len(by_first) * plan.replicas / len(found),
            "its_first_mean": sum(by_first) / max(1, len(by_first)),
            "first_mean": sum(first) / len(first),
            "first_p50": first[len(first) // 2],
            "first_p95": first[int(0.95 * len(first))],
            "whole_p50": whole[len(whole) // 2],
            "whole_p95": whole[int(0.95 * len(whole))],
        }


def cells(tokens: int, *named: tuple[int, Hashable]) -> list[Hashable]:
    """Returns the whole cells of a prompt.  named: (end, name) of its parts; a cell has the name of its last token's"""
    found, part = list[Hashable](), 0
    for end in range(CELL, tokens + 1, CELL):
        while named[part][0] < end:
            part += 1
        found.append((named[part][1], end))
    return found


@dataclass(frozen=True)
class Editors:
    """People who type, each in files of their own: recorded prompts, cold and after a few keys.

    places: requests at a place before the cursor goes elsewhere; pause, between: mean seconds between requests while
    typing, and between places (assumed)
    """

    places: int = 12
    pause: float = 4.0
    between: float = 60.0

    def client(self, fleet: Fleet, number: int) -> Process:
        """Asks at one place after another."""
        dice, place = random.Random(number), 0
        yield fleet.env.timeout(dice.uniform(0, self.between))
        while True:
            cold, typing = dice.choice(recorded())
            place += 1
            yield fleet.ask(
                cells(cold["prompt_tokens"], (10**9, (number, place))), cold["prompt_tokens"], cold["new_tokens"]
            )
            for turn in range(dice.randint(1, 2 * self.places - 1)):
                yield fleet.env.timeout(dice.expovariate(1 / self.pause))
                yield fleet.ask(
                    cells(
                        typing["prompt_tokens"],
                        (typing["reused_tokens"], (number, place)),
                        (10**9, (number, place, turn)),
                    ),
                    typing["prompt_tokens"],
                    typing["new_tokens"],
                )
            yield fleet.env.timeout(dice.expovariate(1 / self.between))


def recorded() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Returns the recorded suggestions of the default method, as (cold, typing) at the same cursor."""
    if not _ROWS:
        rows = [line.value for line in read_json_lines(RECORDED) if line.value["method"] == "default"]
        _ROWS.extend((cold, typing) for cold, typing in zip(rows[::2], rows[1::2], strict=True))
    return _ROWS


_ROWS: list[tuple[dict[str, Any], dict[str, Any]]] = []


@dataclass(frozen=True)
class Agents:
    """Agents that answer, call a tool and go on, all with one system prompt.

    system: its tokens; first: least and most further tokens of the first turn; result: of a tool; new: of an answer;
    turns: of a conversation; tool: mean seconds of a tool (assumed)
    """

    system: int = 896
    first: tuple[int, int] = (400, 2100)
    result: tuple[int, int] = (100, 400)
    new: tuple[int, int] = (206, 300)
    turns: int = 12
    tool: float = 5.0

    def client(self, fleet: Fleet, number: int) -> Process:
        """Leads one conversation after another."""
        dice, talk = random.Random(number), 0
        yield fleet.env.timeout(dice.uniform(0, 60))
        while True:
            talk += 1
            tokens = self.system + dice.randint(*self.first)
            for _ in range(dice.randint(1, 2 * self.turns - 1)):
                new = dice.randint(*self.new)
                yield fleet.ask(cells(tokens, (self.system, "system"), (10**9, (number, talk))), tokens, new)
                yield fleet.env.timeout(dice.expovariate(1 / self.tool))
                tokens += new + dice.randint(*self.result)


@dataclass(frozen=True)
class Strangers:
    """Clients who never ask for the same twice: prompts of so many tokens, answers of so many, a mean pause between."""

    tokens: int
    new: int = 128
    pause: float = 60.0

    def client(self, fleet: Fleet, number: int) -> Process:
        """Asks one new prompt after another."""
        dice = random.Random(number)
        yield fleet.env.timeout(dice.uniform(0, self.pause))
        while True:
            tokens = dice.randint(self.tokens // 2, 3 * self.tokens // 2)
            yield fleet.ask([], tokens, self.new)
            yield fleet.env.timeout(dice.expovariate(1 / self.pause))

"""Prefixes on disk: a text that is read once is known to every session of the same models.

Knows engines and prefixes; knows no method and no command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.decoder import Goal
from longgraft.engine.engine import Engine
from longgraft.prefill.prefix_file import Needed, load
from longgraft.prefill.prefixes import TARGET, Cell, Prefixes, PrefixReader, Rows, caches, joined, reported, rows_of
from longgraft.protocol.observation import Observation
from longgraft.runtime.fingerprint import vocabulary

HOST = torch.device("cpu")


@dataclass
class SavingReader(PrefixReader):
    """All of one prompt, of which nothing is known: for the host, so that a device holds nothing beside the caches."""

    reports: list[Rows] = field(default_factory=list)

    @property
    def cell(self) -> int:
        return self.prefixes.cell

    @torch.inference_mode()
    def keep(self, seen: Observation) -> None:
        self.reports.append({name: rows.to(HOST) for name, rows in rows_of(seen, reported(self.memories)).items()})

    @torch.inference_mode()
    def rows(self) -> Cell:
        """Of all that was read."""
        held = caches(self.cache, self.memories).items()
        return Cell({whose: cache.copied(0, self.cache.length, HOST) for whose, cache in held}, joined(self.reports))


def needed(engine: Engine, tokenizer: Any, method: str) -> Needed:
    """What an engine's prefixes hold, and what they belong to."""
    target, memories = engine.target, engine.proposer.memories
    identity = {**target.identity, "tokenizer": vocabulary(tokenizer)}
    held = caches(engine.cache, memories)
    makers = [memory for memory in memories if memory.aligned is not None]
    for whose, memory in zip([name for name in held if name != TARGET], makers, strict=True):
        identity |= {f"{whose} {label}": value for label, value in memory.identity.items()}
    return Needed(identity, list(held), reported(memories), engine.cell, target.vocab_size, target.name, method)


def read(engine: Engine, ids: Sequence[int], tell: Callable[[int], object] = lambda read: None) -> Cell:
    """Rows of all these tokens, on the host.  tell: is given tokens as they are read."""
    whole = partial(SavingReader, Prefixes(0, engine.cell))
    with engine.open(ids, Sampling(), Goal(2), reads=whole) as request:     # with one it would end as it begins
        for step in request:
            tell(step.read)
            if step.tokens:
                break
        assert isinstance(request.reader, SavingReader)
        return request.reader.rows()


def pin(engine: Engine, path: Path, wanted: Needed) -> int:
    """Know what a file holds for as long as the engine lives; its tokens.  ValueError where it is not this engine's."""
    ids, rows = load(path, wanted, engine.target.device)
    if engine.prefixes is None:
        engine.prefixes = Prefixes(0, engine.cell)
    engine.prefixes.pin(ids, rows)
    return len(ids)

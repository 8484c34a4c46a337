"""Prefix files: a text is read once and recalled by every session of the same models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from longgraft.engine.engine import Engine
from longgraft.engine.generation_request import GenerationRequest
from longgraft.prefill.prefix_file import Needed, check_alike, load
from longgraft.prefill.prefixes import (
    FINAL,
    HIDDEN,
    TARGET,
    Cell,
    Prefixes,
    PrefixReader,
    Rows,
    caches,
    joined,
    reported,
    rows_of,
)
from longgraft.protocol.observation import Observation, Wants
from longgraft.runtime.fingerprint import vocabulary
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import ProposalTree

HOST = torch.device("cpu")


@dataclass
class SavingReader(PrefixReader):
    """Collector of all rows of one prompt on the host, so that the device holds only the caches.

    It recalls nothing.
    """

    reports: list[Rows] = field(default_factory=list)

    @property
    def cell(self) -> int:
        return self.prefixes.cell

    @torch.inference_mode()
    def keep(self, seen: Observation) -> None:
        rows = rows_of(seen, reported(self.memories))
        self.reports.append({name: values.to(HOST) for name, values in rows.items()})

    @torch.inference_mode()
    def rows(self) -> Cell:
        """Returns the rows of all tokens read so far, as one cell."""
        held = caches(self.cache, self.memories)
        copies = {owner: cache.copied(0, self.cache.length, HOST) for owner, cache in held.items()}
        return Cell(copies, joined(self.reports))


def needed(engine: Engine, tokenizer: Any, method: str) -> Needed:
    """Returns what an engine's prefixes must hold, and the identity of all that their rows depend on."""
    target = engine.target
    memories = engine.proposer.memories
    identity = {**target.identity, "tokenizer": vocabulary(tokenizer)}
    held = caches(engine.cache, memories)
    owners = [memory for memory in memories if memory.aligned is not None]
    drafters = [name for name in held if name != TARGET]
    for name, memory in zip(drafters, owners, strict=True):
        for label, value in memory.identity.items():
            identity[f"{name} {label}"] = value
    return Needed(identity, list(held), reported(memories), engine.cell, target.vocab_size, target.name, method)


def read(engine: Engine, ids: Sequence[int], tell: Callable[[int], object] = lambda read: None) -> Cell:
    """Reads these tokens and returns their rows on the host.

    Args:
        tell: Called with the number of tokens of each step.
    """
    if engine.cache.stateful:
        raise ValueError(
            f"{engine.target.name} has layers that carry a state from token to token, which a "
            "prefix file does not hold. Prompts that begin alike are read once in a session "
            "that keeps prefixes."
        )
    whole = partial(SavingReader, Prefixes(0, engine.cell))
    # A limit of 1 would finish in the prefill.
    with engine.open(GenerationRequest(ids, 2, client=None), reads=whole) as request:
        for step in request:
            tell(step.read)
            if step.tokens:
                break
        assert isinstance(request.reader, SavingReader)
        return request.reader.rows()


def pin(engine: Engine, path: Path, wanted: Needed) -> int:
    """Pins a file's prefix for the engine's lifetime and returns its length in tokens.

    Raises ValueError if it does not fit.
    """
    ids, rows = load(path, wanted, engine.target.device)
    check_alike(path, rows, _probe(engine.target, ids[0], wanted.wants))
    if engine.prefixes is None:
        engine.prefixes = Prefixes(0, engine.cell)
    engine.prefixes.belong_to(engine.lanes[0].weight_state())
    engine.prefixes.pin(ids, rows)
    return len(ids)


@torch.inference_mode()
def _probe(target: Target, token: int, wants: Wants) -> Cell:
    """Returns what a target's pass makes of one token: its rows, and the reports."""
    cache = target.cache(1)
    (report,) = target.forward([Segment(ProposalTree.root_only(token), cache)], wants)
    cache.keep(torch.arange(1))
    reports = {f"{HIDDEN}{layer}": rows for layer, rows in report.hidden.items()}
    if report.final is not None:
        reports[FINAL] = report.final
    return Cell({TARGET: cache.copied(0, 1)}, reports)

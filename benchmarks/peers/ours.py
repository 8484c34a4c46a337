"""longgraft: its methods on the blocks of a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.peers.answers import Answer, Decode, Setup

if TYPE_CHECKING:
    from longgraft.engine.session import Session

METHODS = "ar", "graft-x-text", "suffix"  # plain decoding, the default on a CPU, and the fastest baseline
WARM_UP = 16  # tokens of a prompt that is read before anything is timed


def methods_of(setup: Setup) -> Iterator[tuple[str, Decode]]:
    """Yields longgraft's methods; the file is loaded for each."""
    import torch

    import longgraft

    torch.set_num_threads(setup.threads)
    for method in setup.methods or METHODS:
        session = longgraft.load(setup.file, method=method, tell=False)
        # What a process does once is done before anything is timed.
        decode(session, 2, range(100, 100 + WARM_UP))
        yield method, partial(decode, session, setup.new)


def decode(session: Session, new: int, ids: Sequence[int]) -> Answer:
    """Continues a prompt greedily."""
    from longgraft.engine.session import answer

    found = answer(session.open(list(ids), new, eos=()), False)
    stats = found.stats
    return Answer(
        stats.prefill_seconds,
        stats.decode_seconds,
        found.token_ids,
        len(found.token_ids),
        steps=stats.steps,
        drafted=sum(stats.proposed_by_depth),
        accepted=sum(stats.accepted_per_step),
    )

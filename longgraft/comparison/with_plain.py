"""Plain decoding of the same target, to compare an answer with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longgraft.acceptance.sampling import Sampling
from longgraft.comparison.levels import first_divergence
from longgraft.engine.engine import Engine
from longgraft.engine.lane import Lane
from longgraft.engine.session import Generation, Session, answer
from longgraft.engine.stats import Stats
from longgraft.methods.combinators import PlainDecoding
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions


def plain_session(session: Session, recorded: bool = False) -> Session:
    """Returns a session for plain decoding of the same target, in the same loop.

    Args:
        session: The session to compare with.
        recorded: True to record its steps in CUDA graphs if the session was to, even if one of the session's regions
            was refused: launched one by one, plain decoding is several times slower.  False to compare tokens with
            passes that share no recording, padding or fused kernel with the session's.
    """
    regions = Regions(session.engine.regions.given) if recorded else EAGER
    lane = Lane(session.target, PlainDecoding(), Clock(), regions)
    return Session(Engine(lane, budget=1, chunk=session.engine.chunk), session.tokenizer)


def compare_with_plain(
    session: Session, ids: Sequence[int], ours: Generation, sampling: Sampling, max_new_tokens: int
) -> dict[str, Any]:
    """Decodes the same prompt plainly; returns the speedup of decoding alone, and if the ids are identical.

    Seconds in which CUDA graphs were recorded do not count, and are returned, too.
    """
    alone = plain_session(session, recorded=True)
    plain = answer(alone.open(list(ids), max_new_tokens, sampling))
    alone.engine.regions.forget()  # recordings and what they run on refer to each other
    tokens = plain.token_ids
    if ours.finish_reason == "stop":  # plain decoding does not look for stop strings, so it may go on
        tokens = tokens[: len(ours.token_ids)]
    divergence = first_divergence(ours.token_ids, tokens)
    return {
        "identical": divergence is None,
        "first_divergence": divergence,
        "recording_seconds": ours.stats.recording_seconds,
        "plain_recording_seconds": plain.stats.recording_seconds,
    } | speeds(ours.stats, plain.stats)


def speeds(ours: Stats, plain: Stats) -> dict[str, float | None]:
    """Returns plain decoding's rate, and the speedup; None if an answer has no step after its first token."""
    rate = ours.replayed_tokens_per_second
    plain_rate = plain.replayed_tokens_per_second
    speedup = rate / plain_rate if rate and plain_rate else None
    return {"plain_tokens_per_second": plain_rate, "speedup": speedup}

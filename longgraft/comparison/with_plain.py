"""Plain decoding of the same target, to compare an answer with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longgraft.acceptance.sampling import Sampling
from longgraft.comparison.levels import first_divergence
from longgraft.engine.engine import Engine
from longgraft.engine.lane import Lane
from longgraft.engine.session import Generation, Session, answer
from longgraft.methods.combinators import PlainDecoding
from longgraft.runtime.clock import Clock


def plain_session(session: Session) -> Session:
    """Returns a session for plain decoding of the same target, in the same loop, on the same kernels.

    With CUDA graphs its steps are recorded, too: launched one by one they would be several times slower.
    """
    lane = Lane(session.target, PlainDecoding(), Clock(), session.engine.regions.anew())
    return Session(Engine(lane, budget=1, chunk=session.engine.chunk), session.tokenizer)


def compare_with_plain(session: Session, ids: Sequence[int], ours: Generation, sampling: Sampling,
                       max_new_tokens: int) -> dict[str, Any]:
    """Decodes the same prompt plainly; returns the speedup of decoding alone, and if the ids are identical.

    Seconds in which CUDA graphs were recorded do not count; `recorded` is True if there were any.
    """
    plain = answer(plain_session(session).open(list(ids), max_new_tokens, sampling))
    tokens = plain.token_ids
    if ours.finish_reason == "stop":        # plain decoding does not look for stop strings, so it may go on
        tokens = tokens[:len(ours.token_ids)]
    divergence = first_divergence(ours.token_ids, tokens)
    rate = ours.stats.replayed_tokens_per_second
    plain_rate = plain.stats.replayed_tokens_per_second
    return {"identical": divergence is None, "first_divergence": divergence,
            "plain_tokens_per_second": plain_rate, "recorded": plain.stats.recording_seconds > 0,
            "speedup": rate / plain_rate if plain_rate else 0.0}

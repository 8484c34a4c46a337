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
    """Returns a session for plain decoding of the same target, in the same loop, on the same kernels."""
    lane = Lane(session.target, PlainDecoding(), Clock())
    return Session(Engine(lane, budget=1, chunk=session.engine.chunk), session.tokenizer)


def compare_with_plain(session: Session, ids: Sequence[int], ours: Generation, sampling: Sampling,
                       max_new_tokens: int) -> dict[str, Any]:
    """Decodes the same prompt plainly; returns the speedup of decoding alone, and if the ids are identical."""
    theirs = answer(plain_session(session).open(list(ids), max_new_tokens, sampling))
    # Plain decoding does not look for stop strings, so its answer may be longer.
    tokens = theirs.token_ids[:len(ours.token_ids)] if ours.finish_reason == "stop" else theirs.token_ids
    at = first_divergence(ours.token_ids, tokens)
    rate, plain = ours.stats.decode_tokens_per_second, theirs.stats.decode_tokens_per_second
    return {"identical": at is None, "first_divergence": at, "plain_tokens_per_second": plain,
            "speedup": rate / plain if plain else 0.0}

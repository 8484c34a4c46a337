"""The costs of a pair on this machine: its passes, and what a step of the default method costs besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longgraft.budget.cost_measurement import measure
from longgraft.budget.cost_model import Costs
from longgraft.loading import Loaded

PARTS = ("draft", "verify", "accept")       # of a step's seconds, that passes, levels and feeding hold already
PROMPT, ANSWER = 256, 33        # tokens that are read and written to see what a step costs besides


def measured(loaded: Loaded, prefixes: Sequence[int], seconds: float) -> Costs:
    """Where positions allow no answer behind the prompt, or it ends at once, nothing is known of the rest."""
    found = measure(loaded.target, loaded.parts.head, prefixes, seconds, loaded.parts.regions)
    session = loaded.session()
    read = min(PROMPT, min(session.engine.limits.values()) - ANSWER)
    if read < 1:
        return found
    stats = session.generate([token % loaded.target.vocab_size for token in range(read)], ANSWER).stats
    besides = sum(spent for part, spent in stats.seconds_by_part.items() if part not in PARTS)
    return replace(found, host=besides / max(1, stats.steps))

"""Figures of one request in the fields of other servers: llama.cpp's timings, vLLM's metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any

from longgraft.engine.stats import Stats

MILLI = 1000.0


def timings(stats: Stats) -> dict[str, float]:
    """Returns tokens and milliseconds of prompt and answer, as llama.cpp counts them.

    Its cache_n are the reused tokens of the prompt.
    """
    read = stats.prompt_tokens - stats.reused_tokens
    figures: dict[str, float] = {"cache_n": stats.reused_tokens}
    for name, tokens, seconds in (
        ("prompt", read, stats.prefill_seconds),
        ("predicted", stats.new_tokens, stats.decode_seconds),
    ):
        figures |= {
            f"{name}_n": tokens,
            f"{name}_ms": MILLI * seconds,
            f"{name}_per_token_ms": _ratio(MILLI * seconds, tokens),
            f"{name}_per_second": _ratio(tokens, seconds),
        }
    return figures | {"draft_n": sum(stats.proposed_by_depth), "draft_n_accepted": sum(stats.accepted_per_step)}


def metrics(stats: Stats) -> dict[str, Any]:
    """Returns vLLM's metrics.speculative_decoding, which only counts steps with proposals, and the counts by position.

    Of a tree all nodes are proposed tokens, and their depths are the positions.
    """
    plain = stats.kinds.get("plain", 0)
    steps = stats.steps - plain
    accepted = sum(stats.accepted_per_step)
    proposed = sum(stats.proposed_by_depth)
    lengths = Counter(stats.accepted_per_step) - Counter({0: plain})
    histogram = [lengths[length] for length in range(max(lengths, default=0) + 1)]
    by_position = []
    for position in range(len(stats.proposed_by_depth)):
        by_position.append(sum(length > position for length in stats.accepted_per_step))
    return {
        "speculative_decoding": {
            "mean_acceptance_length": 1.0 + _ratio(accepted, steps),
            "draft_acceptance_rate": _ratio(accepted, proposed),
            "num_spec_steps": steps,
            "num_draft_tokens": proposed,
            "num_accepted_draft_tokens": accepted,
            "acceptance_histogram": histogram,
            "num_draft_tokens_per_pos": list(stats.proposed_by_depth),
            "num_accepted_tokens_per_pos": by_position,
        }
    }


def _ratio(count: float, total: float) -> float:
    return count / total if total else 0.0

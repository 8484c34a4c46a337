"""The positions that a configuration allows, lengthened as its rotary scaling says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Families whose configurations state the lengthened context beside a linear factor.
LENGTHENED = ("gemma3", "gemma3_text")


def most_positions(config: Any) -> int | None:
    """Returns the number of positions that a model allows; None if its configuration states none.

    Args:
        config: A model's configuration.
    """
    text = config.get_text_config(decoder=True)
    stated = getattr(text, "max_position_embeddings", None)
    if stated is None:
        return None
    rope = getattr(text, "rope_parameters", None) or {}
    # Families whose kinds of layers rotate differently have parameters for each kind.
    scalings = [part for part in rope.values() if isinstance(part, Mapping)] or [rope]
    original = None if text.model_type in LENGTHENED else stated
    positions = []
    for scaling in scalings:
        kind = scaling.get("rope_type", "default")
        before = scaling.get("original_max_position_embeddings") or original
        positions.append(lengthened(int(stated), kind, scaling.get("factor"), before))
    return max(positions)


def lengthened(stated: int, kind: str, factor: float | None, original: int | None) -> int:
    """Returns the positions after a rotary scaling: `original` times `factor`, or more if more are stated.

    Llama 3's factor may be larger than what the context was lengthened by, so a stated length other than
    the original one counts.

    Args:
        stated: `max_position_embeddings`.
        kind: Type of the scaling; other ones than yarn, linear and llama3 lengthen nothing.
        factor: Its factor; None: nothing is lengthened.
        original: Positions before the scaling; None: nothing is lengthened.
    """
    if kind not in ("yarn", "linear", "llama3") or not factor or not original:
        return stated
    if kind == "llama3" and stated != original:
        return stated
    return max(stated, int(original * factor))

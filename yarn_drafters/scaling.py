"""Reads the rotary embedding from a head's config.json, whose fields mean different things in different layouts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from longgraft.config.options import Count, Positive, checked
from longgraft.target_model.positions import lengthened
from longgraft.yarn_drafters.rope import Rope

NEEDED = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
}


def scaling(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns rope_scaling, or rope_parameters of transformers v5, always with a rope_type."""
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    settings = checked(config.get(name), dict | None, name) or {}
    return settings | {
        "rope_type": checked(settings.get("rope_type") or settings.get("type") or "default", str, "rope_type")
    }


def rope_of(config: Mapping[str, Any], layout: str) -> Rope:
    """Returns the rotary embedding; its base depends on the layout.

    EAGLE, AngelSlim and SpecPV always trained at base 10000.  Speculators, and SpecForge since 2025-10-30,
    trained at the config's base, or 10000 if it has none.  Earlier SpecForge heads look the same and need
    HeadOverrides(rope_base=10000.0).
    """
    settings = scaling(config)
    kind = settings["rope_type"]
    if kind not in NEEDED:
        raise ValueError(f"The head's rope type is {kind!r}. Known: {', '.join(NEEDED)}.")
    missing = [key for key in NEEDED[kind] if settings.get(key) is None]
    if missing:
        raise ValueError(
            f"The head's {kind} rope has no {', '.join(missing)}. Add what it was trained with "
            "to rope_scaling in config.json."
        )
    values: dict[str, Any] = {key: checked(settings[key], Positive, key) for key in NEEDED[kind]}
    if "original_max_position_embeddings" in values:
        values["original"] = checked(
            values.pop("original_max_position_embeddings"), Count, "original_max_position_embeddings"
        )
    if kind == "yarn":
        for key in ("beta_fast", "beta_slow"):
            values[key] = checked(_first(settings.get(key), getattr(Rope, key)), Positive, key)
        values["attention_factor"] = _attention_factor(settings, layout)
    base = 10000.0
    if layout not in ("eagle3", "angelslim", "specpv"):
        stated = _first(config.get("rope_theta"), settings.get("rope_theta"), base)
        base = checked(stated, Positive, "rope_theta")
    return Rope(base, kind, **values)


def _first(*values: Any) -> Any:
    """Returns the first value that is stated; a wrong one, such as 0, is not replaced by a default."""
    return next(value for value in values if value is not None)


def positions_of(stated: int, rope: Rope) -> int:
    """Returns the positions of a head; the configuration of a linear scaling does not tell what it lengthens."""
    if rope.kind == "linear":
        return stated
    return lengthened(stated, rope.kind, rope.factor, rope.original)


def _attention_factor(settings: Mapping[str, Any], layout: str) -> float | None:
    """Returns SpecForge's mscale / mscale_all_dim ratio, transformers' attention_factor, or None for YaRN's default.

    SpecForge takes 0 for a missing mscale_all_dim; transformers ignores an mscale without one.
    """
    if settings.get("attention_factor") is not None:
        return checked(settings["attention_factor"], Positive, "attention_factor")
    stated = {key: settings.get(key) for key in ("mscale", "mscale_all_dim")}
    if layout == "specforge" and stated["mscale_all_dim"] is None:
        stated["mscale_all_dim"] = 0.0
    if None in stated.values():
        return None
    scale, all_dims = (
        0.1 * checked(value, float, key) * math.log(settings["factor"]) + 1.0 for key, value in stated.items()
    )
    if not (scale > 0 and all_dims > 0):
        raise ValueError(
            f"mscale {stated['mscale']} and mscale_all_dim {stated['mscale_all_dim']} scale the head's attention by a "
            "factor that is not positive. Write what it was trained with."
        )
    return scale / all_dims

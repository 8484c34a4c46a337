"""Reads the rotary embedding from a head's config.json, whose fields mean different things in different layouts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from longgraft.config.options import Count, Positive, checked
from longgraft.target_model.positions import lengthened
from longgraft.yarn_drafters.rope import Rope

NEEDED = {"default": (), "linear": ("factor",), "yarn": ("factor", "original_max_position_embeddings"),
          "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor")}


def scaling(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns rope_scaling, or rope_parameters of transformers v5, always with a rope_type."""
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    given = checked(config.get(name), dict | None, name) or {}
    return given | {"rope_type": checked(given.get("rope_type") or given.get("type") or "default", str, "rope_type")}


def rope_of(config: Mapping[str, Any], layout: str) -> Rope:
    """Returns the rotary embedding; its base depends on the layout.

    EAGLE, AngelSlim and SpecPV always trained at base 10000.  Speculators, and SpecForge since 2025-10-30, trained at
    the config's base, or 10000 if it has none.  Earlier SpecForge heads look the same and need
    HeadOverrides(rope_base=10000.0).
    """
    given = scaling(config)
    kind = given["rope_type"]
    if kind not in NEEDED:
        raise ValueError(f"The head's rope type is {kind!r}. Known: {', '.join(NEEDED)}.")
    if missing := [key for key in NEEDED[kind] if given.get(key) is None]:
        raise ValueError(f"The head's {kind} rope has no {', '.join(missing)}. Add what it was trained with to "
                         "rope_scaling in config.json.")
    found: dict[str, Any] = {key: checked(given[key], Positive, key) for key in NEEDED[kind]}
    if "original_max_position_embeddings" in found:
        found["original"] = checked(found.pop("original_max_position_embeddings"), Count,
                                   "original_max_position_embeddings")
    if kind == "yarn":
        for key in ("beta_fast", "beta_slow"):
            found[key] = checked(given.get(key) or getattr(Rope, key), Positive, key)
        found["attention_factor"] = _attention_factor(given)
    base = 10000.0
    if layout not in ("eagle3", "angelslim", "specpv"):
        base = checked(config.get("rope_theta") or given.get("rope_theta") or base, Positive, "rope_theta")
    return Rope(base, kind, **found)


def positions_of(stated: int, rope: Rope) -> int:
    """Returns the positions of a head; the configuration of a linear scaling does not tell what it lengthens."""
    return stated if rope.kind == "linear" else lengthened(stated, rope.kind, rope.factor, rope.original)


def _attention_factor(given: Mapping[str, Any]) -> float | None:
    """Returns SpecForge's mscale / mscale_all_dim ratio, transformers' attention_factor, or None for YaRN's default."""
    if given.get("attention_factor") is not None:
        return checked(given["attention_factor"], Positive, "attention_factor")
    if given.get("mscale") is None or given.get("mscale_all_dim") is None:
        return None
    one, all_dims = (0.1 * checked(given[key], float, key) * math.log(given["factor"]) + 1.0
                     for key in ("mscale", "mscale_all_dim"))
    if not (one > 0 and all_dims > 0):
        raise ValueError(f"mscale {given['mscale']} and mscale_all_dim {given['mscale_all_dim']} scale the head's "
                         "attention by a factor that is not positive. Write what it was trained with.")
    return one / all_dims

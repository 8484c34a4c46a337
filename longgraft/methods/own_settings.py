"""Settings in a method's name, `method+setting=value`: its own choices, and fields of `MethodSettings`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from longgraft.config.method_syntax import joined, split
from longgraft.config.options import options
from longgraft.config.settings import MethodSettings, Settings
from longgraft.methods.find import find

# Fields of `MethodSettings`, and the fields of `Settings` that they replace for one method.
REPLACES = {"budget": "budget", "levels": "draft_levels", "top_k": "draft_top_k", "window": "draft_window",
            "depth": "retrieved_depth", "width": "retrieved_width", "online": "online"}


def own_settings(name: str) -> tuple[str, dict[str, Any]]:
    """Returns (the method's name with its own choices, values of `MethodSettings` by field).

    Raises:
        ValueError: a setting is unknown, out of range, or not read by this method.
    """
    bare, texts = split(name)
    method, known = find(bare), options(MethodSettings)
    choices = {one.name: texts[one.name] for one in method.own if one.name in texts}
    values = {}
    for key, text in texts.items():
        if key in choices:
            continue
        if key not in known or not text:
            settings = ", ".join([f"{key}={'NAME' if one.kind is str else 'NUMBER'}" for key, one in known.items()]
                                 + [f"{one.name}=..." for one in method.own])
            raise ValueError(f"{f'{key}={text}'!r} in {name!r} is no setting. Known: {settings}.")
        if key not in method.takes:
            raise ValueError(f"{name!r}: {bare} does not read {key}. It reads {', '.join(sorted(method.takes))}.")
        try:
            values[key] = known[key].parse(text)
            known[key].check(values[key])
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from error
    return joined(bare, choices), values


def with_own_settings(settings: Settings) -> Settings:
    """Replaces the session's settings by those in the method's name."""
    if not isinstance(settings.method, str):
        return settings
    method, values = own_settings(settings.method)
    if names := [key for key in values if key not in REPLACES]:
        raise ValueError(f"{settings.method!r}: {names[0]} names a calibration of a sweep. Give --calibration FILE.")
    own = {REPLACES[key]: value for key, value in values.items() if value is not None}
    return replace(settings, method=method, **own)

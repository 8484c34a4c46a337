"""The plan of a session; settings in a method's name, `method+setting=value`, are its choices and `MethodSettings`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longgraft.config.method_syntax import joined, split
from longgraft.config.options import options
from longgraft.config.settings import MethodSettings, Settings
from longgraft.methods.find import Method, find
from longgraft.methods.needs import check_given
from longgraft.models.targets import ModelSource, resolve

# Fields of `MethodSettings`, and the fields of `Settings` that they replace for one method.
REPLACES = {"budget": "budget", "levels": "draft_levels", "top_k": "draft_top_k", "window": "draft_window",
            "depth": "retrieved_depth", "width": "retrieved_width"}


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
            takes = ", ".join(sorted(method.takes)) or "no settings"
            raise ValueError(f"{name!r}: {bare} does not read {key}. It reads {takes}.")
        try:
            values[key] = known[key].parse(text)
            known[key].check(values[key])
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from error
    return joined(bare, choices), values


@dataclass(frozen=True)
class LoadPlan:
    """All choices of a session, made before anything is read: from here on, no setting changes.

    Attributes:
        source: The target's source.
        drafter: Hub id or folder of an EAGLE-3 head; AUTO: the known one of this target; None: none.
        method: The requested method, with its choices.
        settings: The settings; those of the method's name have replaced the session's.
    """

    source: ModelSource
    drafter: str | Path | None
    method: Method
    settings: Settings

    @classmethod
    def of(cls, model: Any, drafter: str | Path | None, settings: Settings) -> LoadPlan:
        """Resolves the arguments of `load`; raises ValueError if a name or a setting is wrong."""
        if isinstance(name := settings.method, str):
            name, values = own_settings(name)
            if sweeps := [key for key in values if key not in REPLACES]:
                raise ValueError(f"{settings.method!r}: {sweeps[0]} names a calibration of a sweep. Give --calibration "
                                 "FILE.")
            own = {REPLACES[key]: value for key, value in values.items() if value is not None}
            settings = replace(settings, method=name, **own)
        method = find(name)
        check_given(settings.given, method.needs)
        return cls(resolve(model), None if drafter == "none" else drafter, method, settings)

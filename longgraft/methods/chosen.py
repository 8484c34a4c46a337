"""The chosen method; settings in a method's name, `method+setting=value`, are its choices and VARIANT_SETTINGS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from longgraft.config.method_syntax import joined, split
from longgraft.config.options import Option, options
from longgraft.config.settings import Drafting, Retrieving, Settings
from longgraft.methods.find import Method, find
from longgraft.methods.find import known as every
from longgraft.methods.needs import check_given

# Settings that may follow a method's name besides its own choices.  thresholds and warm are names of a sweep's
# calibrations; "none" is the empty one.
VARIANT_SETTINGS = {
    "budget": options(Settings)["budget"],
    "thresholds": Option("Thresholds of this calibration", name="thresholds", hint=str),
    "warm": Option("The matrix begins with this calibration's rows", name="warm", hint=str),
}


def own_settings(name: str) -> tuple[str, dict[str, Any]]:
    """Returns (the method's name with its own choices, values of VARIANT_SETTINGS by name).

    Raises:
        ValueError: a setting is unknown, out of range, or not read by this method.
    """
    bare, texts = split(name)
    method = find(bare)
    choices = {one.name: texts[one.name] for one in method.own if one.name in texts}
    others = {key: text for key, text in texts.items() if key not in choices}
    try:
        method.choosing(choices)
        for key, text in others.items():
            _check_known(key, text, method)
        values = {key: VARIANT_SETTINGS[key].parse(text) for key, text in others.items()}
        for key, value in values.items():
            VARIANT_SETTINGS[key].check(value)
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from error
    return joined(bare, choices), values


def _check_known(key: str, text: str, method: Method) -> None:
    """Raises ValueError if a setting is unknown, has no value, or is not read by the method."""
    bounds = {**options(Drafting), **options(Retrieving)}
    if not text or (key not in VARIANT_SETTINGS and key not in bounds):
        settings = ", ".join(
            [f"{key}={'NAME' if one.kind is str else 'NUMBER'}" for key, one in VARIANT_SETTINGS.items()]
            + [f"{one.name}=..." for one in method.own]
        )
        raise ValueError(f"{f'{key}={text}'!r} is no setting. Known: {settings}.")
    if key not in method.takes:
        reads = ", ".join(sorted({*method.takes, *method.bounds})) or "no settings"
        readers = ", ".join(other.name for other in every().values() if key in other.bounds)
        also = f" These methods read {key}: {readers}." if readers else ""
        raise ValueError(f"{method.name} does not read {key}. It reads {reads}.{also}")


def chosen_method(settings: Settings) -> tuple[Method, Settings]:
    """Finds the method that settings name, before anything is read.

    Returns:
        The method with its choices, and the settings, in which the values of the method's name have replaced the
        session's.  From here on, no setting changes.

    Raises:
        ValueError: a name or a setting is wrong.
    """
    name, budget = settings.method, settings.budget
    if isinstance(name, str):
        name, values = own_settings(name)
        sweeps = [key for key in values if key != "budget"]
        if sweeps:
            raise ValueError(
                f"{settings.method!r}: {sweeps[0]} names a calibration of a sweep. Give --calibration FILE."
            )
        if values.get("budget") is not None:
            budget = values["budget"]
    method = find(name)
    check_given(settings.given, method.needs)
    return method, replace(settings, method=name, budget=budget)

"""The syntax of a method's name with its settings: `name+setting=value...`."""

from __future__ import annotations

import re

# FILE.py: or MODULE: before an object.  A path may hold @ or +, but not +name=, because a setting may name a file, too.
PLACE = re.compile(r"((?:(?!\+\w+=).)*\.py:|[\w.]+:)?")
SETTING = re.compile(r"\+(?=\w+=)")  # a name may itself hold a +


def split(name: str) -> tuple[str, dict[str, str]]:
    """Returns (the name before the settings, the settings as texts)."""
    place = PLACE.match(name)[0]  # type: ignore[index]
    bare, *settings = SETTING.split(name[len(place) :])
    return place + bare, dict(setting.split("=", 1) for setting in settings)


def joined(name: str, settings: dict[str, str]) -> str:
    """Does the inverse of `split`."""
    return name + "".join(f"+{key}={text}" for key, text in settings.items())

"""Writes options as TOML."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

from longgraft.config.options import options


def describe(*groups: Any) -> list[str]:
    """Returns settings as lines of TOML that `read_table` can read; None becomes a comment."""
    lines = []
    for group in groups:
        for name, described in options(type(group)).items():
            value = getattr(group, name)
            if is_dataclass(value) and value == described.kind():
                continue
            if value is None:
                lines.append(f"# {name}: {described.none or 'not set'}")
                continue
            unit = f"   # {described.unit}" if described.unit else ""
            lines.append(f"{name} = {_toml(value)}{unit}")
    return lines


def _toml(value: Any) -> str:
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
        value = {name: item for name, item in value.items() if item is not None}
    if isinstance(value, dict):
        pairs = [f"{json.dumps(str(name), ensure_ascii=False)} = {_toml(item)}" for name, item in value.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)

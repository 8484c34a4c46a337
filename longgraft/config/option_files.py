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
        for name, one in options(type(group)).items():
            value = getattr(group, name)
            if is_dataclass(value) and value == one.kind():
                continue
            unit = f"   # {one.unit}" if one.unit else ""
            lines.append(f"# {name}: {one.none or 'not set'}" if value is None else f"{name} = {_toml(value)}{unit}")
    return lines


def _toml(value: Any) -> str:
    if is_dataclass(value):
        value = {f.name: item for f in fields(value) if (item := getattr(value, f.name)) is not None}
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(k), ensure_ascii=False)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)

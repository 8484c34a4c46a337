"""Files of options: reads TOML and JSON, writes TOML."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from longgraft.config.file_errors import reason
from longgraft.config.json_input import parse_json
from longgraft.config.options import options, shortened


def read_table(path: Path) -> dict[str, Any]:
    """Returns the table in a TOML file (by its suffix) or a JSON file; raises ValueError if it is neither."""
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text) if path.suffix == ".toml" else parse_json(text, f"File {path}")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"File {path} cannot be read: {reason(error)}. Give a TOML or "
                         "JSON file.") from error
    if not isinstance(table, dict):
        raise ValueError(f"File {path} holds {shortened(table)}; a table of options is needed.")
    return table


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

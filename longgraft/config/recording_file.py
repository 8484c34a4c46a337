"""A recorded continuation from a file: text, or token ids."""

from __future__ import annotations

import json
from pathlib import Path

from longgraft.config.file_errors import reason
from longgraft.config.json_input import whole


def read_recording(path: Path) -> str | list[int]:
    """Returns the text of a file, or the token ids of its JSON list.

    Raises:
        ValueError: a JSON list or object holds something else; replayed as text, its brackets would be tokens.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"File {path} cannot be read: {reason(error)}.") from error
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply to be read.") from error
    except ValueError:
        return text
    if isinstance(found, list) and found and all(map(whole, found)):
        return found
    if isinstance(found, list | dict):
        raise ValueError(f"{path} holds {json.dumps(found)[:40]}. A recorded continuation is text, or one JSON list of "
                         "token ids such as [11, 42, 7].")
    return text

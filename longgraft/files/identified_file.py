"""Safetensors files that name what they belong to.

They are written whole or not at all, and the names are compared before the tensors are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from longgraft.files.data_files import parse_object
from longgraft.files.file_errors import reason
from longgraft.files.whole_files import written_whole

MODEL = "model"  # key of an identity that names the model for people, and is not compared
# (file, a clause with the reason) -> the error, which says what to do.
Unfit = Callable[[Path, str], ValueError]


def save_identified(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str], identity: Mapping[str, str]
) -> None:
    """Writes the file.

    Args:
        about: Further texts, such as a version.
        identity: What the tensors belong to, by name.
    """
    from safetensors.torch import save_file

    with written_whole(path) as part:
        save_file(dict(tensors), part, {**about, "identity": json.dumps(dict(identity))})


def read_identified(
    path: Path, identity: Mapping[str, str], version: str, unfit: Unfit
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Returns (the texts, the memory-mapped tensors) of a file of this version that belongs to this identity."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = dict(file.metadata() or {})
            stored = {**parse_object(about["identity"], "its identity"), "version": about["version"]}
            loaded = {**identity, "version": version}
            # Compared before the tensors are read: another vocabulary is another identity, not a broken file.
            differing = [key for key in loaded if key != MODEL and stored.get(key) != loaded[key]]
            tensors = {}
            if not differing:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise unfit(path, f"cannot be read: {reason(error)}") from error
    if differing:
        key = differing[0]
        if MODEL in loaded:
            made_for = f"model {stored[MODEL]!r}" if MODEL in stored else "a model that it does not name"
            raise unfit(path, f"was made for {made_for}, and {loaded[MODEL]!r} has another {key}")
        raise unfit(path, f"belongs to {key} {stored.get(key)!r}, and {loaded[key]!r} is loaded")
    return about, tensors

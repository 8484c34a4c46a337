"""Files that are written whole or not at all, and files of rows that are appended whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longgraft.files.file_errors import reason

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yields a path beside this one.  The block writes a file or folder there, which is then renamed to `path`.

    A link at `path` stays one, and what it leads to is replaced.  What is replaced keeps its permissions.  The block
    does nothing but write: its errors become errors of writing, and leave what is at `path` as it was.

    Raises:
        ValueError: It cannot be written; the message names `path`.
    """
    from safetensors import SafetensorError

    place = Path(os.path.realpath(path))
    part = place.with_name(f"{place.name}.{os.getpid()}.partial")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        yield part
        if place.exists():
            shutil.copymode(place, part)
        part.replace(place)
    except (OSError, SafetensorError) as error:
        raise _unwritable(path, error) from error
    except RuntimeError as error:  # torch.save raises one after an OSError of its file
        raise _unwritable(path, error.__context__ or error) from error
    finally:
        _remove(part)


def write_whole(path: Path, text: str) -> None:
    """Writes a UTF-8 file, whole or not at all; raises ValueError if it cannot be written."""
    with written_whole(path) as part:
        part.write_text(text, encoding="utf-8", newline="")


def write_weights(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Writes config.json and model.safetensors, both or neither; raises ValueError if they cannot be written."""
    from safetensors.torch import save_file

    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with written_whole(folder / "model.safetensors") as part:
        save_file(whole, part, {"format": "pt"})
        write_whole(folder / "config.json", json.dumps(config, indent=1) + "\n")


class RowFile:
    """A file to which rows are appended.

    Each row is on the disk when `append` returns.  A row that does not fit is cut off again, so the rows before it
    stay whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - held until it is closed
        except OSError as error:
            raise _unwritable(path, error) from error

    @property
    def size(self) -> int:
        """Its bytes."""
        return os.fstat(self._file.fileno()).st_size

    def append(self, row: str) -> None:
        """Appends a row, and the line feed after it; raises ValueError if there is no room."""
        before = self.size
        left = memoryview(row.encode() + b"\n")
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(before)
            raise _unwritable(self.path, error, "The rows before are kept. " if before else "") from error

    def close(self) -> None:
        self._file.close()


def _remove(part: Path) -> None:
    if part.is_dir():
        shutil.rmtree(part, ignore_errors=True)
    elif part.exists():
        part.unlink()


def _unwritable(path: Path, error: BaseException, kept: str = "") -> ValueError:
    return ValueError(f"{path} cannot be written: {reason(error)}. {kept}Make room, or give another place.")

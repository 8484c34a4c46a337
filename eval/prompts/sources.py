"""Sources of rows: a local folder, one file, or the hub.  Every row carries its place, which errors name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from longgraft.eval.prompts.catalogue import SUITES, WHOLE_SUITES, Suite
from longgraft.files.data_files import GZIP_ERRORS, checked_object, opener, parse_json, read_text
from longgraft.files.json_lines import read_json_lines
from longgraft.models.hub import hub_answers, offline

Row = dict[str, Any]

IDS = ("_id", "id", "question_id", "task_id", "prompt_id")
SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
INSTEAD = f"Give the path of a JSONL file, or one of the suites {WHOLE_SUITES}."


class PlacedRow(NamedTuple):
    """A row and its place."""

    place: str  # "NAME, line 3", for messages
    row: Row


def is_path(name: str) -> bool:
    """Returns whether the name of a suite is the path of a file, compressed or not."""
    return name.removesuffix(".gz").endswith(SUFFIXES)


def stem_of(path: str | Path) -> str:
    """Returns a file's name without its endings; "answers" for answers.jsonl.gz."""
    return Path(str(path).removesuffix(".gz")).stem


def files_of(suite: str) -> list[str]:
    """Returns the file names and patterns in a local folder that count as a suite; the first that exists is used."""
    names = [f"{suite}.jsonl", f"eagle_{suite}.jsonl", f"{suite}.parquet"]
    if suite in SUITES:
        names.extend(SUITES[suite].files)
    return list(dict.fromkeys(names))


def local_files(name: str, data: Path | None) -> list[Path]:
    """Returns the files of a suite: the path that it is, or those in a local folder.

    Several are the parts of one Parquet table.

    Returns:
        [] if neither a path nor a folder is given: the rows are on the hub.

    Raises:
        ValueError: a given folder lacks the suite.
    """
    if is_path(name):
        return [Path(name)]
    if data is None:
        return []
    folder = Path(data)
    wanted = files_of(name)
    if not folder.is_dir():
        raise ValueError(f"The data folder {folder} does not exist. Give one that holds {wanted[0]}.")
    for pattern in wanted:
        paths = [folder / pattern]
        if "*" in pattern:
            paths = sorted(folder.glob(pattern))
        if paths and paths[0].is_file():
            return paths
    raise ValueError(_lacks(name, folder, wanted))


def _lacks(name: str, folder: Path, wanted: Sequence[str]) -> str:
    names = sorted(path.name for path in folder.glob("*.jsonl"))
    present = ", ".join(names) or "none"
    hub = ""
    if name in SUITES and SUITES[name].hub:
        hub = ", or leave out --data to load it from the hub"
    return (
        f"Suite {name!r} is not in {folder}: looked for {', '.join(wanted)}; its JSONL files: {present}.\n"
        f"Put one of these there, give the path of a JSONL file as the suite{hub}."
    )


def read_rows(path: Path) -> list[PlacedRow]:
    """Returns every row of a JSONL file, a JSON list (LongBench v2's form) or a Parquet table.

    Raises:
        ValueError: the file cannot be read or has no rows, or a row is no JSON object.
    """
    if path.suffix == ".parquet":
        rows = _parquet_rows(path)
    elif path.name.removesuffix(".gz").endswith(".json") and _holds_list(path):
        rows = _list_rows(path)
    else:
        lines = read_json_lines(path, INSTEAD)
        rows = [PlacedRow(line.place, checked_object(line.value, line.place)) for line in lines]
    if not rows:
        raise ValueError(f"{path} has no rows.")
    return rows


def _holds_list(path: Path) -> bool:
    """Returns whether a JSON file is one list; a file that cannot be read is left to the reader of lines to report."""
    try:
        with opener(path)(path, "rb") as file:
            return file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    except (OSError, *GZIP_ERRORS):
        return False


def _list_rows(path: Path) -> list[PlacedRow]:
    rows = []
    for number, value in enumerate(parse_json(read_text(path, INSTEAD), str(path)), 1):
        place = f"{path}, row {number}"
        rows.append(PlacedRow(place, checked_object(value, place)))
    return rows


def _parquet_rows(path: Path) -> list[PlacedRow]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(path).read()
    except (OSError, pyarrow.ArrowException) as error:
        first_line = str(error).partition("\n")[0]
        raise ValueError(f"File {path} cannot be read as a Parquet table: {first_line} {INSTEAD}") from error
    return [PlacedRow(f"{path}, row {number}", row) for number, row in enumerate(table.to_pylist(), 1)]


def text_of(where: str, row: Row, columns: Sequence[str]) -> str:
    """Returns the first of these columns that exists; raises ValueError if there is none or it holds no text."""
    for column in columns:
        if column in row:
            break
    else:
        raise ValueError(f"{where}: column {' or '.join(columns)} is missing. Columns found: {', '.join(row)}.")
    text = row[column]
    if not isinstance(text, str):
        raise ValueError(f"{where}: column {column} must be text; it is {type(text).__name__}.")
    return text


def identity_of(where: str, row: Row) -> str | None:
    """Returns a row's own id as text, from the first column that has one; None if no column has."""
    for column in IDS:
        identity = row.get(column)
        if identity is None:
            continue
        if type(identity) not in (str, int):
            raise ValueError(f"{where}: {column} must be text or a whole number; it is {json.dumps(identity)[:40]}.")
        return str(identity)
    return None


def hub_rows(name: str, suite: Suite) -> list[PlacedRow]:
    """Returns every row of a suite on the hub; a ValueError says what was looked for and how to do without the hub."""
    instead = f"Give a folder (--data) that holds {name}.jsonl, or the path of a JSONL file as the suite."
    if not suite.hub:
        raise ValueError(f"Suite {name!r} is not on the hub. Download it from {suite.source}. {instead}")
    repository, configuration, split = suite.hub
    place = ", ".join(part for part in (repository, configuration, f"split {split}") if part)
    online = hub_answers()
    network = nullcontext() if online else offline()
    try:
        with network:
            rows = _load(repository, configuration, split)
            return [PlacedRow(f"{place}, row {number}", dict(row)) for number, row in enumerate(rows, 1)]
    # The hub's client, its transport and its parsers each raise their own classes.
    except Exception as error:
        why = "the hub does not answer, and this machine has no copy of it."
        if online:
            first_line = str(error).partition("\n")[0]
            why = f"{type(error).__name__}: {first_line}"
        raise ValueError(f"Suite {name!r} could not be loaded from the hub ({place}): {why}\n{instead}") from error


def _load(repository: str, configuration: str, split: str) -> Any:
    import datasets

    arguments = [repository]
    if configuration:
        arguments.append(configuration)
    try:
        return datasets.load_dataset(*arguments, split=split)
    except RuntimeError as error:
        # LongBench is a script on the hub, which datasets 4 and later refuse; they can read its archive.
        if "script" not in str(error):
            raise
        archive = f"zip://data/{configuration}.jsonl::hf://datasets/{repository}/data.zip"
        return datasets.load_dataset("json", data_files=archive, split="train")

"""Evaluation prompts by name: LongBench and LongBench v2, PG-19, Spec-Bench, EAGLE's question sets, SPEED-Bench, and
any JSONL file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from longgraft.eval.prompts.catalogue import SUITES, WHOLE_SUITES, Suite
from longgraft.eval.prompts.example import Example, turn_id
from longgraft.eval.prompts.layouts import Parts, edit_columns, is_choice, parts_of
from longgraft.eval.prompts.recordings import Recorded
from longgraft.eval.prompts.sources import (
    PlacedRow,
    Row,
    hub_rows,
    identity_of,
    is_path,
    local_files,
    read_rows,
    stem_of,
    text_of,
)
from longgraft.files.data_files import parse_object, read_text

__all__ = ["SUITES", "Example", "load_suite"]

LONGBENCH_V2 = "longbench_v2"
# The text on the hub in place of prompts that SPEED-Bench's sources do not let it pass on.
WITHHELD = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
FETCH = (
    "Run `python prepare_data.py --dataset speed --config all` in NVIDIA/Model-Optimizer's examples/specdec_bench "
    "and give its folder data/speed as --data. NeMo Skills' prepare.py works, too."
)


def load_suite(name: str, data: Path | None = None, recorded: Sequence[Path] = ()) -> list[Example]:
    """Returns all prompts of a suite, in its own order.

    Args:
        name: One of SUITES, the stem of a JSONL file in `data`, or the path of any JSONL file.
        data: Folder of the suite's file (`files_of`) and, if they exist, longbench_prompts.json, meta.jsonl (true
            continuations) and recorded.jsonl; None: the hub.
        recorded: More JSONL files of {_id, continuation[, model, suite]}, replayed before all others.  Without a model,
            the file's stem is its name; with a suite, they belong only to that suite.  The second turn of row 81 is
            81#2.
    """
    rows = _rows_of(name, data)
    name = suite_name(name)
    texts = Recorded.read(name, data, recorded)
    catalogue = _catalogue(data)
    examples = []
    for number, placed in enumerate(rows, 1):
        examples.append((placed.place, _example(name, placed, number, catalogue, texts)))
    return _distinct(examples)


def read_prompts(path: Path, count: int) -> list[Example]:
    """Returns the first `count` rows of a JSONL file; any other file is one prompt."""
    if is_path(str(path)):
        return load_suite(str(path))[:count]
    return [Example(stem_of(path), stem_of(path), read_text(path), "", "", chat=False)]


def suite_name(suite: str) -> str:
    """Returns a suite's name, or the stem of its file."""
    if is_path(suite):
        return stem_of(suite)
    return suite


def _rows_of(name: str, data: Path | None) -> list[PlacedRow]:
    """Returns the rows of a suite, those of its kinds if it is a part of another."""
    suite = SUITES.get(name)
    paths = local_files(name, data)
    if paths:
        rows = [placed for path in paths for placed in read_rows(path)]
    elif suite is not None:
        rows = hub_rows(name, suite)
    else:
        raise ValueError(
            f"Suite {name!r} is unknown. Known: {WHOLE_SUITES}; `longgraft suites` lists their parts.\n"
            f"Or give the path of a JSONL file (ending .jsonl), or a folder (--data) that holds {name}.jsonl."
        )
    if suite is None or not suite.kinds:
        return rows
    chosen = [placed for placed in rows if placed.row.get(suite.kind_column) in suite.kinds]
    if not chosen:
        raise ValueError(
            f"{rows[0].place} and the rows after it have no {suite.kind_column} "
            f"{' or '.join(suite.kinds)}, which {name} needs. Give the suite's own file."
        )
    return chosen


def _example(name: str, placed: PlacedRow, number: int, catalogue: Mapping[str, Suite], texts: Recorded) -> Example:
    """Returns one row's example."""
    where, row = placed
    name = _prompt_name(name, row, catalogue)
    suite = catalogue.get(name, Suite(""))
    parts = parts_of(where, row, suite)
    _check_fetched(where, parts)
    identity = identity_of(where, row) or f"{name}-{number}"
    later = [texts.texts_of(turn_id(identity, turn)) for turn, _ in enumerate(parts.follow_ups, 2)]
    return Example(
        name,
        identity,
        parts.before,
        parts.body,
        parts.after,
        answers=_answers(row),
        follow_ups=parts.follow_ups,
        chat=parts.chat,
        unit=parts.unit,
        max_new_tokens=suite.max_new_tokens,
        continuations=texts.texts_of(identity, _texts_in(where, row, suite)),
        later=tuple(later),
        prediction=parts.prediction,
        fixed_length=suite.fixed_length,
    )


def _prompt_name(name: str, row: Row, catalogue: Mapping[str, Suite]) -> str:
    """Returns the suite whose prompt and length a row gets.

    A row that names its LongBench dataset, or has LongBench v2's columns, gets that suite's in a file of any name.
    """
    dataset = str(row.get("dataset"))
    if "context" in row and dataset in catalogue and catalogue[dataset].template:
        return dataset
    if is_choice(row) and not catalogue.get(name, Suite("")).template:
        return LONGBENCH_V2
    return name


def _check_fetched(where: str, parts: Parts) -> None:
    for text in (parts.before, *parts.follow_ups):
        if WITHHELD in text:
            raise ValueError(
                f"{where}: SPEED-Bench has no text for this prompt on the hub, only a note that it must "
                f"be fetched from its source.\n{FETCH}"
            )


def _texts_in(where: str, row: Row, suite: Suite) -> dict[str, str]:
    """Returns source -> text to replay that the row itself holds; after an edit, this is the file."""
    texts = {}
    edit = edit_columns(row, suite)
    if edit is not None and edit.after:
        texts["true"] = text_of(where, row, (edit.after,))
    if row.get("continuation"):
        texts[str(row.get("model") or "true")] = text_of(where, row, ("continuation",))
    return texts


def _answers(row: Row) -> tuple[str, ...]:
    for column in ("answers", "reference", "answer"):
        answers = row.get(column)
        if not answers:
            continue
        if isinstance(answers, str):
            return (answers,)
        return tuple(map(str, answers)) if isinstance(answers, Sequence) else ()
    return ()


def _distinct(placed_examples: Sequence[tuple[str, Example]]) -> list[Example]:
    """Raises ValueError if two rows share an id, because resuming, pairing and recordings rely on it."""
    places: dict[str, str] = {}
    for where, example in placed_examples:
        for identity in example.turn_ids:
            if identity in places:
                raise ValueError(f"{where}: id {identity!r} is that of {places[identity]} already. Ids must differ.")
            places[identity] = where
    return [example for _, example in placed_examples]


def _catalogue(data: Path | None) -> dict[str, Suite]:
    """Returns SUITES, with the prompts and lengths of the folder's longbench_prompts.json if it has one."""
    if data is None:
        return SUITES
    path = Path(data) / "longbench_prompts.json"
    if not path.is_file():
        return SUITES
    catalogue = dict(SUITES)
    try:
        for name, entry in parse_object(path.read_bytes(), str(path)).items():
            if isinstance(entry, dict):  # the file also has a note on the prompts' source
                suite = catalogue.get(name, Suite("", unit="sentence"))
                catalogue[name] = replace(suite, template=entry["prompt"], max_new_tokens=entry.get("max_gen"))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} must map suites to {{prompt, max_gen}}: {type(error).__name__}: {error}.") from error
    for name, suite in catalogue.items():
        if suite.template and suite.template.count("{context}") != 1:
            raise ValueError(f"{path}: the prompt of {name} must contain {{context}} once.")
    return catalogue

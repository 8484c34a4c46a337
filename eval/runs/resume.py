"""Saves and checks the options of a run, so that it can be resumed or extended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.plan import Suites
from longgraft.eval.runs.rows import rows_file, rows_so_far
from longgraft.files.whole_files import write_whole

CONFIG = "config.json"
# Options whose value may be larger, or have more items, in a resumed run, because its rows stay valid.
MORE = ("prompts", "repeats")
ADDED = ("suites", "lengths", "methods", "modes", "heads", "calibrations", "concurrency")


def save_config(folder: Path, config: SweepConfig) -> None:
    """Writes config.json of a run."""
    write_whole(folder / CONFIG, json.dumps(asdict(config), indent=1) + "\n")


def resume_config(folder: Path) -> SweepConfig:
    """Returns the configuration of the run in this folder; raises ValueError if it is missing or broken."""
    path = folder / CONFIG
    if not path.exists():
        rows = rows_file(folder)
        if rows is not None:
            raise ValueError(
                f"{folder} has {rows.name} and no {CONFIG}: nothing says with which options its rows were "
                f"measured. Put its {CONFIG} back, or give another --out."
            )
        raise ValueError(f"{folder} holds no run: it has no {CONFIG}. Give the --out folder of a sweep.")
    return SweepConfig.load(path)


def check_same(folder: Path, config: SweepConfig) -> None:
    """Raises ValueError, naming every option, if this configuration cannot go on with the folder's run."""
    saved = json.loads(json.dumps(asdict(resume_config(folder))))
    wanted = json.loads(json.dumps(asdict(config)))
    different = same_run(saved, wanted)
    if different:
        raise ValueError(
            f"{folder} was measured with other options: {'; '.join(different)}.\nLeave them out to go on "
            "with the run as it is, or give another --out."
        )


def check_prompts(folder: Path, suites: Suites) -> None:
    """Raises ValueError if rows of the folder were measured on other prompts than these suites have under their ids.

    Rows of versions that kept no fingerprints are taken as they are.
    """
    turns = {}
    for suite, examples in suites.items():
        for example in examples:
            turns.update({(suite, turn.id): turn for turn in example.turns()})
    changed: dict[tuple[str, str], str] = {}
    for row in rows_so_far(folder):
        turn = turns.get((row.key.suite, row.key.prompt_id))
        if turn is not None and row.fingerprint not in ("", turn.fingerprint(row.key.mode)):
            changed[row.key.suite, row.key.prompt_id] = row.key.mode
    if changed:
        (suite, identity), mode = next(iter(changed.items()))
        what = "text or recording" if mode == "replay" else "text"
        count = f" ({len(changed)} prompts have)" if len(changed) > 1 else ""
        raise ValueError(
            f"Prompt {identity!r} of {suite} has another {what} than when {folder} was measured{count}. "
            "Put the suite's old file back, or give another --out."
        )


def same_run(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Returns the options by which the rows of both cannot be in one run, as "seed was 0 and is 1".

    A run may get more prompts, repeats, suites, lengths, methods, modes, heads and calibrations.
    """
    different = []
    for name in dict.fromkeys((*saved, *wanted)):
        before = saved.get(name)
        now = wanted.get(name)
        if name in MORE and isinstance(before, int) and isinstance(now, int) and now >= before:
            continue
        lost = None
        if name in ADDED:
            lost = _lost(before, now)
        if lost:
            different.append(f"{name} had {', '.join(lost)}, and now {_shown(now)}")
        # Uncut prompts have no lengths, and lengths may not be added to them.
        elif before != now and (lost is None or (name == "lengths" and not before)):
            different.append(f"{name} was {_shown(before)} and is {_shown(now)}")
    return different


def _lost(before: Any, now: Any) -> list[str] | None:
    """Returns what is missing now, of two lists or of two objects; None if they are neither."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return [f"{name}={value}" for name, value in before.items() if now.get(name) != value]
    if isinstance(before, list | tuple) and isinstance(now, list | tuple):
        return [str(value) for value in before if value not in now]
    return None


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={place}" for name, place in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)

"""Rows of a benchmark, written as they come: a table for people, JSON for programs, and an exit status for failures."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from rich.console import Console
from rich.table import Table

from benchmarks.texts import sources
from longgraft.eval.runs.provenance import git

T = TypeVar("T")
WIDTH = 160  # characters of a table's line if the output is no terminal


@dataclass(frozen=True)
class Row:
    """One line of the table.

    seconds: measured; floor: least seconds possible; bound: what limits them; ok: result of a check; figures: further
    values for JSON
    """

    part: str
    case: str
    seconds: float | None = None
    floor: float | None = None
    bound: str = ""
    note: str = ""
    ok: bool | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reached(self) -> float | None:
        """Floor divided by measured seconds; 1: as fast as possible."""
        return self.floor / self.seconds if self.floor and self.seconds else None


class Report:
    """All results of one command, written after every row, so that an interruption loses none."""

    def __init__(self, name: str, out: Path, minutes: float, device: torch.device, **about: Any) -> None:
        """Begins a report.  minutes: time after which no part and no row is begun"""
        self.device = device
        self.name = name
        self.path = out / f"{name}.json"
        self.end = time.monotonic() + 60 * minutes
        self.about = {**environment(device), "minutes": minutes, **about}
        self.rows: list[Row] = []
        self.failures: list[dict[str, str]] = []
        self.left_out: list[str] = []
        out.mkdir(parents=True, exist_ok=True)
        self._save()

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.end - time.monotonic()

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._save()

    def take(self, part: str, rows: Iterable[Row], least: float = 0.0) -> None:
        """Adds a part's rows, which are measured as they are taken, with the rules of `attempt`."""

        def taken() -> None:
            for row in rows:
                self.add(row)
                if self.left <= 0:
                    self.left_out.append(f"the rest of {part}")
                    break

        self.attempt(part, taken, least)

    def attempt(self, part: str, action: Callable[[], T], least: float = 0.0) -> T | None:
        """Runs a part and returns its result.  least: seconds that must be left, or else it is not begun

        An exception is printed and ends only this part; the command then ends with status 1.
        """
        if self.left <= least:
            self.left_out.append(part)
            self._save()
            return None
        print(f"{self.name}: {part}, {self.left:.0f} s left", file=sys.stderr, flush=True)
        try:
            return action()
        except Exception as error:  # the other parts still run, because time on a GPU is scarce
            traceback.print_exc()
            if isinstance(error, torch.AcceleratorError):
                self.left_out.append("all that followed: the device is lost to this process")
                self.end = time.monotonic()
            self.failures.append(
                {
                    "part": part,
                    "error": f"{type(error).__name__}: {error}"[:500],
                    "trace": traceback.format_exc()[-3000:],
                }
            )
            return None
        finally:
            self._save()

    def finish(self) -> int:
        """Prints the table; returns 1 if a part raised an exception, a check failed or there are no rows."""
        console = Console(width=None if sys.stdout.isatty() else WIDTH)
        console.print(self._table())
        for failure in self.failures:
            console.print(f"FAILED {failure['part']}: {failure['error']}", markup=False, style="bold red")
        for part in self.left_out:
            console.print(f"left out for want of time: {part}", markup=False, style="yellow")
        console.print(f"{self.path}", markup=False)
        self._save()
        return int(bool(self.failures) or not self.rows or any(row.ok is False for row in self.rows))

    def _table(self) -> Table:
        about = self.about
        changed = " and changes" if about["changed"] else ""
        title = (
            f"{self.name}: {about['device']}, torch {about['torch']}, transformers {about['transformers']}, "
            f"commit {about['commit'][:10]}{changed}, sources {about['sources']}"
        )
        table = Table(title=title, caption=str(about.get("machine", "")))
        table.add_column("part")
        table.add_column("case")
        for name in ("ms", "floor, ms", "of floor"):
            table.add_column(name, justify="right")
        table.add_column("note")
        for row in self.rows:
            reached = "" if row.reached is None else f"{100 * row.reached:.1f} % {row.bound}".rstrip()
            note = {None: "", True: "ok ", False: "FAILED "}[row.ok] + row.note
            style = "bold red" if row.ok is False else None
            table.add_row(row.part, row.case, _ms(row.seconds), _ms(row.floor), reached, note, style=style)
        return table

    def _save(self) -> None:
        rows = [{**asdict(row), "reached": row.reached} for row in self.rows]
        whole = {
            "name": self.name,
            "about": self.about,
            "rows": rows,
            "failures": self.failures,
            "left_out": self.left_out,
        }
        part = self.path.with_suffix(".partial")
        part.write_text(json.dumps(whole, indent=1, default=str) + "\n", encoding="utf-8")
        part.replace(self.path)


def environment(device: torch.device) -> dict[str, Any]:
    """Describes the software and the machine, so that a result can be judged and repeated."""
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else f"CPU ({platform.machine()})",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "triton": version_of("triton") or "none",
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "capability": list(torch.cuda.get_device_capability(device)) if on_gpu else None,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "commit": git("rev-parse", "HEAD"),
        # This identifies a checkout that was copied without its history.
        "sources": hashlib.sha256(sources().encode()).hexdigest()[:12],
        "changed": git("status", "--porcelain", "--untracked-files=no") not in ("", "unknown"),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def version_of(package: str) -> str:
    """Returns the version of an installed package; "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return format(1e3 * seconds, ",.4g" if seconds < 1 else ",.0f")

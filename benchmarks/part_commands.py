"""Commands that time single parts of a step, and `check`, `plans` and `pair` for a machine with a GPU."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Optional

import torch
import typer

from benchmarks import pair as pairs
from benchmarks.bench import Bench
from benchmarks.kernels import attention, sweep
from benchmarks.lists import listed, numbers
from benchmarks.machine import Machine
from benchmarks.modes import MODES, prepared, usual
from benchmarks.options import RESULTS, Device, Dtype, Minutes, Model, Out, Patience
from benchmarks.parts import ALONE, ONCE, PARTS, ROWS, Part, costs
from benchmarks.products import SHAPE
from benchmarks.products import products as by_type
from benchmarks.report import Report
from benchmarks.rig import Rig
from benchmarks.shapes import SHAPES, Shape
from longgraft.runtime.devices import device_of, dtype_of

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
LONG = "4096,8192,16384,32768"
CHECKERS = 8  # processes that compile kernels and run tests on a GPU
SAVING = 0.75  # minutes reserved for ending the running part and writing the results

Shapes = Annotated[str, typer.Option(help=f"Any of {', '.join(SHAPES)}; comma-separated.")]
Toy = Annotated[bool, typer.Option("--toy", help="Use small layers of the same families, for a rehearsal.")]
Prefixes = Annotated[str, typer.Option(help="Lengths of the prefix, or of prompts, in tokens; comma-separated.")]
Attention = Annotated[str, typer.Option(help="Attention backend of the target.")]
Modes = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help=f"Any of {', '.join(MODES)}; comma-separated. Default: all on a GPU, else eager."),
]
Rehearse = Annotated[
    bool, typer.Option("--rehearse", help="Use small shapes, only to see that it runs; always so without a GPU.")
]
Chosen = Annotated[str, typer.Option("-k", help="Tests to run, as for pytest's -k.")]
Parts = Mapping[str, Part]


def place(device: str | None, dtype: str | None) -> tuple[torch.device, torch.dtype]:
    """Returns the device and the dtype."""
    where = device_of(device)
    usual_dtype = "bfloat16" if where.type == "cuda" else "float32"
    return where, dtype_of(dtype or usual_dtype)


def shapes_of(names: str, toy: bool) -> list[Shape]:
    """Returns the shapes of these names; raises ValueError for an unknown name."""
    found = []
    for name in listed(names):
        if name not in SHAPES:
            raise ValueError(f"Shape {name!r} is unknown. Known: {', '.join(SHAPES)}.")
        found.append(SHAPES[name].small() if toy else SHAPES[name])
    return found


@dataclass(frozen=True)
class Timing:
    """A report and the measured machine that its rows compare with.  patience: seconds for each measurement"""

    report: Report
    machine: Machine
    patience: float

    @classmethod
    def begun(cls, report: Report, dtype: torch.dtype, patience: float) -> Timing:
        """Measures the machine, and notes its rates in the report."""
        machine = Machine.measured(report.device, dtype, patience)
        report.about |= {"machine": machine.describe(), "rates": machine.figures()}
        return cls(report, machine, patience)

    def time_shape(
        self, shape: Shape, prefixes: Sequence[int], parts: Parts, modes: Sequence[str], backend: str
    ) -> None:
        """Times the parts of one shape in each mode, and writes the costs of each mode to a file."""
        target = shape.target(self.machine.device, self.machine.dtype, backend)
        network = shape.network(target)

        def begun(mode: str) -> Bench:
            as_told, regions = prepared(target, mode)
            rig = Rig(as_told, network, max(prefixes), regions)
            return Bench(rig, self.machine, prefixes, self.patience, mode)

        for mode in modes:
            first = len(self.report.rows)
            bench = self.report.attempt(f"{shape.name}, {mode}", partial(begun, mode))
            if bench is None:
                continue
            for part, timed in parts.items():
                if mode == modes[0] or part not in ONCE:
                    self.report.take(f"{part} of {bench.which}", timed(bench))
            self._save_costs(shape, bench, first)
            del bench  # the next bench needs the memory

    def _save_costs(self, shape: Shape, bench: Bench, first: int) -> None:
        """Writes the costs that the rows from `first` on have, in place of those of an earlier run."""
        source = f"benchmarks, medians, commit {self.report.about['commit'][:10]}"
        found = costs(bench, self.report.rows[first:], source)
        if found is not None:
            path = self.report.path.with_name(f"costs-{shape.name}-{bench.mode}.json")
            path.unlink(missing_ok=True)
            found.save(path)


def _add_command(name: str, parts: Parts, help: str, alone: bool = False) -> None:
    """Adds a command that times parts.  alone: time attention alone, too"""

    def command(
        shape: Shapes = "llama-3.1-8b",
        toy: Toy = False,
        prefix: Prefixes = LONG,
        device: Device = None,
        dtype: Dtype = None,
        backend: Attention = "auto",
        mode: Modes = None,
        out: Out = RESULTS,
        patience: Patience = 0.3,
        minutes: Minutes = 60.0,
    ) -> None:
        where, kind = place(device, dtype)
        timing = Timing.begun(Report(name, out, minutes, where), kind, patience)
        report = timing.report
        modes = listed(mode) if mode else usual(where)
        prefixes = numbers(prefix)
        for each in shapes_of(shape, toy):
            if alone:
                rows = attention(each, timing.machine, prefixes, ROWS, patience)
                report.take(f"attention of {each.name}", rows)
            if parts:
                timing.time_shape(each, prefixes, parts, modes, backend)
        raise SystemExit(report.finish())

    app.command(name, help=help)(command)


for _name, _part in (PARTS | ALONE).items():
    _add_command(_name, {_name: _part}, (_part.__doc__ or "").splitlines()[0])
_add_command("attention", {}, "Attention alone, by every backend that runs here.", alone=True)
_add_command("parts", PARTS, "All parts, and files of costs for the controller.", alone=True)


@app.command()
def products(out: Out = RESULTS, patience: Patience = 0.3, minutes: Minutes = 10.0, toy: Toy = False) -> None:
    """Products of the CPU kernels, by type of weight and number of rows; OMP_NUM_THREADS sets the threads."""
    report = Report("products", out, minutes, torch.device("cpu"))
    timing = Timing.begun(report, torch.float32, patience)
    report.take("products", by_type(timing.machine, patience, (64, 512) if toy else SHAPE))
    raise SystemExit(report.finish())


@app.command()
def check(
    device: Device = None,
    out: Out = RESULTS,
    minutes: Minutes = 6.0,
    rehearse: Rehearse = False,
    chosen: Chosen = "",
    workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(help="Processes that run the tests. Default: 8 on a GPU, else none but this."),
    ] = None,
) -> None:
    """Correctness on this device: run the tests marked gpu, and measure the device's rates."""
    from benchmarks.checks import capability, software, tests

    where, kind = place(device, None)
    small = rehearse or where.type != "cuda"
    patience = 0.01 if small else 0.3
    if workers is None:
        workers = min(CHECKERS, os.cpu_count() or 1) if where.type == "cuda" else 0
    report = Report("check", out, minutes - SAVING, where)
    timing = Timing.begun(report, kind, patience)
    report.take("software", software(where))
    report.take("capability", capability(timing.machine, patience, 256 if small else 4096))
    report.attempt("tests", lambda: tests(report, chosen, workers))
    raise SystemExit(report.finish() or int(bool(report.left_out)))  # tests that did not run have not passed


@app.command()
def plans(
    shape: Shapes = "llama-3.1-8b",
    toy: Toy = False,
    prefix: Prefixes = "4096,32768",
    device: Device = None,
    dtype: Dtype = None,
    out: Out = RESULTS,
    patience: Patience = 0.3,
    minutes: Minutes = 10.0,
) -> None:
    """The attention kernel with its own plan, and with the best of the plans around it."""
    where, kind = place(device, dtype)
    report = Report("plans", out, minutes, where)
    timing = Timing.begun(report, kind, patience)
    for each in shapes_of(shape, toy):
        report.take(f"plans of {each.name}", sweep(each, timing.machine, numbers(prefix), patience, toy))
    raise SystemExit(report.finish())


@app.command()
def pair(
    model: Model = None, device: Device = None, out: Out = RESULTS, minutes: Minutes = 6.0, rehearse: Rehearse = False
) -> None:
    """A target and its head: time ar, eagle3, graft, graft-x and transformers' generate, in float32 and bfloat16."""
    where, kind = place(device, None)
    small = rehearse or where.type != "cuda"
    task = pairs.Task(where, "float32", numbers(LONG), 256, model=model)
    if small:
        task = replace(task, lengths=[96], new=4, repeats=1)
    report = Report("pair", out, minutes - SAVING, where)
    Timing.begun(report, kind, 0.01 if small else 0.3)
    for dtype in ("bfloat16", "float32"):
        of_dtype = replace(task, dtype=dtype)
        report.take(f"methods in {dtype}", pairs.methods(of_dtype))
        # cuDNN's attention takes half precision only, and a rehearsal has no cuDNN.
        for last in (False, True) if dtype == "bfloat16" and not small else (False,):
            name = f"transformers in {dtype}{', cuDNN last' if last else ''}"
            report.take(name, pairs.elsewhere(of_dtype, False, last, report.left), least=0 if small else 15)
    ends = replace(task, dtype="bfloat16", lengths=list(dict.fromkeys((task.lengths[0], task.lengths[-1]))))
    report.take("transformers, compiled", pairs.elsewhere(ends, True, True, report.left), least=0 if small else 40)
    report.take("launch by launch", pairs.methods(replace(ends, graphs="none"), ("ar", "graft")))
    raise SystemExit(report.finish())


@app.command(hidden=True)
def baseline(
    prefix: Prefixes = LONG,
    device: Device = None,
    dtype: Dtype = None,
    model: Model = None,
    new: Annotated[int, typer.Option()] = 256,
    static: Annotated[bool, typer.Option("--static")] = False,
    minutes: Minutes = 6.0,
) -> None:
    """transformers' generate alone: print each row as one line of JSON, after a tab."""
    where, kind = place(device, dtype)
    end = time.monotonic() + 60 * minutes
    for row in pairs.baseline(pairs.Task(where, str(kind)[6:], numbers(prefix), new, model=model), static):
        print("\t" + json.dumps(asdict(row)), flush=True)
        if time.monotonic() > end:
            return

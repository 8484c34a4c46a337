"""python -m benchmarks: a command for each part, and `check` and `pair` for a machine with a GPU."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Optional

import torch
import typer

from benchmarks import pair as pairs
from benchmarks.kernels import attention, sweep
from benchmarks.machine import Machine
from benchmarks.modes import MODES, prepared, usual
from benchmarks.parts import ONCE, PARTS, ROWS, Bench, costs, launches, reading, requests
from benchmarks.products import SHAPE
from benchmarks.products import products as by_type
from benchmarks.report import Report, Row
from benchmarks.shapes import SHAPES, Rig, Shape
from longgraft.runtime.devices import device_of, dtype_of

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Time single parts, and compare them with the least time that this machine allows.",
)
LONG = "4096,8192,16384,32768"
CHECKERS = 8  # processes that compile kernels and run tests on a GPU
SAVING = 0.75  # minutes reserved for ending the running part and writing the results

Shapes = Annotated[str, typer.Option(help=f"Any of {', '.join(SHAPES)}; comma-separated.")]
Toy = Annotated[bool, typer.Option("--toy", help="Use small layers of the same families, for a rehearsal.")]
Prefixes = Annotated[str, typer.Option(help="Lengths of the prefix, or of prompts, in tokens; comma-separated.")]
Device = Annotated[Optional[str], typer.Option(help="Default: a GPU if there is one.")]  # noqa: UP045
Dtype = Annotated[Optional[str], typer.Option(help="Default: bfloat16 on a GPU, else float32.")]  # noqa: UP045
Attention = Annotated[str, typer.Option(help="Attention backend of the target.")]
Modes = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help=f"Any of {', '.join(MODES)}; comma-separated. Default: all on a GPU, else eager."),
]
Out = Annotated[Path, typer.Option(help="Folder of the results.")]
Patience = Annotated[float, typer.Option(help="Seconds for each measurement.")]
Minutes = Annotated[float, typer.Option(help="Most minutes that the command takes.")]
Rehearse = Annotated[
    bool, typer.Option("--rehearse", help="Use small shapes, only to see that it runs; always so without a GPU.")
]
Chosen = Annotated[str, typer.Option("-k", help="Tests to run, as for pytest's -k.")]
Model = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="A name of `longgraft models`, or a folder. Default: the embedded pair."),
]
HERE = Path("results")
Parts = dict[str, Callable[[Bench], Iterator[Row]]]


def place(device: str | None, dtype: str | None) -> tuple[torch.device, torch.dtype]:
    """Returns the device and the dtype."""
    where = device_of(device)
    return where, dtype_of(dtype or ("bfloat16" if where.type == "cuda" else "float32"))


def shapes_of(names: str, toy: bool) -> list[Shape]:
    """Returns the shapes of these names; raises ValueError for an unknown name."""
    wanted = names.split(",")
    if unknown := [name for name in wanted if name not in SHAPES]:
        raise ValueError(f"Shape {unknown[0]!r} is unknown. Known: {', '.join(SHAPES)}.")
    return [SHAPES[name].small() if toy else SHAPES[name] for name in wanted]


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def opened(
    name: str, out: Path, minutes: float, where: torch.device, kind: torch.dtype, patience: float
) -> tuple[Report, Machine]:
    """Returns an empty report and the measured machine."""
    report = Report(name, out, minutes, where)
    machine = Machine.measured(where, kind, patience)
    report.about |= {"machine": machine.describe(), "rates": machine.figures()}
    return report, machine


def time_shape(
    report: Report,
    shape: Shape,
    machine: Machine,
    prefixes: list[int],
    patience: float,
    parts: Parts,
    modes: Sequence[str],
    backend: str = "auto",
) -> None:
    """Times the parts of one shape in each mode, and writes the costs of each mode to a file."""
    target = shape.target(machine.device, machine.dtype, backend)
    network = shape.network(target)

    def begun(mode: str) -> Bench:
        as_told, regions = prepared(target, mode)
        return Bench(Rig(as_told, network, max(prefixes), regions), machine, prefixes, patience, mode)

    for mode in modes:
        first = len(report.rows)
        if (bench := report.attempt(f"{shape.name}, {mode}", partial(begun, mode))) is None:
            continue
        for part, timed in parts.items():
            if mode == modes[0] or part not in ONCE:
                report.take(f"{part} of {bench.which}", timed(bench))
        found = costs(bench, report.rows[first:], f"benchmarks, medians, commit {report.about['commit'][:10]}")
        if found is not None:
            path = report.path.with_name(f"costs-{shape.name}-{mode}.json")
            path.unlink(missing_ok=True)  # the file of an earlier run
            found.save(path)
        del bench  # the next bench needs the memory


def _add_command(name: str, parts: Parts, help: str, alone: bool = False) -> None:
    def command(
        shape: Shapes = "llama-3.1-8b",
        toy: Toy = False,
        prefix: Prefixes = LONG,
        device: Device = None,
        dtype: Dtype = None,
        backend: Attention = "auto",
        mode: Modes = None,
        out: Out = HERE,
        patience: Patience = 0.3,
        minutes: Minutes = 60.0,
    ) -> None:
        report, machine = opened(name, out, minutes, *place(device, dtype), patience)
        modes = mode.split(",") if mode else usual(report.device)
        for each in shapes_of(shape, toy):
            if alone:
                report.take(f"attention of {each.name}", attention(each, machine, numbers(prefix), ROWS, patience))
            if parts:
                time_shape(report, each, machine, numbers(prefix), patience, parts, modes, backend)
        raise SystemExit(report.finish())

    app.command(name, help=help)(command)


for _name, _part in PARTS.items():
    _add_command(_name, {_name: _part}, (_part.__doc__ or "").splitlines()[0])
_add_command("reading", {"reading": reading}, (reading.__doc__ or "").splitlines()[0])
_add_command("requests", {"requests": requests}, (requests.__doc__ or "").splitlines()[0])
_add_command("launches", {"launches": launches}, (launches.__doc__ or "").splitlines()[0])
_add_command("attention", {}, "Attention alone, by every backend that runs here.", alone=True)
_add_command("parts", PARTS, "All parts, and files of costs for the controller.", alone=True)


@app.command()
def products(out: Out = HERE, patience: Patience = 0.3, minutes: Minutes = 10.0, toy: Toy = False) -> None:
    """Products of the CPU kernels, by type of weight and number of rows; OMP_NUM_THREADS sets the threads."""
    report, machine = opened("products", out, minutes, torch.device("cpu"), torch.float32, patience)
    report.take("products", by_type(machine, patience, (64, 512) if toy else SHAPE))
    raise SystemExit(report.finish())


@app.command()
def check(
    device: Device = None,
    out: Out = HERE,
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
    report, machine = opened("check", out, minutes - SAVING, where, kind, patience)
    report.take("software", software(where))
    report.take("capability", capability(machine, patience, 256 if small else 4096))
    report.attempt("tests", lambda: tests(report, chosen, workers))
    raise SystemExit(report.finish() or int(bool(report.left_out)))  # tests that did not run have not passed


@app.command()
def plans(
    shape: Shapes = "llama-3.1-8b",
    toy: Toy = False,
    prefix: Prefixes = "4096,32768",
    device: Device = None,
    dtype: Dtype = None,
    out: Out = HERE,
    patience: Patience = 0.3,
    minutes: Minutes = 10.0,
) -> None:
    """The attention kernel with its own plan, and with the best of the plans around it."""
    report, machine = opened("plans", out, minutes, *place(device, dtype), patience)
    for each in shapes_of(shape, toy):
        report.take(
            f"plans of {each.name}", sweep(each, machine, numbers(prefix), (8,) if toy else (1, 16, 64), patience, toy)
        )
    raise SystemExit(report.finish())


@app.command()
def pair(
    model: Model = None, device: Device = None, out: Out = HERE, minutes: Minutes = 6.0, rehearse: Rehearse = False
) -> None:
    """A target and its head: time ar, eagle3, graft, graft-x and transformers' generate, in float32 and bfloat16."""
    where, kind = place(device, None)
    small = rehearse or where.type != "cuda"
    lengths, new, repeats = ([96], 4, 1) if small else (numbers(LONG), 256, 2)
    report, _ = opened("pair", out, minutes - SAVING, where, kind, 0.01 if small else 0.3)
    for dtype in ("bfloat16", "float32"):
        task = pairs.Task(where, dtype, lengths, new, repeats, model=model)
        report.take(f"methods in {dtype}", pairs.methods(task))
        # cuDNN's attention takes half precision only, and a rehearsal has no cuDNN.
        for last in (False, True) if dtype == "bfloat16" and not small else (False,):
            report.take(
                f"transformers in {dtype}{', cuDNN last' if last else ''}",
                pairs.elsewhere(task, False, last, report.left),
                least=0 if small else 15,
            )
    ends = replace(task, dtype="bfloat16", lengths=[lengths[0], lengths[-1]][: len(lengths)])
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


if __name__ == "__main__":
    app()

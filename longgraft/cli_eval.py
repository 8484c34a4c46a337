"""The commands that measure: sweep, plot, compare.  Knows options and printing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

measuring = typer.Typer()

Text = Optional[str]      # noqa: UP045 - typer reads it at run time
Number = Optional[int]    # noqa: UP045


@measuring.command("sweep", epilog="Example: longgraft sweep --suites qmsum,repobench-p --data rows --buckets 4k,8k "
                                   "--methods ar,eagle3,graft --mode replay --prompts 5 --out run")
def sweep(
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    suites: Annotated[Text, typer.Option(help="Names or JSONL files, comma-separated; see --list-suites.")] = None,
    data: Annotated[Text, typer.Option(help="Folder of local JSONL files; default: the hub.")] = None,
    buckets: Annotated[Text, typer.Option(help="Prompt lengths in tokens, e.g. 4k,8k,16k,32k.")] = None,
    methods: Annotated[Text, typer.Option(help="See `longgraft methods`; method@head takes a --head; "
                                               "`transformers`: its own generate.")] = None,
    mode: Annotated[Text, typer.Option(help="replay, sampled, greedy, or several.")] = None,
    prompts: Annotated[Number, typer.Option(help="Of a suite and length.")] = None,
    repeats: Annotated[Number, typer.Option(help="Of each decoding.")] = None,
    max_new_tokens: Annotated[Number, typer.Option("--max-new-tokens")] = None,
    model: Annotated[Text, typer.Option(help="Hub id or folder; default: the embedded model.")] = None,
    drafter: Annotated[Text, typer.Option(help="EAGLE-3 head, 'auto' or 'none'.")] = None,
    head: Annotated[Optional[list[str]], typer.Option(metavar="NAME=PATH", help="For method@NAME; repeatable.")] = None,  # noqa: UP045
    recorded: Annotated[Optional[list[str]], typer.Option(help="JSONL of {_id, continuation}; repeatable.")] = None,  # noqa: UP045
    budget: Annotated[Number, typer.Option(help="Nodes per verification; default: the method's own, 60.")] = None,
    temperature: Annotated[Optional[float], typer.Option(help="Of mode sampled.")] = None,  # noqa: UP045
    seed: Annotated[Number, typer.Option()] = None,
    dtype: Annotated[Text, typer.Option()] = None, device: Annotated[Text, typer.Option()] = None,
    attention: Annotated[Text, typer.Option()] = None, calibration: Annotated[Text, typer.Option()] = None,
    config: Annotated[Optional[Path], typer.Option(help="JSON or TOML with any of these; flags win.")] = None,  # noqa: UP045
    workers: Annotated[int, typer.Option(help="Processes, one model replica each; speeds then share the machine.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
) -> None:
    """Measure methods over suites and prompt lengths: acceptance, decode-only speed, losslessness."""
    from longgraft.eval.buckets import parse_lengths
    from longgraft.eval.report import write
    from longgraft.eval.sweep import Bench, SweepConfig, lines_of_plan
    from longgraft.eval.sweep import sweep as run

    changes: dict[str, Any] = {
        "suites": _names(suites), "data": data, "lengths": parse_lengths(buckets) if buckets else None,
        "methods": _names(methods), "modes": _names(mode), "prompts": prompts, "repeats": repeats,
        "max_new_tokens": max_new_tokens, "model": model, "drafter": drafter, "recorded": tuple(recorded or ()) or None,
        "heads": dict(_pair(text) for text in head) if head else None, "budget": budget, "temperature": temperature,
        "seed": seed, "dtype": dtype, "device": device, "attention": attention, "calibration": calibration}
    made = SweepConfig.load(config, **changes)
    if dry_run:
        print("\n".join(lines_of_plan(made, Bench.open(made))))
        return
    run(made, out, resume, workers)
    write(out)
    print(out / "summary.md")


@measuring.command("plot", epilog="Example: longgraft plot run")
def plot(folder: Annotated[Path, typer.Argument(help="The --out folder of a sweep.")],
         label: Annotated[Optional[list[str]], typer.Option(  # noqa: UP045
             metavar="METHOD=LABEL", help="Legend; methods without one are left out.")] = None,
         suffix: Annotated[str, typer.Option(help=".svg, .png or .pdf")] = ".svg") -> None:
    """Draw a sweep: acceptance and speed by length, frontier, time by part, acceptance by depth."""
    from longgraft.eval.plots import draw
    from longgraft.eval.report import read_rows

    for path in draw(list(read_rows(folder)), folder, dict(_pair(text) for text in label or ()), suffix):
        print(path)


@measuring.command("compare", epilog="Example: longgraft compare before after")
def compare(first: Annotated[Path, typer.Argument(help="Folder of a sweep.")],
            second: Annotated[Path, typer.Argument(help="Folder of another.")]) -> None:
    """Compare two sweeps row by row: tokens and counts that differ, and paired ratios of speed and MAT."""
    from longgraft.eval.compare import lines
    from longgraft.eval.report import read_rows

    print("\n".join(lines(list(read_rows(first)), list(read_rows(second)))))


@measuring.command("project", epilog="Example: longgraft project run --costs llama8b-h100.json")
def project(folder: Annotated[Path, typer.Argument(help="Folder of a sweep.")],
            costs: Annotated[Path, typer.Option(help="JSON of costs per prompt length, measured or given.")]) -> None:
    """Project measured acceptance onto another model's or machine's costs (Graft, Equation 1)."""
    from longgraft.eval.projection import CostTable, table
    from longgraft.eval.report import read_rows

    print(table(list(read_rows(folder)), CostTable.load(costs)), end="")


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is no NAME=VALUE.")
    return name, value

"""The commands that measure: sweep, bench, plot, compare and what goes with them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from annotated_types import Ge, Le

from longgraft.cli.commands import command
from longgraft.config.method_roles import PLAIN
from longgraft.config.option_files import describe
from longgraft.config.options import Checked, option
from longgraft.config.settings import Pair
from longgraft.eval.runs.config import SHORT, Diagnosis, SweepConfig
from longgraft.files.new_paths import new_folder

measuring = typer.Typer()

PANEL = "Measure"


@dataclass(frozen=True)
class RunOptions(Checked):
    """Output folder and workers of a run."""

    out: str | None = option(None, "New folder of the run; needed without --resume", metavar="FOLDER")
    resume: str | None = option(
        None, "Folder of an interrupted run, to go on with; nothing need be repeated", metavar="FOLDER"
    )
    retry_failures: bool = option(False, "Measure again what failed")
    workers: Annotated[int, Ge(1), Le(4096)] | None = option(
        None, "Processes, one model replica each; speeds then share the machine", none="1"
    )
    dry_run: bool = option(False, "Print the options as TOML and the plan, and stop")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out and self.resume and Path(self.out) != Path(self.resume):
            raise ValueError(f"--resume goes on in {self.resume}, and --out says {self.out}. Leave --out out.")
        if not (self.out or self.resume or self.dry_run):
            raise ValueError("No folder was given. Give --out FOLDER for a new run, or --resume FOLDER to go on.")

    @property
    def folder(self) -> Path:
        return Path(self.resume or self.out or "")


def saved(flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the options of the run to resume."""
    from longgraft.eval.runs.resume import resume_config

    if "resume" in flags:
        return vars(resume_config(Path(flags["resume"])))
    return {}


@command(
    measuring,
    "sweep",
    "longgraft sweep --suites qmsum,repobench-p --data rows --buckets 4k,8k "
    "--methods ar,eagle3,graft --mode replay --prompts 5 --out run",
    PANEL,
    saved=saved,
)
def sweep(config: SweepConfig, running: RunOptions) -> None:
    """Measure methods over suites and prompt lengths: acceptance, decode-only speed, losslessness."""
    _measure(config, running)


@command(
    measuring,
    "bench",
    "longgraft bench --suites mt_bench,humaneval --data rows --prompts 80 --mode greedy,sampled --out run",
    PANEL,
    SHORT,
    {"lengths"},
    saved,
)
def bench(config: SweepConfig, running: RunOptions) -> None:
    """Measure methods on short question sets (EAGLE's, Spec-Bench), prompts whole, every turn of a conversation.

    A later turn follows what plain decoding answered, so that all methods are measured on the same
    conversation.  EAGLE's tables have 80 prompts of a suite.
    """
    _measure(config, running)


@command(
    measuring,
    "ablate",
    "longgraft ablate components --suites lcc --data rows --buckets 4k,16k --out run",
    PANEL,
    {"methods": (PLAIN,)},
    saved=saved,
)
def ablate(
    name: Annotated[
        str,
        typer.Argument(metavar="WHICH", help="Part whose variants are measured: one of those above."),
    ],
    config: SweepConfig,
    running: RunOptions,
    warmup_prompts: Annotated[
        Path | None,
        typer.Option(help="For the ablation warmup: JSONL of conversations that are in none of the suites."),
    ] = None,
) -> None:
    """Measure what each part of a method is worth, or all methods.

    WHICH is components (Figure 5 of arXiv 2605.20104), ranking or spending (of graft-x), placement (Figure 2),
    template (Figure 6), budget, warmup (Table 4) or thresholds (Tables 11, 12); or field: all methods, in their
    official sizes and at the common budget.  --methods are measured as well.
    """
    from longgraft.eval.runs.ablations import prepare

    _measure(prepare(name, config, running.folder, warmup_prompts, running.dry_run), running)


def _measure(config: SweepConfig, running: RunOptions) -> None:
    """Runs a sweep, writes its tables and draws its figures."""
    from longgraft.eval.reports.plots import draw
    from longgraft.eval.reports.posted import posted
    from longgraft.eval.reports.report import write
    from longgraft.eval.runs.bench import Bench
    from longgraft.eval.runs.folder import Run
    from longgraft.eval.runs.plan import check_plan
    from longgraft.eval.runs.rows import Failure
    from longgraft.eval.runs.sweep import lines_of_plan
    from longgraft.eval.runs.sweep import sweep as run

    if running.dry_run:
        suites = check_plan(config)  # errors are found before a model is loaded
        plan = lines_of_plan(config, suites, Bench.open(config))
        print("\n".join([*describe(config), *(f"# {line}" for line in plan)]))
        return
    out = running.folder
    rows = run(config, out, running.resume is not None, running.workers, running.retry_failures)
    write(out)
    failed = sum(isinstance(row, Failure) for row in rows)
    if failed:
        print(f"longgraft: {failed} of {len(rows)} rows are failures; the summary says why", file=sys.stderr)
    print(f"{posted(Run.read(out))}\n\n{out / 'summary.md'}")
    if failed == len(rows):
        raise SystemExit(1)
    # Figures need an extra; there are none if all answers ended at once.
    with suppress(ImportError, ValueError):
        draw(Run.read(out))


@command(
    measuring,
    "diagnose",
    "longgraft diagnose --suites repobench-p,gov_report --data rows --buckets 2k,8k --head short=HEAD --out diagnosis",
    PANEL,
)
def diagnosed(
    pair: Pair, asked: Diagnosis, out: Annotated[Path, typer.Option(help="New folder.", metavar="FOLDER")]
) -> None:
    """Show how far ahead a drafter still knows what comes, under its own and under the target's keys,
    values and features (KVShot, arXiv 2604.26412): acceptance by depth, as rows, table and figure."""
    from longgraft.eval.checks.diagnose import diagnose
    from longgraft.eval.reports.diagnosis import table, write
    from longgraft.eval.runs.provenance import environment

    new_folder(out)
    session, depths = diagnose(pair, asked)
    place = environment(session)
    about = (
        f"{place['target']}, {place['dtype']}, {place['device']}; {asked.text} continuations of "
        f"{asked.max_new_tokens} tokens at most, {asked.prompts} prompts a length at most"
    )
    paths = write(out, depths, about)
    print("\n".join([*table(depths), "", *map(str, paths)]))


@measuring.command("plot", rich_help_panel=PANEL, epilog="Example: longgraft plot run")
def plot(
    folder: Annotated[Path, typer.Argument(help="The --out folder of a sweep.")],
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD=LABEL", help="Legend of a method; methods without one are left out; repeatable."),
    ] = None,
    suffix: Annotated[str, typer.Option(help=".svg, .png or .pdf")] = ".svg",
) -> None:
    """Draw a sweep's figures, and write its tables again.

    The figures show acceptance and speed by length, the frontier, the time by part, the acceptance by position and
    estimates against outcomes. The tables are written, also those of a sweep that was interrupted.
    """
    from longgraft.eval.reports.plots import draw
    from longgraft.eval.reports.report import write
    from longgraft.eval.runs.folder import Run

    write(folder)
    for path in draw(Run.read(folder), dict(_pair(text) for text in label or ()), suffix):
        print(path)


@measuring.command("compare", rich_help_panel=PANEL, epilog="Example: longgraft compare before after")
def compare_runs(
    first: Annotated[Path, typer.Argument(help="Folder of a sweep.")],
    second: Annotated[Path, typer.Argument(help="Folder of another.")],
) -> None:
    """Compare two sweeps row by row: tokens and counts that differ, and paired ratios of speed and MAT."""
    from longgraft.eval.reports.compare import compare
    from longgraft.eval.runs.folder import Run

    print("\n".join(compare(Run.read(first), Run.read(second))))


@measuring.command(
    "recordings",
    rich_help_panel=PANEL,
    epilog="Example: longgraft recordings run --mode sampled --out answers.jsonl; then "
    "longgraft sweep --mode replay --recorded answers.jsonl --out replayed",
)
def recordings(
    folder: Annotated[Path, typer.Argument(help="The --out folder of a sweep or bench.")],
    out: Annotated[Path, typer.Option(help="JSONL to write.")],
    mode: Annotated[str, typer.Option(help="sampled or greedy.")] = "sampled",
    method: Annotated[str, typer.Option(help="Method; a lossless one gives the target's answers.")] = PLAIN,
) -> None:
    """Write the answers of a run as text, to be replayed by any model with --recorded."""
    from longgraft.eval.reports.recordings import write

    print(f"{write(folder, out, mode, method)} answers in {out}")


@measuring.command("suites", rich_help_panel=PANEL, epilog="Example: longgraft suites")
def suites() -> None:
    """List the suites: what each is, where on the hub it is, which files of a --data folder are taken for it."""
    from longgraft.eval.prompts.sources import files_of
    from longgraft.eval.prompts.suites import SUITES

    for name, suite in SUITES.items():
        place = f"hub {', '.join(part for part in suite.hub if part)}" if suite.hub else suite.source
        print(f"{name:<27} {suite.clause}\n{'':<27} {place}; files: {', '.join(files_of(name))}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")  # graft+depth=2=shallow
    if not equals:
        raise ValueError(f"{text!r} is no NAME=VALUE.")
    return name, value

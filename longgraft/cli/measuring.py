"""The commands that measure: sweep, bench, plot, compare and what goes with them.  Knows options and printing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

measuring = typer.Typer()

Text = Optional[str]      # noqa: UP045 - typer reads it at run time
Number = Optional[int]    # noqa: UP045


# Options of the commands that measure.
Out = Annotated[Path, typer.Option(help="Folder of the run.")]
Suites = Annotated[Text, typer.Option(help="Names or JSONL files, comma-separated; see `longgraft suites`.")]
Data = Annotated[Text, typer.Option(help="Folder of local JSONL files; default: the hub.")]
Buckets = Annotated[Text, typer.Option(help="Prompt lengths in tokens, e.g. 4k,8k,16k,32k.")]
Methods = Annotated[Text, typer.Option(help="See `longgraft methods`; method@head takes a --head; method+budget=30, "
                                            "+depth=, +width=, +levels=, +top_k=, +thresholds=, +warm= set that of one "
                                            "method; `transformers`: its own generate; default: ar,eagle3,graft.")]
Mode = Annotated[Text, typer.Option(help="replay, sampled, greedy, or several.")]
Repeats = Annotated[Number, typer.Option(help="Of each decoding; default 3.")]
Model = Annotated[Text, typer.Option(help="Hub id or folder; default: the embedded model.")]
Drafter = Annotated[Text, typer.Option(help="EAGLE-3 head, 'auto' or 'none'.")]
Head = Annotated[Optional[list[str]], typer.Option(metavar="NAME=PATH", help="For method@NAME; repeatable.")]  # noqa: UP045
Calibrated = Annotated[Optional[list[str]], typer.Option(  # noqa: UP045
    metavar="NAME=PATH", help="File of `longgraft calibrate`, for method+thresholds=NAME and +warm=NAME; repeatable.")]
Recorded = Annotated[Optional[list[str]], typer.Option(  # noqa: UP045
    help="JSONL of {_id, continuation}, replayed before all others; repeatable. See `longgraft recordings`.")]
Budget = Annotated[Number, typer.Option(help="Nodes per verification; default: the method's own, 60.")]
Temperature = Annotated[Optional[float], typer.Option(help="Of mode sampled; default 1.")]  # noqa: UP045
Dtype = Annotated[Text, typer.Option(help="float32, bfloat16 or float16.")]
Device = Annotated[Text, typer.Option(help="cpu, cuda, cuda:1 ...")]
Attention = Annotated[Text, typer.Option(help="auto, sdpa, split or flash.")]
Thresholds = Annotated[Text, typer.Option(help="File of `longgraft calibrate`, 'auto' or 'none'.")]
Seed = Annotated[Number, typer.Option(help="Of mode sampled; default 0.")]
ConfigFile = Annotated[Optional[Path], typer.Option(help="JSON or TOML with any of these; flags win.")]  # noqa: UP045
Workers = Annotated[Number, typer.Option(help="Processes, one model replica each; speeds then share the machine; "
                                              "default 1. With --ray, actors; default: one per GPU, else per node.")]
Ray = Annotated[Text, typer.Option(metavar="ADDRESS", help="Workers on a Ray cluster: auto, HOST:PORT, or local to "
                                   "start one here. Models, heads and calibrations given as paths must be there on "
                                   "every node; prompts are read here.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")]
Retry = Annotated[bool, typer.Option("--retry-failures", help="Go on, and measure again what failed.")]
Profile = Annotated[bool, typer.Option("--profile", help="On a GPU: true seconds by part, at the price of a wait each; "
                                                         "`longgraft costs` needs it.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")]


@measuring.command("sweep", epilog="Example: longgraft sweep --suites qmsum,repobench-p --data rows --buckets 4k,8k "
                                   "--methods ar,eagle3,graft --mode replay --prompts 5 --out run")
def sweep(
    out: Out, suites: Suites = None, data: Data = None, buckets: Buckets = None, methods: Methods = None,
    mode: Mode = None, prompts: Annotated[Number, typer.Option(help="Of a suite and length; default 5.")] = None,
    repeats: Repeats = None,
    max_new_tokens: Annotated[Number, typer.Option("--max-new-tokens", help="At most; default 128.")] = None,
    model: Model = None, drafter: Drafter = None, head: Head = None, calibrated: Calibrated = None,
    recorded: Recorded = None, budget: Budget = None, temperature: Temperature = None, seed: Seed = None,
    dtype: Dtype = None, device: Device = None, attention: Attention = None, calibration: Thresholds = None,
    config: ConfigFile = None, workers: Workers = None, ray: Ray = None, resume: Resume = False,
    retry: Retry = False, profile: Profile = False, dry_run: DryRun = False,
) -> None:
    """Measure methods over suites and prompt lengths: acceptance, decode-only speed, losslessness."""
    given = locals()
    from longgraft.eval.prompts.buckets import parse_lengths

    _measure(given, {}, parse_lengths(buckets) if buckets else None)


@measuring.command("bench", epilog="Example: longgraft bench --suites mt_bench,humaneval --data rows --prompts 80 "
                                   "--mode greedy,sampled --out run")
def bench(
    out: Out,
    suites: Annotated[Text, typer.Option(help="Names or JSONL files, comma-separated; see `longgraft suites`; default: "
                                              "EAGLE's humaneval,gsm8k,cnn_dm,alpaca,mt_bench.")] = None,
    data: Data = None, methods: Methods = None,
    mode: Annotated[Text, typer.Option(help="greedy (default; temperature 0), sampled, replay, or several.")] = None,
    prompts: Annotated[Number, typer.Option(help="Of a suite, evenly spread over it; default 20; EAGLE's tables have "
                                                 "80.")] = None,
    repeats: Repeats = None,
    max_new_tokens: Annotated[Number, typer.Option("--max-new-tokens", help="Of a turn, at most; default 1024, as in "
                                                                            "EAGLE and Spec-Bench.")] = None,
    model: Model = None, drafter: Drafter = None, head: Head = None, calibrated: Calibrated = None,
    recorded: Recorded = None, budget: Budget = None, temperature: Temperature = None, seed: Seed = None,
    dtype: Dtype = None, device: Device = None, attention: Attention = None, calibration: Thresholds = None,
    config: ConfigFile = None, workers: Workers = None, ray: Ray = None, resume: Resume = False,
    retry: Retry = False, profile: Profile = False, dry_run: DryRun = False,
) -> None:
    """Measure methods on short question sets (EAGLE's, Spec-Bench), prompts whole, every turn of a conversation.

    A later turn follows what plain decoding answered, so that all methods are measured on the same conversation.
    """
    given = locals()
    from longgraft.eval.runs.config import SHORT

    _measure(given, SHORT, ())


@measuring.command("ablate", epilog="Example: longgraft ablate components --suites lcc --data rows --buckets 4k,16k "
                                    "--out run")
def ablate(
    name: Annotated[str, typer.Argument(metavar="WHICH", help="components, placement, template, budget, warmup or "
                                                              "thresholds.")],
    out: Out, suites: Suites = None, data: Data = None, buckets: Buckets = None,
    methods: Annotated[Text, typer.Option(help="To be measured beside the ablation's own.")] = None,
    mode: Mode = None, prompts: Annotated[Number, typer.Option(help="Of a suite and length; default 5.")] = None,
    repeats: Repeats = None,
    max_new_tokens: Annotated[Number, typer.Option("--max-new-tokens", help="At most; default 128.")] = None,
    warmup_prompts: Annotated[Optional[Path], typer.Option(  # noqa: UP045
        help="Of the ablation warmup: JSONL of conversations that are in none of the suites.")] = None,
    model: Model = None, drafter: Drafter = None, head: Head = None, calibrated: Calibrated = None,
    recorded: Recorded = None, budget: Budget = None, temperature: Temperature = None, seed: Seed = None,
    dtype: Dtype = None, device: Device = None, attention: Attention = None, calibration: Thresholds = None,
    config: ConfigFile = None, workers: Workers = None, ray: Ray = None, resume: Resume = False,
    retry: Retry = False, profile: Profile = False, dry_run: DryRun = False,
) -> None:
    """Measure what each part of graft is worth: components (Figure 5), placement (Figure 2), template (Figure 6),
    budget, warmup (Table 4), thresholds (Tables 11, 12)."""
    given = locals()
    from longgraft.eval.prompts.buckets import parse_lengths

    _measure(given, {"methods": ("ar",)}, parse_lengths(buckets) if buckets else None)


def _measure(given: dict[str, Any], base: Mapping[str, Any], lengths: tuple[int, ...] | None) -> None:
    """Run what the options of a command say.  base: the command's own defaults."""
    from longgraft.eval.reports.plots import draw
    from longgraft.eval.reports.report import write
    from longgraft.eval.runs.ablations import prepare
    from longgraft.eval.runs.bench import Bench
    from longgraft.eval.runs.config import SweepConfig
    from longgraft.eval.runs.folder import Run
    from longgraft.eval.runs.rows import Failure
    from longgraft.eval.runs.sweep import lines_of_plan
    from longgraft.eval.runs.sweep import sweep as run

    alike = ("data", "prompts", "repeats", "max_new_tokens", "model", "drafter", "budget", "temperature", "seed",
             "dtype", "device", "attention", "calibration")
    heads = dict(_pair(text) for text in given["head"] or ())
    calibrations = dict(_pair(text) for text in given["calibrated"] or ())
    made = SweepConfig.load(
        given["config"], base, lengths=lengths, suites=_names(given["suites"]), methods=_names(given["methods"]),
        modes=_names(given["mode"]), recorded=tuple(given["recorded"] or ()) or None, heads=heads or None,
        calibrations=calibrations or None, profile=given["profile"] or None,
        **{name: given[name] for name in alike})
    if "name" in given:
        made = prepare(given["name"], made, given["out"], given["warmup_prompts"], given["dry_run"])
    if given["dry_run"]:
        print("\n".join(lines_of_plan(made, Bench.open(made))))
        return
    rows = run(made, given["out"], given["resume"], given["workers"], given["ray"], given["retry"])
    write(given["out"])
    if failed := sum(isinstance(row, Failure) for row in rows):
        print(f"longgraft: {failed} of {len(rows)} rows are failures; the summary says why", file=sys.stderr)
    print(given["out"] / "summary.md")
    if failed == len(rows):
        raise SystemExit(1)
    with suppress(ImportError, ValueError):     # figures are an extra; answers that all ended at once have none
        draw(Run.read(given["out"]))


@measuring.command("suites", epilog="Example: longgraft suites")
def suites() -> None:
    """List the suites: what each is, where on the hub it is, which files of a --data folder are taken for it."""
    from longgraft.eval.prompts.sources import files_of
    from longgraft.eval.prompts.suites import SUITES

    for name, suite in SUITES.items():
        place = f"hub {', '.join(part for part in suite.hub if part)}" if suite.hub else suite.source
        print(f"{name:<27} {suite.clause}\n{'':<27} {place}; files: {', '.join(files_of(name))}")


@measuring.command("recordings", epilog="Example: longgraft recordings run --mode sampled --out answers.jsonl; then "
                                        "longgraft sweep --mode replay --recorded answers.jsonl ...")
def recordings(folder: Annotated[Path, typer.Argument(help="The --out folder of a sweep or bench.")],
               out: Annotated[Path, typer.Option(help="JSONL to write.")],
               mode: Annotated[str, typer.Option(help="sampled or greedy.")] = "sampled",
               method: Annotated[str, typer.Option(help="Whose answers; those of a lossless method are the target's.")]
               = "ar") -> None:
    """Write the answers of a run as text, to be replayed by any model with --recorded."""
    from longgraft.eval.reports.recordings import write

    print(f"{write(folder, out, mode, method)} answers in {out}")


@measuring.command("plot", epilog="Example: longgraft plot run")
def plot(folder: Annotated[Path, typer.Argument(help="The --out folder of a sweep.")],
         label: Annotated[Optional[list[str]], typer.Option(  # noqa: UP045
             metavar="METHOD=LABEL", help="Legend; methods without one are left out.")] = None,
         suffix: Annotated[str, typer.Option(help=".svg, .png or .pdf")] = ".svg") -> None:
    """Draw a sweep: acceptance and speed by length, frontier, time by part, acceptance by depth.

    Its tables are written again, also those of a sweep that was interrupted.
    """
    from longgraft.eval.reports.plots import draw
    from longgraft.eval.reports.report import write
    from longgraft.eval.runs.folder import Run

    write(folder)
    for path in draw(Run.read(folder), dict(_pair(text) for text in label or ()), suffix):
        print(path)


@measuring.command("compare", epilog="Example: longgraft compare before after")
def compare_runs(first: Annotated[Path, typer.Argument(help="Folder of a sweep.")],
            second: Annotated[Path, typer.Argument(help="Folder of another.")]) -> None:
    """Compare two sweeps row by row: tokens and counts that differ, and paired ratios of speed and MAT."""
    from longgraft.eval.reports.compare import compare
    from longgraft.eval.runs.folder import Run

    print("\n".join(compare(Run.read(first), Run.read(second))))


@measuring.command("costs", epilog="Example: longgraft costs run --out costs.json")
def costs(folder: Annotated[Path, typer.Argument(help="Folder of a sweep of ar, eagle3 and graft.")],
          out: Annotated[Path, typer.Option(help="JSON for `longgraft project`.")]) -> None:
    """Take from a sweep what a plain pass, a verification and a draft forward cost on its machine."""
    from longgraft.eval.reports.projection import CostTable
    from longgraft.eval.runs.folder import Run

    CostTable.of_run(Run.read(folder)).save(out)
    print(out)


@measuring.command("project", epilog="Example: longgraft project run --costs llama8b-h100.json")
def project(folder: Annotated[Path, typer.Argument(help="Folder of a sweep.")],
            costs: Annotated[Path, typer.Option(help="JSON of costs per prompt length, measured or given.")]) -> None:
    """Project measured acceptance onto another model's or machine's costs (Graft, Equation 1)."""
    from longgraft.eval.reports import projection
    from longgraft.eval.runs.folder import Run

    print(projection.project(Run.read(folder), projection.CostTable.load(costs)), end="")


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is no NAME=VALUE.")
    return name, value

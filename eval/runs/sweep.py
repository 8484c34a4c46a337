"""Sweeps: suites x lengths x prompts x modes x methods, one row each, written as they come and never twice."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from longgraft.eval.prompts.buckets import Fitted
from longgraft.eval.runs.batches import BatchKey, read_batches, write_batches
from longgraft.eval.runs.bench import Bench
from longgraft.eval.runs.concurrency import batch, missing_batches
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.jobs import Job, count_missing, jobs_of, turns_of
from longgraft.eval.runs.measure import PromptMeasurement
from longgraft.eval.runs.plan import Reader, Suites, check_plan, planned
from longgraft.eval.runs.progress import Progress
from longgraft.eval.runs.prompt_rows import run_prompt, warm_up
from longgraft.eval.runs.provenance import argv, environment
from longgraft.eval.runs.quiet import check_quiet, wait_for_quiet
from longgraft.eval.runs.resume import check_prompts, check_same, save_config
from longgraft.eval.runs.rows import Result, RowLog, done, rows_file, sole_sweep
from longgraft.eval.runs.workers import Crew, Processes, spread
from longgraft.files.data_files import read_table
from longgraft.files.whole_files import write_whole

TRIED = (512, 2048)  # prompt tokens from which the time of a sweep is estimated
TRIED_ANSWER = 16  # tokens that are decoded after them
INTERRUPTED = 130  # a shell's exit status for a command that Ctrl-C ended


def sweep(
    config: SweepConfig,
    out: Path,
    resume: bool = False,
    workers: int | None = None,
    retry: bool = False,
) -> list[Result]:
    """Runs what is missing of the plan and returns all rows.  Writes config.json, environment.json and the rows.

    Args:
        out: Folder of the run.
        resume: True to go on with what is in `out`.
        workers: Number of processes; None: one, in this process.
        retry: True to also measure its failures again.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}; it must be 1 or more.")
    if config.concurrency and (workers or 1) > 1:
        raise ValueError("With --concurrency requests share one target's passes. Leave --workers out.")
    resume = resume or retry
    check_folder(out, config, resume)
    suites = check_plan(config)
    check_prompts(out, suites)
    if config.quiet:
        check_quiet()
    with sole_sweep(out):
        check_folder(out, config, resume)  # checked again: another sweep may have ended here in the meantime
        try:
            if workers is not None and workers > 1:
                return _sweep(config, suites, out, retry, Processes(config, workers))
            return _sweep(config, suites, out, retry, None)
        except KeyboardInterrupt:
            if rows_file(out):
                print(f"\nlonggraft: interrupted: go on with `longgraft sweep --resume {out}`", file=sys.stderr)
            raise SystemExit(INTERRUPTED) from None


def check_folder(out: Path, config: SweepConfig, resume: bool) -> None:
    """Raises ValueError if `out` is no folder, or holds a run that is not to be resumed, or one of other options."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file, and a run is a folder. Give another --out.")
    rows = rows_file(out)
    if rows is None or not rows.stat().st_size:  # empty: the disk was full before the first row
        return
    if not resume:
        raise ValueError(f"{rows} exists already. Give --resume to go on with it, or another --out.")
    check_same(out, config)


def _sweep(config: SweepConfig, suites: Suites, out: Path, retry: bool, crew: Crew | None) -> list[Result]:
    bench = None
    if crew is None:
        bench = Bench.open(config)
        reader = Reader.of(bench.session)
    else:  # workers measure, and this process only cuts prompts, for which it needs no weights
        reader = Reader.open(config.model)
    plan = planned(config, suites, reader)
    with closing(RowLog(out, retry)) as log:
        save_config(out, config)
        jobs = jobs_of(config, plan, done(log.rows))
        batches = [old for old in read_batches(out) if not (retry and old.error)]
        batch_keys: list[BatchKey] = []
        if bench is not None:
            batch_keys = missing_batches(config, bench, plan, {old.key for old in batches})
        if not (jobs or batch_keys):
            return log.rows
        opened = _opened(out, crew)
        if bench is not None:
            opened(environment(bench.session))
        progress = Progress(sum(count_missing(config, job) for job in jobs) + len(batch_keys))
        for row in _rows(config, bench, jobs, crew, opened):
            log.append(row)
            progress.add()
        for key in batch_keys:
            assert bench is not None
            batches.append(batch(config, bench, plan, key, done(log.rows)))
            write_batches(out, batches)
            progress.add()
        progress.close()
        return log.rows


def _opened(out: Path, crew: Crew | None) -> Callable[[dict[str, Any]], None]:
    """Returns the function that writes environment.json when this process or a worker has opened a target."""
    path = out / "environment.json"
    devices = set[str]()
    earlier = []  # environments before a resume
    if path.exists():
        before = read_table(path)
        earlier = [*before.pop("earlier", []), before]

    def opened(about: dict[str, Any]) -> None:
        devices.add(about["device"])
        about = about | {"argv": argv(), "device": ", ".join(sorted(devices))}
        if crew is None:
            about["workers"] = 1
        else:
            about.update(crew.about())
        about["earlier"] = earlier
        write_whole(path, json.dumps(about, indent=1) + "\n")

    return opened


def _rows(
    config: SweepConfig,
    bench: Bench | None,
    jobs: Sequence[Job],
    crew: Crew | None,
    opened: Callable[[dict[str, Any]], None],
) -> Iterator[Result]:
    if bench is None:
        assert crew is not None
        yield from spread(config, jobs, crew, opened)
        return
    for job in jobs[:1]:
        warm_up(config, bench, job.fitted)
    for job in jobs:
        if config.quiet:
            wait_for_quiet()
        yield from run_prompt(config, bench, job)


def lines_of_plan(config: SweepConfig, suites: Suites, bench: Bench) -> list[str]:
    """Returns lines for people, before anything long is run: prompts per bucket, memory at the longest, a rough
    time."""
    target = bench.session.target
    plans = planned(config, suites, Reader.of(bench.session))
    names = ", ".join(variant.name for variant in config.variants)
    lines = [
        f"{target.name} on {target.device} in {str(target.dtype)[6:]}; methods {names}; modes "
        f"{', '.join(config.modes)}; {config.repeats} repeats"
    ]
    turns: list[Fitted] = []
    for suite, by_length in plans.items():
        counts = []
        for length, prompts in by_length.items():
            name = f"{length:,}" if length else "whole"
            counts.append(f"{name}: {len(prompts) or 'none'}")
            for prompt in prompts:
                turns.extend(turns_of(config, prompt))
        lines.append(f"  {suite}: prompts by length {', '.join(counts)}")
    longest = max(len(turn.ids) + turn.example.turn * config.max_new_tokens for turn in turns)
    nodes = max(variant.budget(config.budget) for variant in config.variants if variant.ours)
    size = (longest + nodes) * target.cache_bytes_per_token() / 2**20
    decodings = len(config.variants) * len(config.modes) * config.repeats
    seconds = sum(_seconds_of(config, bench, turns, decodings))
    lengths = " and ".join(f"{tokens:,}" for tokens in TRIED)
    return [
        *lines,
        f"{len(turns)} prefills, {len(turns) * decodings} decodings; the target's cache takes up to {size:,.0f} MiB",
        f"about {seconds / 3600:.1f} hours, judging by prompts of {lengths} tokens",
    ]


def _seconds_of(config: SweepConfig, bench: Bench, fitted: Sequence[Fitted], decodings: int) -> Iterator[float]:
    """Yields the seconds that each prompt and its answers are likely to take.

    The ends of the longest prompt are read, and tokens decoded after them; seconds a token grow linearly with the
    tokens before it, because attention reads them all.
    """
    longest = max(fitted, key=lambda prompt: len(prompt.ids))
    ids = longest.ids
    variants = bench.able(config.variants)
    warm_up(config, bench, fitted[0])
    at = []
    reading = []
    decoding = []
    for tokens in sorted({min(tokens, len(ids)) for tokens in TRIED}):
        with PromptMeasurement(bench.engines, variants, ids[-tokens:], TRIED_ANSWER, learning=False) as state:
            spent = 0.0
            for variant in variants:
                _, stats = state.decode(variant, config.sampling("sampled"), TRIED_ANSWER)
                spent += stats.decode_seconds
            reading.append(state.prefill_seconds / tokens)
        at.append(tokens)
        decoding.append(spent / (TRIED_ANSWER * len(variants)))
    for prompt in fitted:
        count = len(prompt.ids)
        yield (count * _line(at, reading, count) + decodings * config.max_new_tokens * _line(at, decoding, count))


def _line(at: Sequence[int], values: Sequence[float], where: int) -> float:
    """Returns the value at `where` on the line through the first and the last point; it never falls."""
    if len(at) < 2:
        return values[0]
    slope = max(0.0, (values[-1] - values[0]) / (at[-1] - at[0]))
    return max(values[0] + slope * (where - at[0]), min(values))

"""Sweeps: suites x lengths x prompts x modes x methods, one row each, written as they come and never twice."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from longgraft.config.data_files import read_table
from longgraft.eval.prompts.buckets import Fitted
from longgraft.eval.runs.batches import read_batches, write_batches
from longgraft.eval.runs.bench import Bench, run_prompt, warm_up
from longgraft.eval.runs.concurrency import batch, missing_batches
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.jobs import Job, count_missing, jobs_of, turns_of
from longgraft.eval.runs.measure import PromptMeasurement
from longgraft.eval.runs.plan import Reader, Suites, check_plan, planned
from longgraft.eval.runs.progress import Progress
from longgraft.eval.runs.provenance import argv, environment
from longgraft.eval.runs.quiet import check_quiet, wait_for_quiet
from longgraft.eval.runs.ray_workers import actors
from longgraft.eval.runs.resume import check_prompts, check_same, save_config
from longgraft.eval.runs.rows import Result, RowLog, done, rows_file, sole_sweep
from longgraft.eval.runs.workers import Crew, Processes, spread

TRIED = 512, 2048      # prompt tokens from which the time of a sweep is estimated
INTERRUPTED = 130       # a shell's exit status for a command that Ctrl-C ended


def sweep(config: SweepConfig, out: Path, resume: bool = False, workers: int | None = None,
          ray: str | None = None, retry: bool = False) -> list[Result]:
    """Runs what is missing of the plan and returns all rows.  Writes config.json, environment.json and the rows.

    workers: None: one, in this process; on a cluster as many as it holds.  ray: a cluster's address
    resume: go on with what is in `out`; retry: also measure its failures again
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}; it must be 1 or more.")
    if config.concurrency and (ray is not None or (workers or 1) > 1):
        raise ValueError("With --concurrency requests share one target's passes. Leave --workers and --ray out.")
    resume = resume or retry
    check_folder(out, config, resume)
    suites = check_plan(config)
    check_prompts(out, suites)
    if config.quiet:
        check_quiet()
    with sole_sweep(out):
        check_folder(out, config, resume)       # checked again: another sweep may have ended here in the meantime
        try:
            if ray is not None:
                with actors(ray, config, workers) as crew:
                    return _sweep(config, suites, out, retry, crew)
            processes = Processes(config, workers) if workers and workers > 1 else None
            return _sweep(config, suites, out, retry, processes)
        except KeyboardInterrupt:
            if rows_file(out):
                print(f"\nlonggraft: interrupted: go on with `longgraft sweep --resume {out}`", file=sys.stderr)
            raise SystemExit(INTERRUPTED) from None


def check_folder(out: Path, config: SweepConfig, resume: bool) -> None:
    """Raises ValueError if `out` is no folder, or holds a run that is not to be resumed, or one of other options."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file, and a run is a folder. Give another --out.")
    rows = rows_file(out)
    if rows is None:
        return
    if not resume:
        raise ValueError(f"{rows} exists already. Give --resume to go on with it, or another --out.")
    check_same(out, config)


def _sweep(config: SweepConfig, suites: Suites, out: Path, retry: bool, crew: Crew | None) -> list[Result]:
    # If workers measure, this process only cuts prompts, for which it needs no weights.
    bench = None if crew else Bench.open(config)
    plan = planned(config, suites, Reader.of(bench.session) if bench else Reader.open(config.model))
    with closing(RowLog(out, retry)) as log:
        save_config(out, config)
        jobs = jobs_of(config, plan, done(log.rows))
        found = [one for one in read_batches(out) if not (retry and one.error)]
        wanted = missing_batches(config, bench, plan, {one.key for one in found}) if bench else []
        if not (jobs or wanted):
            return log.rows
        opened = _opened(out, crew)
        if bench:
            opened(environment(bench.session))
        progress = Progress(sum(count_missing(config, job) for job in jobs) + len(wanted))
        for row in _rows(config, bench, jobs, crew, opened):
            log.append(row)
            progress.add()
        for key in wanted:
            assert bench is not None
            found.append(batch(config, bench, plan, key, done(log.rows)))
            write_batches(out, found)
            progress.add()
        progress.close()
        return log.rows


def _opened(out: Path, crew: Crew | None) -> Callable[[dict[str, Any]], None]:
    """Returns the function that writes environment.json when this process or a worker has opened a target."""
    path, devices = out / "environment.json", set[str]()
    before = read_table(path) if path.exists() else None
    earlier = [] if before is None else [*before.pop("earlier", []), before]

    def opened(about: dict[str, Any]) -> None:
        devices.add(about["device"])
        about = about | {"argv": argv(), "device": ", ".join(sorted(devices))}
        about |= crew.about() if crew else {"workers": 1}
        about["earlier"] = earlier      # environments before a resume
        path.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")

    return opened


def _rows(config: SweepConfig, bench: Bench | None, jobs: Sequence[Job], crew: Crew | None,
          opened: Callable[[dict[str, Any]], None]) -> Iterator[Result]:
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
    session, plans = bench.session, planned(config, suites, Reader.of(bench.session))
    out = [f"{session.target.name} on {session.target.device} in {str(session.target.dtype)[6:]}; methods "
           f"{', '.join(v.name for v in config.variants)}; modes {', '.join(config.modes)}; {config.repeats} repeats"]
    for suite, by_length in plans.items():
        counts = ", ".join(f"{f'{length:,}' if length else 'whole'}: {len(prompts) or 'none'}"
                           for length, prompts in by_length.items())
        out.append(f"  {suite}: prompts by length {counts}")
    fitted = [turn for by_length in plans.values() for prompts in by_length.values() for prompt in prompts
              for turn in turns_of(config, prompt)]
    longest = max(len(f.ids) + f.example.turn * config.max_new_tokens for f in fitted) + max(
        variant.budget(config.budget) for variant in config.variants if variant.ours)
    size = longest * session.target.cache_bytes_per_token() / 2 ** 20
    decodings = len(config.variants) * len(config.modes) * config.repeats
    seconds = sum(_seconds_of(config, bench, fitted, decodings))
    return [*out, f"{len(fitted)} prefills, {len(fitted) * decodings} decodings; the target's cache takes up to "
                  f"{size:,.0f} MiB",
            f"about {seconds / 3600:.1f} hours, judging by prompts of {' and '.join(f'{n:,}' for n in TRIED)} tokens"]


def _seconds_of(config: SweepConfig, bench: Bench, fitted: Sequence[Fitted], decodings: int) -> Iterator[float]:
    """Yields the seconds that each prompt and its answers are likely to take.

    The ends of the longest prompt are read, and tokens decoded after them; seconds a token grow linearly with the
    tokens before it, because attention reads them all.
    """
    ids, variants = max(fitted, key=lambda f: len(f.ids)).ids, bench.able(config.variants)
    warm_up(config, bench, fitted[0])
    at, reading, decoding = [], [], []
    for tokens in sorted({min(tokens, len(ids)) for tokens in TRIED}):
        with PromptMeasurement(bench.engines, variants, ids[-tokens:], 16, learning=False) as state:
            spent = sum(state.decode(v, config.sampling("sampled"), 16)[1].decode_seconds for v in variants)
            reading.append(state.prefill_seconds / tokens)
        at.append(tokens)
        decoding.append(spent / (16 * len(variants)))
    for prompt in fitted:
        count = len(prompt.ids)
        yield (count * _line(at, reading, count)
               + decodings * config.max_new_tokens * _line(at, decoding, count))


def _line(at: Sequence[int], values: Sequence[float], where: int) -> float:
    """Returns the value at `where` on the line through the first and the last point; it never falls."""
    if len(at) < 2:
        return values[0]
    slope = max(0.0, (values[-1] - values[0]) / (at[-1] - at[0]))
    return max(values[0] + slope * (where - at[0]), min(values))

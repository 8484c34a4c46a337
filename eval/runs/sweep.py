"""Sweeps: suites x lengths x prompts x modes x methods, one row each, written as they come and never twice.

Knows the plan, the rows' file and how to resume; knows no table and no plot.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from longgraft.eval.prompts.buckets import Fitted
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.report import key
from longgraft.eval.runs.bench import Bench, count_missing, planned, run_prompt, turns_of, warm_up
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.measure import Prefilled
from longgraft.eval.runs.workers import Crew, Done, Job, Processes, spread
from longgraft.eval.scores import score
from longgraft.session import Session

ROWS = "per_prompt.jsonl"


class RowLog:
    """The rows' file: appended line by line; a line that a killed process left half-written is cut off."""

    def __init__(self, path: Path, retry: bool = False) -> None:
        """retry: failures are taken out of the file, and so are measured again."""
        self.path, self.rows = path, []
        if path.exists():
            text = path.read_bytes()
            lines = text[:text.rfind(b"\n") + 1].splitlines(keepends=True)
            kept = [line for line in lines if not (retry and "error" in json.loads(line))]
            if (whole := b"".join(kept)) != text:
                beside = path.with_suffix(".part")
                beside.write_bytes(whole)
                beside.replace(path)
            self.rows = [json.loads(line) for line in kept]
        self._file = open(path, "a", encoding="utf-8")      # noqa: SIM115 - held for the sweep's life

    def append(self, row: dict[str, Any]) -> None:
        """On disk before it returns."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows.append(row)

    def done(self) -> Done:
        """What is there, failures included."""
        return {key(row): row.get("token_ids", []) for row in self.rows}


def sweep(config: SweepConfig, out: Path, resume: bool = False, workers: int | None = None,
          ray: str | None = None, retry: bool = False) -> list[dict[str, Any]]:
    """Run what is missing of the plan; returns all rows.  Writes config.json, environment.json and the rows.

    workers: None: one, in this process; on a cluster as many as it holds.  ray: a cluster's address.
    resume: go on with what is in `out`; retry: with its failures, too
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}; it must be 1 or more.")
    if ray is not None:
        from longgraft.eval.runs.ray_workers import actors

        with actors(ray, config, workers) as crew:
            return _sweep(config, out, resume or retry, retry, crew)
    processes = Processes(config, workers) if workers and workers > 1 else None
    return _sweep(config, out, resume or retry, retry, processes)


def _sweep(config: SweepConfig, out: Path, resume: bool, retry: bool, crew: Crew | None) -> list[dict[str, Any]]:
    from tqdm import tqdm

    saved, about_file = out / "config.json", out / "environment.json"
    given = json.loads(json.dumps(asdict(config)))
    if (out / ROWS).exists() and not resume:
        raise ValueError(f"{out / ROWS} exists already. Give --resume to go on with it, or another --out.")
    if resume and saved.exists() and json.loads(saved.read_text(encoding="utf-8")) != given:
        raise ValueError(f"{saved} was written by another configuration. Resume with the same options, or give another "
                         "--out.")
    # Where workers measure, this copy only cuts prompts: it takes no GPU's memory and needs no GPU.
    bench = Bench.open(replace(config, device="cpu", attention="auto") if crew else config)
    found = planned(config, bench)
    if not any(prompts for by_length in found.values() for prompts in by_length.values()):
        raise ValueError(f"No prompt of {', '.join(config.suites)} is long enough for "
                         f"{', '.join(f'{length:,}' for length in config.lengths)} tokens. Give shorter --buckets.")
    if config.modes != ("replay",):
        for suite in config.suites:
            score(suite_name(suite), "", ("",))         # says now which package is missing
    out.mkdir(parents=True, exist_ok=True)
    log = RowLog(out / ROWS, retry)
    saved.write_text(json.dumps(given, indent=1) + "\n", encoding="utf-8")
    devices: set[str] = set()
    before = json.loads(about_file.read_text(encoding="utf-8")) if about_file.exists() else None
    earlier = [] if before is None else [*before.pop("earlier", []), before]

    def opened(about: dict[str, Any]) -> None:
        devices.add(about["device"])
        about = about | {"argv": argv(), "device": ", ".join(sorted(devices))}
        about |= crew.about() if crew else {"workers": 1}
        about["earlier"] = earlier      # a run that was resumed says where and with what it began
        about_file.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")

    done = log.done()
    # Every suite and length gets its first prompt, then its second, ...: a run that is cut short is balanced.
    jobs = [Job(suite, length, prompts[index], {k: said for k, said in done.items() if k[:2] == (suite, length)
                                                and k[2] in prompts[index].example.turn_ids})
            for index in range(config.prompts) for suite, by_length in found.items()
            for length, prompts in by_length.items() if index < len(prompts)]
    jobs = [job for job in jobs if count_missing(config, job)]
    if not jobs:
        return log.rows
    if not crew:
        opened(environment(bench.session))
    total = sum(count_missing(config, job) for job in jobs)
    with tqdm(total=total, unit="row", disable=not sys.stderr.isatty()) as bar:
        for row in _rows(config, bench, jobs, crew, opened):
            log.append(row)
            bar.update()
    return log.rows


def _rows(config: SweepConfig, bench: Bench, jobs: Sequence[Job], crew: Crew | None,
          opened: Callable[[dict[str, Any]], None]) -> Iterator[dict[str, Any]]:
    if crew:
        yield from spread(config, jobs, crew, opened)
        return
    warm_up(config, bench, jobs[0].fitted)
    for job in jobs:
        yield from run_prompt(config, bench, job.suite, job.length, job.fitted, job.done)


def lines_of_plan(config: SweepConfig, bench: Bench) -> list[str]:
    """For people, before anything long is run: prompts per bucket, memory at the longest, a rough time."""
    session, plans = bench.session, planned(config, bench)
    out = [f"{session.target.name} on {session.target.device} in {str(session.target.dtype)[6:]}; methods "
           f"{', '.join(v.name for v in config.variants)}; modes {', '.join(config.modes)}; {config.repeats} repeats"]
    for suite, by_length in plans.items():
        counts = ", ".join(f"{f'{length:,}' if length else 'whole'}: {len(prompts) or 'none'}"
                           for length, prompts in by_length.items())
        out.append(f"  {suite}: prompts by length {counts}")
    fitted = [turn for by_length in plans.values() for prompts in by_length.values() for prompt in prompts
              for turn in turns_of(config, prompt)]
    if not fitted:
        return [*out, "No prompt is long enough for any of these lengths."]
    longest = max(len(f.ids) + f.example.turn * config.max_new_tokens for f in fitted) + (config.budget or 60)
    size = longest * session.target.cache_bytes_per_token() / 2 ** 20
    decodings = len(config.variants) * len(config.modes) * config.repeats
    prompt_rate, new_rate = _rates(config, bench, max(fitted, key=lambda f: len(f.ids)))
    hours = (sum(len(f.ids) for f in fitted) / prompt_rate
             + len(fitted) * decodings * config.max_new_tokens / new_rate) / 3600
    return [*out, f"{len(fitted)} prefills, {len(fitted) * decodings} decodings; the target's cache takes up to "
                  f"{size:,.0f} MiB",
            f"about {hours:.1f} hours at {prompt_rate:,.0f} prompt and {new_rate:,.0f} new tokens a second (measured "
            "on 2,048 tokens; longer prompts are slower)"]


def _rates(config: SweepConfig, bench: Bench, fitted: Fitted) -> tuple[float, float]:
    """(prompt tokens, new tokens) per second, over all methods, on the end of one prompt."""
    warm_up(config, bench, fitted)
    ids, variants = fitted.ids[-2048:], config.variants
    state = Prefilled(bench.session.target, bench.stock, variants, ids, 16, budget=config.budget)
    seconds = sum(state.decode(v, config.sampling("sampled"), 16)[1].decode_seconds for v in variants)
    return len(ids) / state.prefill_seconds, 16 * len(variants) / seconds


def argv() -> list[str]:
    """The command line, without where the program lies."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def environment(session: Session) -> dict[str, Any]:
    """What a result needs to be believed."""
    import transformers

    def git(*command: str) -> str:
        try:
            return subprocess.run(["git", *command], capture_output=True, text=True, check=True,
                                  cwd=Path(__file__).parent).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return "unknown"

    device = session.target.device
    on_gpu = device.type == "cuda"
    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"git": git("rev-parse", "HEAD"), "changed": changed not in ("", "unknown"), "about": session.about,
            "python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__,
            "device": torch.cuda.get_device_name(device) if on_gpu else f"CPU ({platform.machine()})",
            "cuda": torch.version.cuda, "threads": torch.get_num_threads(), "cores": os.cpu_count(),
            "target": session.target.name, "dtype": str(session.target.dtype)[6:],
            "attention": session.target.attention, "argv": argv(), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}

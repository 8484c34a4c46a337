"""A target and its head against plain decoding and against transformers' own generate, on long prompts of code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from benchmarks.machine import race, wait
from benchmarks.report import Row
from benchmarks.texts import ROOT, sources
from longgraft.acceptance.sampling import Sampling
from longgraft.comparison.levels import Check, first_divergence, level
from longgraft.config.settings import Settings
from longgraft.engine.session import Generation, Session, answer
from longgraft.eval.checks.losslessness import margin
from longgraft.loading import assemble
from longgraft.methods.needs import AUTO

METHODS = ("ar", "eagle3", "graft", "graft-x")
LATE = 20.0  # seconds after its deadline at which a process is killed
CUDNN = "TORCH_CUDNN_SDPA_DEPRIORITIZED"


@dataclass(frozen=True)
class Task:
    """The prompts and answers to time.

    lengths: prompt tokens; new: tokens of an answer; repeats: number of times that each answer is decoded, of which the
    fastest counts; graphs: as in `Settings`; model: a name, as of `load`; None: the embedded target
    """

    device: torch.device
    dtype: str
    lengths: Sequence[int]
    new: int
    repeats: int = 2
    graphs: str = "auto"
    model: str | None = None

    def session(self, method: str) -> Session:
        settings: dict[str, Any] = {"device": str(self.device), "dtype": self.dtype, "graphs": self.graphs}
        return assemble(self.model, AUTO, Settings(method=method, **settings)).session()

    def texts(self, session: Session) -> Iterator[tuple[int, list[int], list[int]]]:
        """Yields (length, prompt, the source's own continuation) for each length, from the beginning of the sources."""
        ids = session.encode(sources()[: 8 * max(self.lengths) + 8 * self.new])
        for length in self.lengths:
            if len(ids) < length + self.new:
                raise ValueError(f"The sources have {len(ids):,} tokens; {length + self.new:,} are needed.")
            yield length, ids[:length], ids[length : length + self.new]

    def fastest(self, session: Session, prompt: list[int], sampling: Sampling) -> Generation:
        """Returns the fastest answer.  The first does not count: it loads kernels, makes plans and records graphs."""
        found = []
        for _ in range(1 + self.repeats):
            found.append(answer(session.open(prompt, self.new, sampling, eos=()), progress=False))
        return max(found[1:], key=lambda each: each.stats.decode_tokens_per_second)

    def row(self, mode: str, length: int, name: str, found: Generation, plain: Generation) -> Row:
        """Returns an answer's row beside plain decoding's."""
        stats = found.stats
        rate = stats.decode_tokens_per_second
        ratio = rate / plain.stats.decode_tokens_per_second
        which = name if self.graphs == "auto" else f"{name}, graphs {self.graphs}"
        note = (
            f"{rate:,.0f} tokens/s, {ratio:.2f} of ar, {stats.tokens_per_step:.2f} a step, prefill "
            f"{stats.prefill_seconds:.2f} s"
        )
        figures = {
            "dtype": self.dtype,
            "mode": mode,
            "prefix": length,
            "method": name,
            "graphs": self.graphs,
            "ratio": ratio,
            **stats.as_dict(),
        }
        return Row(f"{self.dtype} {mode}", f"{length:,} {which}", 1 / rate, note=note, figures=figures)


def methods(task: Task, names: Sequence[str] = METHODS) -> Iterator[Row]:
    """Times methods, greedily and on the source's own continuation in place of the draws, which does not loop."""
    sessions = {name: task.session(name) for name in names}
    for length, prompt, continuation in task.texts(next(iter(sessions.values()))):
        for mode, sampling in (("greedy", Sampling()), ("replay", Sampling(replay=continuation))):
            answers = {name: task.fastest(session, prompt, sampling) for name, session in sessions.items()}
            for name, found in answers.items():
                row = task.row(mode, length, name, found, answers["ar"])
                if mode == "greedy":
                    same, difference = _compare_ids(sessions[name], prompt, found, answers["ar"])
                    row = replace(row, ok=same, note=row.note + difference)
                yield row


def _compare_ids(session: Session, prompt: list[int], ours: Generation, plain: Generation) -> tuple[bool, str]:
    """Returns True if the ids equal plain decoding's up to near ties, and the first difference in words."""
    at = first_divergence(ours.token_ids, plain.token_ids)
    if at is None:
        return True, ", identical"
    target = session.target
    dtype = str(target.dtype)[6:]
    text = [*prompt, *plain.token_ids[:at]]
    gap, largest = margin(target, target.cache(len(text)), text)
    if dtype == "float32":  # on a GPU the rounding of a product depends on its number of rows
        near = target.device.type == "cuda" and gap < 1e-3
    else:
        near = level([Check(len(plain.token_ids), at, gap, largest)], dtype) != "none"
    return near, f", differs from token {at}, margin {gap:.4f}"


def baseline(task: Task, static: bool = False) -> Iterator[Row]:
    """Times transformers' generate of the same target: seconds per token, without the prefill.

    static: use its static cache, with which it compiles the model on a GPU
    """
    session = task.session("ar")
    model: Any = session.target.model
    more = {"cache_implementation": "static"} if static else {}
    cudnn_last = bool(os.environ.get(CUDNN))
    kind = "static, compiled" if static else "sdpa"
    if cudnn_last:
        kind += ", cuDNN last"

    def generate(ids: torch.Tensor, new: int) -> None:
        mask = torch.ones_like(ids)
        model.generate(ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False, **more)
        wait(task.device)

    for length, prompt, _ in task.texts(session):
        ids = torch.tensor([prompt], device=task.device)
        actions = {new: partial(generate, ids, new) for new in (1, 1 + task.new)}
        spent = race(actions, task.device, 0.0, least=task.repeats)
        seconds = (spent[1 + task.new] - spent[1]) / task.new
        figures = {
            "dtype": task.dtype,
            "mode": "greedy",
            "prefix": length,
            "method": "transformers",
            "static": static,
            "cudnn_last": cudnn_last,
        }
        note = f"{1 / seconds:,.0f} tokens/s"
        case = f"{length:,} transformers, {kind}"
        yield Row(f"{task.dtype} greedy", case, seconds, note=note, figures=figures)


def elsewhere(task: Task, static: bool, cudnn_last: bool, seconds: float) -> Iterator[Row]:
    """Runs `baseline` in its own process, because torch reads the order of its kernels only once.

    Raises RuntimeError with the last line of its output if it fails.  seconds: time after which no length is begun; the
    process is killed LATE seconds later
    """
    command = [sys.executable, "-m", "benchmarks", "baseline", "--device", str(task.device), "--dtype", task.dtype]
    command += ["--prefix", ",".join(map(str, task.lengths)), "--new", str(task.new), "--minutes", str(seconds / 60)]
    if static:
        command += ["--static"]
    if task.model:
        command += ["--model", task.model]
    environment = dict(os.environ)
    environment.pop(CUDNN, None)
    if cudnn_last:
        environment[CUDNN] = "1"
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=seconds + LATE)
    rows = [Row(**json.loads(line[1:])) for line in done.stdout.splitlines() if line.startswith("\t")]
    yield from rows
    if done.returncode or not rows:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise RuntimeError(f"transformers' generate ended with status {done.returncode}: {last[:300]}")

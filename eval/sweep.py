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
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from longgraft.eval.buckets import Fitted, plan
from longgraft.eval.loops import loops
from longgraft.eval.losslessness import first_divergence, margin
from longgraft.eval.measure import PLAIN, TRANSFORMERS, Prefilled, Variant
from longgraft.eval.report import key
from longgraft.eval.scores import score
from longgraft.eval.suites import load_suite
from longgraft.eval.workers import Job, spread
from longgraft.loading import load
from longgraft.methods import Parts
from longgraft.session import Sampling, Session
from longgraft.yarn_drafters.checkpoint import load_head
from longgraft.yarn_drafters.layouts import HeadOverrides, TargetShape

MODES = ("replay", "sampled", "greedy")
ROWS = "per_prompt.jsonl"


@dataclass(frozen=True)
class SweepConfig:
    """Everything that a sweep's numbers depend on.  lengths: prompt tokens; heads: name -> folder or hub id."""

    suites: tuple[str, ...] = ("repobench-p", "lcc", "qmsum", "gov_report")
    data: str | None = None
    recorded: tuple[str, ...] = ()
    lengths: tuple[int, ...] = (4096, 8192, 16384, 32768)
    methods: tuple[str, ...] = (PLAIN, "eagle3", "graft")
    modes: tuple[str, ...] = ("replay",)
    prompts: int = 5                # of a suite and length
    repeats: int = 3
    max_new_tokens: int = 128
    temperature: float = 1.0        # of the mode `sampled`
    seed: int = 0
    check_tokens: int = 32          # sampled by every method beside a replay, which itself can show no divergence
    model: str | None = None
    drafter: str = "auto"
    heads: dict[str, str] = field(default_factory=dict)
    calibration: str | None = "auto"
    budget: int | None = None       # nodes per verification; None: each method's own
    draft_levels: int = 9
    draft_top_k: int = 10
    device: str | None = None
    dtype: str | None = None
    attention: str = "auto"

    def __post_init__(self) -> None:
        if unknown := [mode for mode in self.modes if mode not in MODES]:
            raise ValueError(f"Mode {', '.join(unknown)} is unknown. Known: {', '.join(MODES)}.")
        for name in ("prompts", "repeats", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more.")
        for variant in self.variants:
            if variant.head and variant.head not in self.heads:
                raise ValueError(f"{variant.name} names the head {variant.head!r}, which was not given. "
                                 f"Add --head {variant.head}=PATH.")

    @classmethod
    def load(cls, path: Path | None, **changes: Any) -> SweepConfig:
        """A configuration from JSON or TOML; changes win, unless None."""
        given: dict[str, Any] = {}
        if path is not None:
            try:
                text = path.read_text(encoding="utf-8")
                given = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
            except (OSError, ValueError) as error:
                raise ValueError(f"The configuration {path} cannot be read: {error}.") from error
        given |= {name: value for name, value in changes.items() if value is not None}
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise ValueError(f"{path} sets {', '.join(unknown)}, which no sweep has.\n"
                             f"Known: {', '.join(sorted(known))}.")
        settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        return cls(**settings)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The methods, plain decoding first: everything is paired with it."""
        names = dict.fromkeys((PLAIN, *self.methods))
        return tuple(Variant.parse(name) for name in names)

    def sampling(self, mode: str, recording: Sequence[int] = ()) -> Sampling:
        """How tokens are drawn in this mode."""
        if mode == "replay":
            return Sampling(replay=tuple(recording))
        return Sampling(temperature=self.temperature, seed=self.seed) if mode == "sampled" else Sampling()


@dataclass(frozen=True)
class Bench:
    """What a sweep runs on: one target, its tokenizer, and the parts of each head."""

    session: Session
    heads: dict[str, Parts]

    @classmethod
    def open(cls, config: SweepConfig) -> Bench:
        """Load the target once, and every head."""
        session = load(config.model, config.drafter, tell=False, calibration=config.calibration,
                       draft_levels=config.draft_levels, draft_top_k=config.draft_top_k, device=config.device,
                       dtype=config.dtype, attention=config.attention)
        target, heads = session.target, {"": session.parts}
        for name, path in config.heads.items():
            # Prompts that are longer than a head was made for are the question here, not a mistake.
            network = load_head(path, TargetShape.of(target.model.config),
                                HeadOverrides(max_positions=target.max_positions), target.dtype, target.device)
            if network.embed_tokens is None:
                network.share_embedding(target.model.get_input_embeddings())
            heads[name] = replace(session.parts, network=network)
        return cls(session, heads)


def planned(config: SweepConfig, bench: Bench) -> dict[str, dict[int, list[Fitted]]]:
    """suite -> length -> prompts, cut to length."""
    data = None if config.data is None else Path(config.data)
    found = {}
    for suite in config.suites:
        examples = load_suite(suite, data, [Path(path) for path in config.recorded])
        if config.modes == ("replay",):
            examples = [example for example in examples if example.continuations]
            if not examples:
                raise ValueError(f"No row of {suite} has a recorded continuation to replay. Give --recorded FILE, or "
                                 "another --modes.")
        found[suite] = plan(examples, bench.session.tokenizer, config.lengths, config.prompts)
    return found


def measure_prompt(config: SweepConfig, bench: Bench, fitted: Fitted, wanted: set[tuple[str, str, int]]
                   ) -> Iterator[dict[str, Any]]:
    """The rows (mode, method, repeat) of one prompt that are wanted, from one prefill."""
    session, example = bench.session, fitted.example
    limit = min(config.max_new_tokens, example.max_new_tokens or config.max_new_tokens)
    variants = [v for v in config.variants if any(v.name == method for _, method, _ in wanted)]
    variants = list(dict.fromkeys((Variant.parse(PLAIN), *variants)))
    budgets = [v.budget(config.budget) for v in variants if v.method != TRANSFORMERS]
    state = Prefilled(session.target, bench.heads, variants, fitted.ids, limit + max(budgets))
    checks = _Checks(config, session, state)
    for mode in (mode for mode in config.modes if any(mode == m for m, _, _ in wanted)):
        recording = _recording(example, session)[:limit] if mode == "replay" else []
        if mode == "replay" and not recording:
            continue
        sampling, eos = config.sampling(mode, recording), () if mode == "replay" else session.eos
        for repeat in range(config.repeats):
            # Alternated, so that a machine that warms or slows down favours no method.
            for variant in variants if repeat % 2 == 0 else reversed(variants):
                if (mode, variant.name, repeat) not in wanted:
                    continue
                tokens, stats = state.decode(variant, sampling, len(recording) or limit, config.budget, eos)
                row = {"mode": mode, "method": variant.name, "repeat": repeat, **stats.as_dict(), "token_ids": tokens,
                       "loop": loops(tokens), "lossless": checks.of(variant, mode, sampling, tokens, eos)}
                if mode != "replay" and repeat == 0:
                    row["score"] = score(example.suite, session.tokenizer.decode(tokens, skip_special_tokens=True),
                                         example.answers)
                yield row


class _Checks:
    """Whether a method's tokens are plain decoding's, prompt by prompt."""

    def __init__(self, config: SweepConfig, session: Session, state: Prefilled) -> None:
        self._config, self._session, self._state = config, session, state
        self._plain: dict[str, list[int]] = {}
        self._found: dict[tuple[str, str], dict[str, Any]] = {}

    def of(self, variant: Variant, mode: str, sampling: Sampling, tokens: list[int],
           eos: Sequence[int]) -> dict[str, Any] | None:
        """{tokens, first_divergence, margin}; a replay is checked by sampling `check_tokens` instead."""
        if variant.method == TRANSFORMERS:
            return None
        if mode != "replay":
            return self._compare(mode, tokens, sampling, eos, self._config.max_new_tokens)
        key = (mode, variant.name)
        if key not in self._found:
            sampling, limit = self._config.sampling("sampled"), self._config.check_tokens
            ours = self._state.decode(variant, sampling, limit, self._config.budget)[0]
            self._found[key] = self._compare("check", ours, sampling, (), limit)
        return self._found[key]

    def _compare(self, kind: str, ours: list[int], sampling: Sampling, eos: Sequence[int],
                 limit: int) -> dict[str, Any]:
        if kind not in self._plain:
            limit = min(limit, self._state.capacity - len(self._state.ids) - 1)
            self._plain[kind] = self._state.decode(Variant.parse(PLAIN), sampling, limit, None, eos)[0]
        theirs = self._plain[kind]
        at = first_divergence(ours, theirs)
        gap = None if at is None else margin(self._session, [*self._state.ids, *theirs[:at]])
        return {"tokens": len(theirs), "first_divergence": at, "margin": gap}


def _recording(example: Any, session: Session) -> list[int]:
    """What is replayed: the file's true next text, else the longest recorded answer."""
    said = example.continuations
    text = said.get("true") or max(said.values(), key=len, default="")
    return session.tokenizer(text, add_special_tokens=False)["input_ids"] if text else []


class RowLog:
    """The rows' file: appended line by line; a line that a killed process left half-written is cut off."""

    def __init__(self, path: Path, resume: bool) -> None:
        self.path, self.rows = path, []
        if path.exists() and not resume:
            raise ValueError(f"{path} exists already. Give --resume to go on with it, or another --out.")
        if path.exists():
            text = path.read_bytes()
            whole = text[:text.rfind(b"\n") + 1]
            if len(whole) < len(text):
                with open(path, "r+b") as file:
                    file.truncate(len(whole))
            self.rows = [json.loads(line) for line in whole.splitlines()]
        self._file = open(path, "a", encoding="utf-8")      # noqa: SIM115 - held for the sweep's life

    def append(self, row: dict[str, Any]) -> None:
        """On disk before it returns."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows.append(row)

    def done(self) -> set[tuple]:
        """(suite, bucket, prompt, mode, method, repeat) of what is there, failures included."""
        return {key(row) for row in self.rows}


def _missing(config: SweepConfig, suite: str, length: int, fitted: Fitted,
             done: set[tuple]) -> set[tuple[str, str, int]]:
    """(mode, method, repeat) of a prompt that no row has yet."""
    example = fitted.example
    return {(mode, variant.name, repeat) for mode in config.modes for variant in config.variants
            for repeat in range(config.repeats)
            if (mode != "replay" or example.continuations)
            and (mode != "sampled" or variant.method != TRANSFORMERS)     # its random numbers are others
            and (suite, length, example.id, mode, variant.name, repeat) not in done}


def _about(suite: str, length: int, fitted: Fitted) -> dict[str, Any]:
    return {"suite": suite, "bucket": length, "prompt_id": fitted.example.id, "cut_tokens": fitted.cut_tokens}


def run_prompt(config: SweepConfig, bench: Bench, suite: str, length: int, fitted: Fitted,
               done: set[tuple]) -> Iterator[dict[str, Any]]:
    """All missing rows of one prompt; what fails becomes rows that say why, and hold no number."""
    wanted, about = _missing(config, suite, length, fitted, done), _about(suite, length, fitted)
    made = set(done)
    if not wanted:
        return
    try:
        for row in measure_prompt(config, bench, fitted, wanted):
            made.add(key(about | row))
            yield about | row
    except (ValueError, RuntimeError, MemoryError) as error:
        yield from failures(config, suite, length, fitted, made, f"{type(error).__name__}: {error}")


def failures(config: SweepConfig, suite: str, length: int, fitted: Fitted, done: set[tuple],
             why: str) -> Iterator[dict[str, Any]]:
    """A row without numbers for everything of this prompt that is missing."""
    for mode, method, repeat in sorted(_missing(config, suite, length, fitted, done)):
        yield _about(suite, length, fitted) | {"mode": mode, "method": method, "repeat": repeat, "error": why}


def sweep(config: SweepConfig, out: Path, resume: bool = False, workers: int = 1) -> list[dict[str, Any]]:
    """Run what is missing of the plan; returns all rows.  Writes config.json, environment.json and the rows."""
    from tqdm import tqdm

    out.mkdir(parents=True, exist_ok=True)
    saved = out / "config.json"
    given = json.loads(json.dumps(asdict(config)))
    if resume and saved.exists() and json.loads(saved.read_text(encoding="utf-8")) != given:
        raise ValueError(f"{saved} was written by another configuration. Resume with the same options, or give another "
                         "--out.")
    log = RowLog(out / ROWS, resume)
    saved.write_text(json.dumps(given, indent=1) + "\n", encoding="utf-8")
    bench = Bench.open(config)
    about = environment(bench.session) | {"workers": workers}
    (out / "environment.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    done = log.done()
    jobs = [Job(suite, length, fitted, {k for k in done if k[:3] == (suite, length, fitted.example.id)})
            for suite, by_length in planned(config, bench).items()
            for length, prompts in by_length.items() for fitted in prompts]
    jobs = [job for job in jobs if _missing(config, job.suite, job.length, job.fitted, job.done)]
    total = sum(len(_missing(config, job.suite, job.length, job.fitted, job.done)) for job in jobs)
    with tqdm(total=total, unit="row", disable=not sys.stderr.isatty()) as bar:
        for row in _rows(config, bench, jobs, workers):
            log.append(row)
            bar.update()
    return log.rows


def _rows(config: SweepConfig, bench: Bench, jobs: Sequence[Job], workers: int) -> Iterator[dict[str, Any]]:
    if workers > 1 and jobs:
        yield from spread(config, jobs, workers)
        return
    if jobs:
        warm_up(config, bench, jobs[0].fitted)
    for job in jobs:
        yield from run_prompt(config, bench, job.suite, job.length, job.fitted, job.done)


def warm_up(config: SweepConfig, bench: Bench, fitted: Fitted) -> None:
    """Every method runs a few steps on a short prompt, untimed: kernels are chosen, memory is allocated."""
    budgets = [v.budget(config.budget) for v in config.variants if v.method != TRANSFORMERS]
    state = Prefilled(bench.session.target, bench.heads, config.variants, fitted.ids[-256:], 8 + max(budgets))
    for variant in config.variants:
        with suppress(ValueError, RuntimeError, MemoryError):       # its own rows will say it
            state.decode(variant, Sampling(), 8, config.budget)


def lines_of_plan(config: SweepConfig, bench: Bench) -> list[str]:
    """For people, before anything long is run: prompts per bucket, memory at the longest, a rough time."""
    session, plans = bench.session, planned(config, bench)
    out = [f"{session.target.name} on {session.target.device} in {str(session.target.dtype)[6:]}; methods "
           f"{', '.join(v.name for v in config.variants)}; modes {', '.join(config.modes)}; {config.repeats} repeats"]
    for suite, by_length in plans.items():
        counts = ", ".join(f"{length:,}: {len(prompts) or 'none'}" for length, prompts in by_length.items())
        out.append(f"  {suite}: prompts by length {counts}")
    fitted = [f for by_length in plans.values() for prompts in by_length.values() for f in prompts]
    if not fitted:
        return [*out, "No prompt is long enough for any of these lengths."]
    longest = max(len(f.ids) for f in fitted) + config.max_new_tokens + (config.budget or 60)
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
    budgets = [v.budget(config.budget) for v in variants if v.method != TRANSFORMERS]
    state = Prefilled(bench.session.target, bench.heads, variants, ids, 16 + max(budgets))
    seconds = sum(state.decode(v, config.sampling("sampled"), 16, config.budget)[1].decode_seconds for v in variants)
    return len(ids) / state.seconds, 16 * len(variants) / seconds


def environment(session: Session) -> dict[str, Any]:
    """What a result needs to be believed."""
    import transformers

    def git(*command: str) -> str:
        try:
            return subprocess.run(["git", *command], capture_output=True, text=True, check=True,
                                  cwd=Path(__file__).parent).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return "unknown"

    on_gpu = session.target.device.type == "cuda"
    return {"git": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "--untracked-files=no")),
            "python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__,
            "device": torch.cuda.get_device_name() if on_gpu else f"CPU ({platform.machine()})",
            "threads": torch.get_num_threads(), "cores": os.cpu_count(), "target": session.target.name,
            "dtype": str(session.target.dtype)[6:], "attention": session.target.attention,
            "argv": [Path(sys.argv[0]).name, *sys.argv[1:]], "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}

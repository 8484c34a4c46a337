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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from longgraft.calibration import Calibration
from longgraft.eval.buckets import Fitted, as_it_is, plan, whole
from longgraft.eval.loops import loops
from longgraft.eval.losslessness import first_divergence, margin
from longgraft.eval.measure import PLAIN, TRANSFORMERS, Prefilled, Stock, Variant
from longgraft.eval.report import key
from longgraft.eval.scores import score
from longgraft.eval.suites import load_suite
from longgraft.eval.workers import Crew, Done, Job, Processes, spread
from longgraft.loading import identity_of, load
from longgraft.session import Sampling, Session
from longgraft.yarn_drafters.checkpoint import load_head
from longgraft.yarn_drafters.layouts import HeadOverrides, TargetShape

MODES = ("replay", "sampled", "greedy")
ROWS = "per_prompt.jsonl"
# EAGLE's tables and the paper's Tables 1 and 5: question sets as they are, temperature 0, up to 1,024 new tokens.
SHORT = {"suites": ("humaneval", "gsm8k", "cnn_dm", "alpaca", "mt_bench"), "lengths": (), "modes": ("greedy",),
         "prompts": 20, "max_new_tokens": 1024}


@dataclass(frozen=True)
class SweepConfig:
    """Everything that a sweep's numbers depend on.

    lengths: prompt tokens; none: prompts as they are, and their later turns.  heads: name -> folder or hub id.
    """

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
    calibrations: dict[str, str] = field(default_factory=dict)      # name -> file, for +thresholds=name, +warm=name
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
            for what, option, wanted, given in (
                    ("head", "head", [variant.head] if variant.head else [], self.heads),
                    ("calibration", "calibrated", variant.calibrations.values(), self.calibrations)):
                if missing := [name for name in wanted if name not in given]:
                    raise ValueError(f"{variant.name} names the {what} {missing[0]!r}, which was not given. "
                                     f"Add --{option} {missing[0]}=PATH.")

    @classmethod
    def load(cls, path: Path | None, base: Mapping[str, Any] | None = None, **changes: Any) -> SweepConfig:
        """A configuration from JSON or TOML; changes win, unless None; base: what neither says."""
        given: dict[str, Any] = dict(base or {})
        if path is not None:
            try:
                text = path.read_text(encoding="utf-8")
                given |= tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
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
    """What a sweep runs on: one target, its tokenizer, and what its variants are made of."""

    session: Session
    stock: Stock

    @classmethod
    def open(cls, config: SweepConfig) -> Bench:
        """Load the target once, every head and every calibration."""
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
        identity = identity_of(target, session.tokenizer, session.parts.network)
        return cls(session, Stock(heads, {name: Calibration.load(Path(path), identity, target.device)
                                          for name, path in config.calibrations.items()}))


def planned(config: SweepConfig, bench: Bench) -> dict[str, dict[int, list[Fitted]]]:
    """suite -> length -> prompts, cut to length or whole."""
    data = None if config.data is None else Path(config.data)
    found = {}
    for suite in config.suites:
        examples = load_suite(suite, data, [Path(path) for path in config.recorded])
        if config.modes == ("replay",):
            examples = [example for example in examples if example.continuations]
            if not examples:
                raise ValueError(f"No row of {suite} has a recorded continuation to replay. Give --recorded FILE, or "
                                 "another --modes.")
        tokenizer = bench.session.tokenizer
        found[suite] = (plan(examples, tokenizer, config.lengths, config.prompts) if config.lengths
                        else whole(examples, tokenizer, config.prompts))
    return found


def measure_prompt(config: SweepConfig, bench: Bench, fitted: Fitted, wanted: set[tuple[str, str, int]]
                   ) -> Iterator[dict[str, Any]]:
    """The rows (mode, method, repeat) of one prompt that are wanted, from one prefill."""
    session, example = bench.session, fitted.example
    limit = min(config.max_new_tokens, example.max_new_tokens or config.max_new_tokens)
    most = session.target.max_positions
    # A length is the user's choice, up to the last position; a whole prompt is as long as it is.
    if not config.lengths and len(fitted.ids) + limit > most:
        raise ValueError(f"The prompt has {len(fitted.ids):,} tokens and {limit:,} may follow, but "
                         f"{session.target.name} has {most:,} positions. Lower --max-new-tokens, or cut prompts to a "
                         "length with `longgraft sweep`.")
    variants = [v for v in config.variants if any(v.name == method for _, method, _ in wanted)]
    variants = list(dict.fromkeys((Variant.parse(PLAIN), *variants)))
    budgets = [v.budget(config.budget) for v in variants if v.method != TRANSFORMERS]
    state = Prefilled(session.target, bench.stock, variants, fitted.ids, limit + max(budgets))
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
    """What is replayed, in the target's tokens."""
    text = example.recording
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

    def done(self) -> Done:
        """What is there, failures included."""
        return {key(row): row.get("token_ids", []) for row in self.rows}


def _missing(config: SweepConfig, suite: str, length: int, fitted: Fitted,
             done: Done) -> set[tuple[str, str, int]]:
    """(mode, method, repeat) of a prompt, in this turn, that no row has yet."""
    example = fitted.example
    return {(mode, variant.name, repeat) for mode in config.modes for variant in config.variants
            for repeat in range(config.repeats)
            if (mode != "replay" or example.continuations)
            and (mode != "sampled" or variant.method != TRANSFORMERS)     # its random numbers are others
            and (suite, length, example.id, mode, variant.name, repeat) not in done}


def _about(suite: str, length: int, fitted: Fitted) -> dict[str, Any]:
    return {"suite": suite, "bucket": length, "prompt_id": fitted.example.id, "turn": fitted.example.turn,
            "cut_tokens": fitted.cut_tokens}


def _turns(config: SweepConfig, fitted: Fitted) -> list[Fitted]:
    """A prompt and, where prompts are taken whole, its later turns, of which the answers before them are not known."""
    turns = [fitted]
    while not config.lengths and turns[-1].example.follow_ups:
        turns.append(replace(turns[-1], example=turns[-1].example.next_turn("")))
    return turns


def count_missing(config: SweepConfig, job: Job) -> int:
    """Rows of a prompt, all turns together, that are not there yet."""
    return sum(len(_missing(config, job.suite, job.length, turn, job.done)) for turn in _turns(config, job.fitted))


def run_prompt(config: SweepConfig, bench: Bench, suite: str, length: int, fitted: Fitted,
               done: Done) -> Iterator[dict[str, Any]]:
    """All missing rows of one prompt and of its later turns; what fails becomes rows that say why, and hold no number.

    A later turn follows what plain decoding answered in the same mode: every method is measured on one conversation.
    """
    made, session = dict(done), bench.session
    yield from _run_turn(config, bench, suite, length, fitted, made)
    for mode in config.modes if not config.lengths else ():
        alone, turn = replace(config, modes=(mode,)), fitted
        while turn.example.follow_ups:
            said = made.get((suite, length, turn.example.id, mode, PLAIN, 0))
            if not said:
                yield from failures(alone, suite, length, turn, made, f"turn {turn.example.turn} has no answer to go "
                                                                      "on from: its own rows say why")
                break
            # As a chat would keep it: without the token that ended it.
            answer = session.tokenizer.decode([t for t in said if t not in session.eos], skip_special_tokens=True)
            turn = as_it_is(turn.example.next_turn(answer), session.tokenizer)
            yield from _run_turn(alone, bench, suite, length, turn, made)


def _run_turn(config: SweepConfig, bench: Bench, suite: str, length: int, fitted: Fitted,
              made: Done) -> Iterator[dict[str, Any]]:
    """All missing rows of one turn, which are added to `made`."""
    wanted, about = _missing(config, suite, length, fitted, made), _about(suite, length, fitted)
    if not wanted:
        return
    try:
        for row in measure_prompt(config, bench, fitted, wanted):
            made[key(about | row)] = row["token_ids"]
            yield about | row
    except (ValueError, RuntimeError, MemoryError) as error:
        for row in _failed(config, suite, length, fitted, made, f"{type(error).__name__}: {error}"):
            made[key(row)] = []
            yield row


def failures(config: SweepConfig, suite: str, length: int, fitted: Fitted, done: Done,
             why: str) -> Iterator[dict[str, Any]]:
    """A row without numbers for everything of this prompt and its later turns that is missing."""
    for turn in _turns(config, fitted):
        yield from _failed(config, suite, length, turn, done, why)


def _failed(config: SweepConfig, suite: str, length: int, fitted: Fitted, done: Done,
            why: str) -> Iterator[dict[str, Any]]:
    for mode, method, repeat in sorted(_missing(config, suite, length, fitted, done)):
        yield _about(suite, length, fitted) | {"mode": mode, "method": method, "repeat": repeat, "error": why}


def sweep(config: SweepConfig, out: Path, resume: bool = False, workers: int | None = None,
          ray: str | None = None) -> list[dict[str, Any]]:
    """Run what is missing of the plan; returns all rows.  Writes config.json, environment.json and the rows.

    workers: None: one, in this process; on a cluster as many as it holds.  ray: a cluster's address.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}; it must be 1 or more.")
    if ray is not None:
        from longgraft.eval.ray_workers import actors

        with actors(ray, config, workers) as crew:
            return _sweep(config, out, resume, crew)
    return _sweep(config, out, resume, Processes(config, workers) if workers and workers > 1 else None)


def _sweep(config: SweepConfig, out: Path, resume: bool, crew: Crew | None) -> list[dict[str, Any]]:
    from tqdm import tqdm

    out.mkdir(parents=True, exist_ok=True)
    saved = out / "config.json"
    given = json.loads(json.dumps(asdict(config)))
    if resume and saved.exists() and json.loads(saved.read_text(encoding="utf-8")) != given:
        raise ValueError(f"{saved} was written by another configuration. Resume with the same options, or give another "
                         "--out.")
    log = RowLog(out / ROWS, resume)
    saved.write_text(json.dumps(given, indent=1) + "\n", encoding="utf-8")
    # Where workers measure, this copy only cuts prompts: it takes no GPU's memory and needs no GPU.
    bench = Bench.open(replace(config, device="cpu", attention="auto") if crew else config)
    devices: set[str] = set()

    def opened(about: dict[str, Any]) -> None:
        devices.add(about["device"])
        about = about | {"argv": argv(), "device": ", ".join(sorted(devices))}
        about |= crew.about() if crew else {"workers": 1}
        (out / "environment.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")

    opened(environment(bench.session))
    devices.clear()         # a worker's own environment takes its place
    done = log.done()
    found = planned(config, bench)
    # Every suite and length gets its first prompt, then its second, ...: a run that is cut short is balanced.
    jobs = [Job(suite, length, prompts[index], {k: said for k, said in done.items() if k[:2] == (suite, length)
                                                and k[2] in prompts[index].example.turn_ids})
            for index in range(config.prompts) for suite, by_length in found.items()
            for length, prompts in by_length.items() if index < len(prompts)]
    jobs = [job for job in jobs if count_missing(config, job)]
    total = sum(count_missing(config, job) for job in jobs)
    with tqdm(total=total, unit="row", disable=not sys.stderr.isatty()) as bar:
        for row in _rows(config, bench, jobs, crew, opened):
            log.append(row)
            bar.update()
    return log.rows


def _rows(config: SweepConfig, bench: Bench, jobs: Sequence[Job], crew: Crew | None,
          opened: Callable[[dict[str, Any]], None]) -> Iterator[dict[str, Any]]:
    if crew and jobs:
        yield from spread(config, jobs, crew, opened)
        return
    if jobs:
        warm_up(config, bench, jobs[0].fitted)
    for job in jobs:
        yield from run_prompt(config, bench, job.suite, job.length, job.fitted, job.done)


def warm_up(config: SweepConfig, bench: Bench, fitted: Fitted) -> None:
    """Every method runs a few steps on a short prompt, untimed: kernels are chosen, memory is allocated."""
    budgets = [v.budget(config.budget) for v in config.variants if v.method != TRANSFORMERS]
    state = Prefilled(bench.session.target, bench.stock, config.variants, fitted.ids[-256:], 8 + max(budgets))
    for variant in config.variants:
        with suppress(ValueError, RuntimeError, MemoryError):       # its own rows will say it
            state.decode(variant, Sampling(), 8, config.budget)


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
              for turn in _turns(config, prompt)]
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
    budgets = [v.budget(config.budget) for v in variants if v.method != TRANSFORMERS]
    state = Prefilled(bench.session.target, bench.stock, variants, ids, 16 + max(budgets))
    seconds = sum(state.decode(v, config.sampling("sampled"), 16, config.budget)[1].decode_seconds for v in variants)
    return len(ids) / state.seconds, 16 * len(variants) / seconds


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

    on_gpu = session.target.device.type == "cuda"
    return {"git": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "--untracked-files=no")),
            "python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__,
            "device": torch.cuda.get_device_name() if on_gpu else f"CPU ({platform.machine()})",
            "threads": torch.get_num_threads(), "cores": os.cpu_count(), "target": session.target.name,
            "dtype": str(session.target.dtype)[6:], "attention": session.target.attention,
            "argv": argv(), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}

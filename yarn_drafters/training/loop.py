"""A training run that lives in one folder: batches, schedule, checkpoints, log, data parallelism.

Knows token streams and optimizers; knows no model and no objective.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from longgraft.yarn_drafters.training.corpus import EncodedCorpus, TokenStream, grouped_documents, mixed_documents
from longgraft.yarn_drafters.training.schedule import cosine, warmup_stable_decay

Figures = dict[str, float | list[float]]
SHIPPED = Path(__file__).parents[1] / "recipes"     # recipes that a bare name stands for
CPU = torch.device("cpu")
PATIENCE = timedelta(hours=12)                      # while the first process reads the corpus, the others wait


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum.  share: of the run's progress; skip: of rows that jump; grouped: rows follow one
    another in their repository."""

    length: int
    share: float = 1.0
    skip: float = 0.0
    grouped: bool = False


@dataclass(frozen=True)
class Recipe:
    """What every training run chooses.  threads and device: None for torch's own choice."""

    stages: tuple[Stage, ...] = (Stage(2048),)
    total_tokens: int = 10_000_000
    tokens_per_step: int = 8192
    micro_tokens: int | None = None     # at once on a device; None: all of a step's
    budget_minutes: float | None = None  # progress follows the further of tokens and clock
    max_positions: int = 65536
    prose_share: float | None = None    # of meetings, books and reports, at most; None: all of them

    schedule: str = "wsd"               # wsd | cosine
    warmup: float = 0.02
    decay: float = 0.2
    muon_lr: float = 2.5e-3             # AdamW-like scale: match_rms_adamw, arXiv 2502.16982
    muon_decay: float = 0.1
    grad_clip: float = 1.0

    seed: int = 0
    threads: int | None = None
    device: str | None = None
    bf16: bool = True
    log_steps: int = 10
    valid_steps: int = 100              # steps between measurements on unseen text
    valid_rows: int = 12                # unseen rows of code; half as many of prose and of other text
    valid_length: int = 2048
    checkpoint_minutes: float = 3.0

    @classmethod
    def load(cls, path: Path | None = None, base: Self | None = None, **changes: Any) -> Self:
        """base (the defaults), changed by a JSON or TOML file, changed by what of `changes` is not None."""
        given: dict[str, Any] = {}
        if path is not None:
            if not Path(path).exists() and (SHIPPED / f"{path}.toml").exists():
                path = SHIPPED / f"{path}.toml"
            try:
                text = Path(path).read_text(encoding="utf-8")
                given = tomllib.loads(text) if Path(path).suffix == ".toml" else json.loads(text)
            except (OSError, ValueError) as error:
                shipped = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.toml")))
                raise ValueError(f"The recipe {path} cannot be read: {error}.\n"
                                 f"Give a file, or one of {shipped}.") from error
        given |= {name: value for name, value in changes.items() if value is not None}
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise ValueError(f"{path} sets {', '.join(unknown)}, which a {cls.__name__} does not have.\n"
                             f"Known: {', '.join(sorted(known))}.")
        try:
            return replace(base or cls(), **cls._parse(given))
        except TypeError as error:
            raise ValueError(f"The recipe {path} has a value of the wrong kind: {error}.") from error

    @classmethod
    def _parse(cls, given: dict[str, Any]) -> dict[str, Any]:
        if "stages" in given:
            given["stages"] = tuple(s if isinstance(s, Stage) else Stage(**s) for s in given["stages"])
        return given

    def __post_init__(self) -> None:
        for name in ("total_tokens", "tokens_per_step", "log_steps", "valid_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more.")
        if self.schedule not in ("wsd", "cosine"):
            raise ValueError(f"Schedule {self.schedule!r} is unknown. Known: wsd, cosine.")
        if not self.stages or any(TokenStream.window % stage.length for stage in self.stages):
            raise ValueError(f"Stages of {', '.join(str(s.length) for s in self.stages) or 'no'} tokens were given; "
                             f"each length must divide {TokenStream.window:,}: use powers of two.")
        longest = max(stage.length for stage in self.stages)
        if longest > self.max_positions:
            raise ValueError(f"A stage has rows of {longest:,} tokens and max_positions is {self.max_positions:,}. "
                             "Raise the latter or shorten the stage.")
        if self.total_tokens < 2 * max(self.tokens_per_step, longest):
            raise ValueError(f"total_tokens is {self.total_tokens:,} and a step takes "
                             f"{max(self.tokens_per_step, longest):,}: that is no training. Raise the one or lower the "
                             "other.")

    def stage_at(self, progress: float) -> Stage:
        """The curriculum's stage at this progress."""
        ends = np.cumsum([stage.share for stage in self.stages]) / sum(stage.share for stage in self.stages)
        return self.stages[min(int(np.searchsorted(ends, progress, side="right")), len(self.stages) - 1)]

    def rate(self, progress: float) -> float:
        """The multiplier of the peak learning rates."""
        if self.schedule == "cosine":
            return cosine(progress, self.warmup)
        return warmup_stable_decay(progress, self.warmup, self.decay)

    def autocast(self, device: torch.device) -> AbstractContextManager:
        """bfloat16 matrix products, if the recipe wants them."""
        return torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.bf16)


@dataclass(frozen=True)
class World:
    """The processes that `torchrun` started, of which this is one; alone without it."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @classmethod
    def join(cls, wanted: str | None = None) -> World:
        """Meet the others on the wanted kind of device, by default GPUs where there are any: nccl there, else gloo."""
        device = torch.device(wanted or ("cuda" if torch.cuda.is_available() else "cpu"))
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls(device=device)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
        return cls(dist.get_rank(), dist.get_world_size(), device)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """In place, over all processes."""
        if self.size > 1:
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            dist.all_reduce(flat)
            for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(total.view_as(tensor))

    @contextmanager
    def first_in_turn(self) -> Iterator[None]:
        """The first process does the block before the others, which then find its files."""
        if not self.first:
            dist.barrier()
        yield
        if self.first and self.size > 1:
            dist.barrier()


ALONE = World()


def skipped_positions(rows: int, length: int, stage: Stage, limit: int, rng: np.random.Generator) -> Tensor:
    """[rows, length] int64 positions; in some rows a second piece jumps ahead.

    PoSE, arXiv 2309.10400: short rows that show the model every distance up to `limit`.
    """
    positions = np.tile(np.arange(length), (rows, 1))
    for row in range(rows):
        if rng.random() < stage.skip and limit > length:
            split = rng.integers(1, length)
            positions[row, split:] += rng.integers(0, limit - length + 1)
    return torch.from_numpy(positions)


@dataclass
class TrainingState:
    """What a run has done so far; with the weights and moments, all that resuming needs."""

    step: int = 0
    tokens: int = 0
    elapsed: float = 0.0                # seconds of training, pauses between resumed runs left out
    cursors: dict[str, int] = field(default_factory=lambda: {"mixed": 0, "grouped": 0})


def muon_and_adam(matrices: Sequence[nn.Parameter], others: Sequence[dict[str, Any]],
                  recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices (arXiv 2502.16982), AdamW for the given groups of {params, lr}."""
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=recipe.muon_lr, weight_decay=recipe.muon_decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)]
    for group in (g for optimizer in optimizers for g in optimizer.param_groups):
        group["peak"] = group["lr"]
    return optimizers


class Trainer(ABC):
    """One run in one folder: owns module, optimizers, streams and state.  Subclasses say what is learnt.

    first_learnt: the first token of a row that the objective predicts.
    """

    first_learnt = 1

    def __init__(self, recipe: Recipe, module: nn.Module, optimizers: list[torch.optim.Optimizer],
                 corpus: EncodedCorpus, out: Path, identity: dict[str, Any], world: World = ALONE) -> None:
        if world.size > 1 and recipe.budget_minutes:
            raise ValueError("budget_minutes does not go with several processes, whose clocks differ. Set "
                             "total_tokens.")
        self.recipe, self.module, self.optimizers, self.world = recipe, module, optimizers, world
        self.out, self.state, self.device = Path(out), TrainingState(), world.device
        self.identity = json.loads(json.dumps(identity))    # as it comes back from a checkpoint
        share = recipe.prose_share
        self.streams = {
            "mixed": TokenStream(corpus, recipe.seed, shuffled=True, order=partial(mixed_documents, prose_share=share)),
            "grouped": TokenStream(corpus, recipe.seed + 1, order=partial(grouped_documents, prose_share=share))}

    @abstractmethod
    def objective(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Figures]:
        """The mean loss over what these rows have to be learnt, and figures to log.

        rows: [B, length + 1] int64, ~id where a token is context only; positions: [B, length] int64.
        """

    def measure(self) -> dict[str, Any]:
        """Figures on unseen text."""
        return {}

    def progress(self, ahead: int = 0) -> float:
        """Share of the run that is done, in [0, 1], the further of tokens and clock; `ahead` tokens from now."""
        budget = self.recipe.budget_minutes
        by_clock = self.state.elapsed / (60 * budget) if budget else 0.0
        return min(1.0, max((self.state.tokens + ahead) / self.recipe.total_tokens, by_clock))

    def step(self) -> Figures:
        """One optimizer step over all processes; the mean figures of this one's rows."""
        recipe, state = self.recipe, self.state
        batches, taken = self._batches(recipe.stage_at(self.progress()))
        # Chats differ in how much of a row is to be learnt: batches weigh by that, over all processes.
        learnt = torch.tensor([float((rows[:, self.first_learnt:] >= 0).sum()) for rows, _ in batches],
                              device=self.device)
        total = learnt.sum()
        self.world.sum([total])
        figures = []
        for (rows, positions), own in zip(batches, learnt, strict=True):
            loss, found = self.objective(rows.to(self.device), positions.to(self.device))
            (loss * (own / total.clamp(min=1))).backward()
            figures.append(found)
        parameters = [p for p in self.module.parameters() if p.grad is not None]
        self.world.sum([p.grad for p in parameters if p.grad is not None])
        norm = nn.utils.clip_grad_norm_(parameters, recipe.grad_clip)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"The gradient's norm is {norm.item()} at step {state.step}.\n"
                                     "Lower the learning rates and run again: it resumes from the last checkpoint.")
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * recipe.rate(self.progress(taken // 2))     # neither end is 0
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        state.step += 1
        state.tokens += taken
        return mean(figures)

    def _batches(self, stage: Stage) -> tuple[list[tuple[Tensor, Tensor]], int]:
        """This process's micro-batches of (rows, positions), and how many tokens all processes take."""
        recipe, state, size = self.recipe, self.state, self.world.size
        count = max(1, recipe.tokens_per_step // stage.length // size) * size
        name = "grouped" if stage.grouped else "mixed"
        if state.cursors[name] % stage.length:          # the rows' length has changed
            state.cursors[name] = self.streams[name].aligned(state.cursors[name])
        rows = torch.from_numpy(self.streams[name].rows(state.cursors[name], count, stage.length))
        state.cursors[name] += count * stage.length
        rng = np.random.default_rng([recipe.seed, 2, state.step])       # keyed by step: resumes
        positions = skipped_positions(count, stage.length, stage, recipe.max_positions, rng)
        mine = slice(self.world.rank * count // size, (self.world.rank + 1) * count // size)
        at_once = max(1, (recipe.micro_tokens or count * stage.length) // stage.length)
        return list(zip(rows[mine].split(at_once), positions[mine].split(at_once), strict=True)), count * stage.length

    def save(self) -> None:
        """Write checkpoint.pt, whole or not at all."""
        part = self.out / "checkpoint.partial"
        torch.save({"module": self.module.state_dict(), "state": asdict(self.state), "identity": self.identity,
                    "optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}, part)
        part.replace(self.out / "checkpoint.pt")

    def resume(self) -> bool:
        """Continue from the folder's checkpoint, if there is one; ValueError if it is of something else."""
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return False
        saved = torch.load(path, weights_only=True, map_location=self.device)
        if other := [f"{name} {saved['identity'].get(name)!r}, now {value!r}" for name, value in self.identity.items()
                     if saved["identity"].get(name) != value]:
            raise ValueError(f"{self.out} holds a run of something else: {'; '.join(other)}.\n"
                             "Give --out another folder.")
        self.module.load_state_dict(saved["module"])
        for optimizer, moments in zip(self.optimizers, saved["optimizers"], strict=True):
            peaks = [group["peak"] for group in optimizer.param_groups]
            optimizer.load_state_dict(moments)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["peak"] = peak        # the recipe's, not the checkpoint's
        self.state = TrainingState(**saved["state"])
        return True

    def run(self, **about: Any) -> None:
        """Resume or start, and step until the progress is whole.  about: goes into the log's first line."""
        first = self.world.first
        resumed = self.resume()
        if first:
            (self.out / "recipe.json").write_text(json.dumps(asdict(self.recipe), indent=1) + "\n", encoding="utf-8")
            log(self.out, {"event": "resumed" if resumed else "started", "torch": torch.__version__,
                           "device": str(self.device), "processes": self.world.size, **about})
        self._steps()
        if first:
            self.save()
            log(self.out, {"event": "finished", **asdict(self.state), **self.measure()})

    def _steps(self) -> None:
        from tqdm import tqdm

        recipe, state, figures, first = self.recipe, self.state, [], self.world.first
        saved, mark = time.monotonic(), (time.monotonic(), state.tokens)
        with tqdm(total=recipe.total_tokens, initial=state.tokens, unit="tok", unit_scale=True,
                  disable=not (first and sys.stderr.isatty())) as bar:
            while (progress := self.progress()) < 1.0:
                began, before = time.monotonic(), state.tokens
                figures.append(self.step())
                bar.update(state.tokens - before)
                if first and state.step % recipe.log_steps == 0:
                    log(self.out, {
                        "step": state.step, "tokens": state.tokens, "progress": progress, **mean(figures),
                        "rate": recipe.rate(progress), "length": recipe.stage_at(progress).length,
                        "tokens_per_second": round((state.tokens - mark[1]) / (time.monotonic() - mark[0]))})
                    figures, mark = [], (time.monotonic(), state.tokens)
                if first and state.step % recipe.valid_steps == 0:
                    log(self.out, {"step": state.step, "tokens": state.tokens, **self.measure()})
                state.elapsed += time.monotonic() - began
                if first and time.monotonic() - saved > 60 * recipe.checkpoint_minutes:
                    saved = time.monotonic()
                    self.save()


def mean(figures: Sequence[Figures]) -> Figures:
    """Name by name; lists item by item."""
    return {name: np.mean([f[name] for f in figures], axis=0).tolist() for name in figures[0]}


@contextmanager
def sole_trainer(out: Path, world: World = ALONE) -> Iterator[None]:
    """Make the folder and hold it: two trainers in one would overwrite each other's checkpoints."""
    out.mkdir(parents=True, exist_ok=True)
    if not world.first:
        yield
        return
    with open(out / "lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as held:
            raise ValueError(f"Another process is training in {out}.\n"
                             "Give --out another folder, or wait until it has ended.") from held
        yield


def log(out: Path, line: dict[str, Any]) -> None:
    """One JSON line into log.jsonl and on stdout."""
    short = {name: np.round(value, 4).tolist() if isinstance(value, float | list) else value
             for name, value in line.items()}
    with open(out / "log.jsonl", "a", encoding="utf-8") as lines:
        lines.write(json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%S"), **short}) + "\n")
    print(json.dumps(short), flush=True)

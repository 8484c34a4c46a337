"""Runs a training in one folder: batches, schedule, checkpoints, log, data parallelism."""

from __future__ import annotations

import json
import sys
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longgraft.config.options import Checked, checked
from longgraft.files.data_files import read_table
from longgraft.files.file_errors import reason
from longgraft.files.whole_files import RowFile, write_whole, written_whole
from longgraft.yarn_drafters.training.corpus import EncodedCorpus
from longgraft.yarn_drafters.training.distributed import SINGLE_PROCESS, World
from longgraft.yarn_drafters.training.recipe import NotNegative, Recipe, Stage, Whole
from longgraft.yarn_drafters.training.streams import TokenStream, grouped_documents, mixed_documents

WRITING = 15.0  # seconds reserved for the last measurement and for writing the result

Figures = dict[str, float | list[float]]


def skipped_positions(rows: int, length: int, stage: Stage, limit: int, rng: np.random.Generator) -> Tensor:
    """Returns [rows, length] int64 positions; in a share of rows, a second part is shifted ahead.

    Source: PoSE, arXiv 2309.10400.  Short rows train on every distance up to `limit`.
    """
    positions = np.tile(np.arange(length), (rows, 1))
    for row in range(rows):
        if rng.random() < stage.skip and limit > length:
            split = rng.integers(1, length)
            positions[row, split:] += rng.integers(0, limit - length + 1)
    return torch.from_numpy(positions)


@dataclass
class TrainingState(Checked):
    """Progress of a run.  Resuming needs this, the weights and the optimizers' moments."""

    step: Whole = 0
    tokens: Whole = 0
    elapsed: NotNegative = 0.0  # seconds of training, without pauses between resumed runs
    cursors: dict[str, int] = field(default_factory=lambda: {"mixed": 0, "grouped": 0})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mixed", "grouped"):
            checked(self.cursors.get(name), Whole, f"cursors.{name}")


def muon_and_adam(
    matrices: Sequence[nn.Parameter], adam_groups: Sequence[dict[str, Any]], recipe: Recipe
) -> list[torch.optim.Optimizer]:
    """Returns Muon for the matrices (arXiv 2502.16982) and AdamW for the given groups of {params, lr}."""
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=recipe.muon_lr, weight_decay=recipe.muon_decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(adam_groups, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    for group in (g for optimizer in optimizers for g in optimizer.param_groups):
        group["peak"] = group["lr"]
    return optimizers


class Trainer(ABC):
    """One run in one folder, with module, optimizers, streams and state.  Subclasses define the objective.

    Attributes:
        first_learnt: Index of the first token of a row that the objective predicts.
    """

    first_learnt = 1

    def __init__(
        self,
        recipe: Recipe,
        module: nn.Module,
        optimizers: list[torch.optim.Optimizer],
        corpus: EncodedCorpus,
        out: Path,
        identity: dict[str, Any],
        world: World = SINGLE_PROCESS,
    ) -> None:
        if world.size > 1 and recipe.budget_minutes:
            raise ValueError(
                "budget_minutes cannot be used with several processes, whose clocks differ. Set total_tokens."
            )
        self.recipe = recipe
        self.module = module
        self.optimizers = optimizers
        self.world = world
        self.changed: list[str] = []  # settings that differ from those of a resumed run's last steps
        self.out = Path(out)
        self.state = TrainingState()
        self.device = world.device
        self.identity = json.loads(json.dumps(identity))  # as a checkpoint returns it
        texts = f"{len(corpus.tokens):,} tokens ({zlib.crc32(np.ascontiguousarray(corpus.tokens).data):08x})"
        self.made_with = json.loads(json.dumps({**recipe.of_steps(), "training text": texts}))
        share = recipe.prose_share
        seed = recipe.seed
        mixed, grouped = (partial(order, prose_share=share) for order in (mixed_documents, grouped_documents))
        size = TokenStream(corpus, seed, mixed).size()
        if size <= recipe.longest:
            raise ValueError(
                f"The training files hold {size:,} tokens, and a row takes "
                f"{recipe.longest + 1:,}. Give more text, or shorter stages in the recipe."
            )
        repeated = None
        if recipe.repeat_rows:
            repeated = size // recipe.longest * recipe.longest
        self.streams = {
            "mixed": TokenStream(corpus, seed, mixed, shuffled=True, repeated=repeated),
            "grouped": TokenStream(corpus, seed + 1, grouped, repeated=repeated),
        }

    @abstractmethod
    def objective(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Figures]:
        """Returns the mean loss over the learnt tokens of these rows, and figures to log.

        Args:
            rows: [B, length + 1] int64, ~id for a token that is only context.
            positions: [B, length] int64.
        """

    def measure(self) -> dict[str, Any]:
        """Returns figures on unseen text."""
        return {}

    @torch.no_grad()
    def figures_of(self, coded: np.ndarray) -> Figures:
        """Returns the objective's mean figures on rows [r, length + 1] of unseen text."""
        rows = torch.from_numpy(coded).to(self.device)
        positions = torch.arange(rows.shape[1] - 1, device=self.device)[None]
        return mean([self.objective(row[None], positions)[1] for row in rows])

    def progress(self, ahead: int = 0) -> float:
        """Returns the share of the run that is done after `ahead` more tokens, by tokens or by time,
        whichever is larger."""
        budget = self.recipe.budget_minutes
        by_clock = 0.0
        if budget:
            by_clock = self.state.elapsed / (60 * budget)
        return min(1.0, max((self.state.tokens + ahead) / self.recipe.total_tokens, by_clock))

    def _end_at(self, until: float | None) -> None:
        """Sets the run's time so that its result is written by `until`, as in `time.monotonic`; None: as it was.

        Raises:
            ValueError: loading has left no time for a step.
        """
        if until is None:
            return
        if self.world.size > 1:
            raise ValueError("--minutes cannot be used with several processes, whose clocks differ. Set --tokens.")
        left = until - time.monotonic() - WRITING
        if left <= 0:
            raise ValueError(
                "Reading the texts and the target took all the time of --minutes, less "
                f"{WRITING:.0f} s for writing the result. Give more minutes."
            )
        self.recipe = replace(self.recipe, budget_minutes=(self.state.elapsed + left) / 60)

    def step(self) -> Figures:
        """Takes one optimizer step over all processes; returns the mean figures of this process's rows."""
        recipe = self.recipe
        state = self.state
        batches, taken = self._batches(recipe.stage_at(self.progress()))
        # Chats have different numbers of learnt tokens per row, so batches are weighted by them, over all processes.
        learnt = torch.tensor(
            [float((rows[:, self.first_learnt :] >= 0).sum()) for rows, _ in batches], device=self.device
        )
        total = learnt.sum()
        self.world.sum([total])
        figures = []
        for (rows, positions), share_of_loss in zip(batches, learnt, strict=True):
            loss, figures_of_rows = self.objective(rows.to(self.device), positions.to(self.device))
            (loss * (share_of_loss / total.clamp(min=1))).backward()
            figures.append(figures_of_rows)
        parameters = [p for p in self.module.parameters() if p.grad is not None]
        self.world.sum([p.grad for p in parameters if p.grad is not None])
        norm = nn.utils.clip_grad_norm_(parameters, recipe.grad_clip)
        if not torch.isfinite(norm):
            raise ValueError(
                f"The gradient's norm is {norm.item()} at step {state.step}: the training "
                "diverged.\nLower the learning rates and run again: it resumes from the last "
                "checkpoint."
            )
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * recipe.rate(self.progress(taken // 2))  # neither end is 0
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        state.step += 1
        state.tokens += taken
        return mean(figures)

    def _batches(self, stage: Stage) -> tuple[list[tuple[Tensor, Tensor]], int]:
        """Returns this process's micro-batches of (rows, positions), and the number of tokens of all processes."""
        recipe = self.recipe
        state = self.state
        size = self.world.size
        count = max(1, recipe.tokens_per_step // stage.length // size) * size
        name = "mixed"
        if stage.grouped:
            name = "grouped"
        if state.cursors[name] % stage.length:  # the rows' length has changed
            state.cursors[name] = self.streams[name].aligned(state.cursors[name])
        rows = torch.from_numpy(self.streams[name].rows(state.cursors[name], count, stage.length))
        state.cursors[name] += count * stage.length
        rng = np.random.default_rng([recipe.seed, 2, state.step])  # keyed by step: resumes
        positions = skipped_positions(count, stage.length, stage, recipe.max_positions, rng)
        mine = slice(self.world.rank * count // size, (self.world.rank + 1) * count // size)
        at_once = max(1, (recipe.micro_tokens or count * stage.length) // stage.length)
        return list(zip(rows[mine].split(at_once), positions[mine].split(at_once), strict=True)), count * stage.length

    def save(self) -> None:
        """Writes checkpoint.pt; a crash leaves no incomplete file."""
        checkpoint = {
            "module": self.module.state_dict(),
            "state": asdict(self.state),
            "identity": self.identity,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "made_with": self.made_with,
        }
        # Python's own file raises an OSError with the reason; torch's own file gives none.
        with written_whole(self.out / "checkpoint.pt") as part, open(part, "wb") as file:
            torch.save(checkpoint, file)

    def resume(self) -> bool:
        """Continues from the folder's checkpoint, if there is one; raises ValueError if it is damaged or of
        another run."""
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return False
        try:
            saved = torch.load(path, weights_only=True, map_location=self.device)
            identity = checked(saved["identity"], dict, "identity")
            state = TrainingState(**saved["state"])
        except Exception as error:  # truncated and foreign files raise half a dozen types
            raise self._damaged(path, error) from error
        changed = list(differences(identity, self.identity))
        if changed:
            raise ValueError(
                f"{self.out} holds a run of something else: {'; '.join(changed)}.\nGive --out another folder."
            )
        try:
            self._take(saved)
        except Exception as error:  # likewise
            raise self._damaged(path, error) from error
        self.state = state
        self._compare(self._made_before(saved))
        return True

    def _made_before(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Returns what the checkpoint's steps were made with; earlier versions kept it in recipe.json alone."""
        before = saved.get("made_with")
        if before is None and (self.out / "recipe.json").exists():
            before = read_table(self.out / "recipe.json")
        return checked(before or {}, dict, "made_with")

    def _compare(self, before: dict[str, Any]) -> None:
        """Notes the settings that have changed; raises ValueError if the run had ended, so that no step is left."""
        now = {name: value for name, value in self.made_with.items() if name in before}
        self.changed = list(differences(before, now))
        total = before.get("total_tokens", 0)
        minutes = before.get("budget_minutes")
        had_ended = self.state.tokens >= total or (minutes is not None and self.state.elapsed >= 60 * minutes)
        if self.changed and had_ended and self.progress() >= 1.0:
            raise ValueError(
                f"{self.out} holds a finished training with other settings: "
                f"{'; '.join(self.changed)}.\nNo step is left for them. Give --out another "
                "folder, or a larger total_tokens (--tokens) to train on."
            )

    def _take(self, saved: dict[str, Any]) -> None:
        """Loads weights and moments of a checkpoint, which must be finite; the peak rates stay the recipe's."""
        self.module.load_state_dict(saved["module"])
        for optimizer, moments in zip(self.optimizers, saved["optimizers"], strict=True):
            peaks = [group["peak"] for group in optimizer.param_groups]
            optimizer.load_state_dict(moments)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["peak"] = peak
        broken = [name for name, value in self.module.state_dict().items() if not bool(value.isfinite().all())]
        if broken:
            raise ValueError(f"NaN or infinite weights in {', '.join(broken[:3])}")

    @staticmethod
    def _damaged(path: Path, error: Exception) -> ValueError:
        return ValueError(
            f"The checkpoint {path} cannot be resumed ({reason(error)}).\n"
            "Delete it to start again, or give --out another folder."
        )

    def run(self, until: float | None = None, **about: Any) -> None:
        """Resumes or starts, and steps until the progress is 1.

        Args:
            until: Time of `time.monotonic` at which the result shall be written; None: the recipe decides
                alone.
            about: Fields of the log's first line.
        """
        first = self.world.first
        resumed = self.resume()
        self._end_at(until)
        if first:
            file = self.out / "recipe.json"
            changed = {"changed": "; ".join(self.changed)} if self.changed else {}
            if self.progress() < 1.0 or not file.exists():  # else no step will be made with this recipe
                write_whole(file, json.dumps(asdict(self.recipe), indent=1) + "\n")
            log(
                self.out,
                {
                    "event": "resumed" if resumed else "started",
                    "torch": torch.__version__,
                    "device": str(self.device),
                    "processes": self.world.size,
                    **about,
                    **changed,
                },
            )
        self._steps()
        if first:
            self.save()
            log(self.out, {"event": "finished", **asdict(self.state), **self.measure()})

    def _steps(self) -> None:
        from tqdm import tqdm

        recipe = self.recipe
        state = self.state
        figures = []
        first = self.world.first
        saved = time.monotonic()
        mark = (time.monotonic(), state.tokens)
        with tqdm(
            total=recipe.total_tokens,
            initial=state.tokens,
            unit="tok",
            unit_scale=True,
            disable=not (first and sys.stderr.isatty()),
        ) as bar:
            while (progress := self.progress()) < 1.0:
                began = time.monotonic()
                before = state.tokens
                figures.append(self.step())
                bar.update(state.tokens - before)
                if first and state.step % recipe.log_steps == 0:
                    log(
                        self.out,
                        {
                            "step": state.step,
                            "tokens": state.tokens,
                            "progress": progress,
                            **mean(figures),
                            "rate": recipe.rate(progress),
                            "length": recipe.stage_at(progress).length,
                            "tokens_per_second": round((state.tokens - mark[1]) / (time.monotonic() - mark[0])),
                        },
                    )
                    figures = []
                    mark = (time.monotonic(), state.tokens)
                if first and state.step % recipe.valid_steps == 0:
                    log(self.out, {"step": state.step, "tokens": state.tokens, **self.measure()})
                state.elapsed += time.monotonic() - began
                if first and time.monotonic() - saved > 60 * recipe.checkpoint_minutes:
                    saved = time.monotonic()
                    self.save()


def differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Yields the values that differ, as "layers 1, now 2"."""
    for name, value in now.items():
        saved = before.get(name)
        if isinstance(saved, dict) and isinstance(value, dict):
            yield from (f"{name} {words}" for words in differences(saved, value))
        elif saved != value:
            yield f"{name} {saved!r}, now {value!r}"


def mean(figures: Sequence[Figures]) -> Figures:
    """Returns the mean of each figure; lists are averaged item by item."""
    return {name: np.mean([f[name] for f in figures], axis=0).tolist() for name in figures[0]}


def log(out: Path, line: dict[str, Any]) -> None:
    """Writes one JSON line to log.jsonl and stdout."""
    short = dict(line)
    for name, value in line.items():
        if isinstance(value, float | list):
            short[name] = np.round(value, 4).tolist()
    with closing(RowFile(out / "log.jsonl")) as lines:
        lines.append(json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%S"), **short}))
    print(json.dumps(short), flush=True)

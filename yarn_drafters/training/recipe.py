"""Settings of training runs with their bounds, for any run and for EAGLE-3 drafters, and the files that set them.

Knows values and ranges; knows no model and no corpus.
"""

from __future__ import annotations

import tomllib
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import torch

from longgraft.config.json_input import parse_json
from longgraft.yarn_drafters.kinds import Count, OneOf, Positive, Range, Share, check_fields
from longgraft.yarn_drafters.layouts import Layers
from longgraft.yarn_drafters.rope import Rope
from longgraft.yarn_drafters.training.corpus import TokenStream
from longgraft.yarn_drafters.training.schedule import cosine, warmup_stable_decay

SHIPPED = Path(__file__).parents[1] / "recipes"     # recipes that can be given by name
Tokens = Annotated[int, Range(1, 10 ** 15)]
Rate = Annotated[float, Range(0, 10, above=True)]   # of an optimizer
NotNegative = Annotated[float, Range(0)]
AtOnce = Annotated[int, Range(1, 2 ** 24)]          # tokens that are in memory together
Size = Annotated[int, Range(1, 2 ** 20)]            # of a model
Schedule = Annotated[str, OneOf(("wsd", "cosine"))]
Whole = Annotated[int, Range(0, 10 ** 15)]


@dataclass(frozen=True)
class Stage:
    """A stage of the curriculum.  share: relative part of the run; skip: share of rows with skipped positions; grouped:
    rows follow one another as in their repository."""

    length: Annotated[int, Range(2, TokenStream.window)]
    share: Annotated[float, Range(0, 1e6, above=True)] = 1.0
    skip: Share = 0.0
    grouped: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Recipe:
    """Settings of every training run.  threads and device: None for torch's own choice."""

    stages: tuple[Stage, ...] = (Stage(2048),)
    total_tokens: Tokens = 10_000_000
    tokens_per_step: AtOnce = 8192
    micro_tokens: AtOnce | None = None   # tokens per forward on a device; None: all of a step's
    budget_minutes: Positive | None = None  # progress is the larger of tokens' and clock's
    max_positions: Count = 65536
    prose_share: Share | None = None    # largest share of meetings, books and reports; None: all of them

    schedule: Schedule = "wsd"
    warmup: Share = 0.02
    decay: Share = 0.2
    muon_lr: Rate = 2.5e-3              # AdamW-like scale: match_rms_adamw, arXiv 2502.16982
    muon_decay: Annotated[float, Range(0, 10)] = 0.1
    grad_clip: Positive = 1.0

    seed: Annotated[int, Range(0, 2 ** 63 - 2)] = 0     # the two streams are seeded with seed and seed + 1
    threads: Annotated[int, Range(1, 1024)] | None = None
    device: str | None = None
    bf16: bool = True
    log_steps: Count = 10
    valid_steps: Count = 100            # steps between measurements on unseen text
    valid_rows: Annotated[int, Range(0, 2 ** 16)] = 12  # unseen rows of code; half as many of prose and of other text
    valid_length: Annotated[int, Range(2, TokenStream.window)] = 2048
    checkpoint_minutes: NotNegative = 3.0

    @classmethod
    def load(cls, path: Path | None = None, base: Self | None = None, **changes: Any) -> Self:
        """base (None: the defaults), overridden by a JSON or TOML file, then by the `changes` that are not None."""
        given = {} if path is None else _read(Path(path))
        changes = {name: value for name, value in changes.items() if value is not None}
        given |= changes
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise ValueError(f"{path} sets {', '.join(unknown)}, which a {cls.__name__} does not have.\n"
                             f"Known: {', '.join(sorted(known))}.")
        try:
            return replace(base or cls(), **given)
        except ValueError as error:
            place = f"The recipe {path}{' and the options' if changes else ''}: " if path else ""
            raise ValueError(f"{place}{error}") from error

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.stages or any(TokenStream.window % stage.length for stage in self.stages):
            raise ValueError(f"Stages of {', '.join(str(s.length) for s in self.stages) or 'no'} tokens were given; "
                             f"each length must divide {TokenStream.window:,}: use powers of two.")
        if self.longest > self.max_positions:
            raise ValueError(f"A stage has rows of {self.longest:,} tokens and max_positions is "
                             f"{self.max_positions:,}. Raise the latter or shorten the stage.")
        if self.total_tokens < 2 * max(self.tokens_per_step, self.longest):
            raise ValueError(f"total_tokens is {self.total_tokens:,} and a step takes "
                             f"{max(self.tokens_per_step, self.longest):,}: a run needs two steps. Raise the one or "
                             "lower the other.")

    @property
    def longest(self) -> int:
        """Tokens of the longest rows."""
        return max(stage.length for stage in self.stages)

    def stage_at(self, progress: float) -> Stage:
        """The curriculum's stage at this progress."""
        ends = np.cumsum([stage.share for stage in self.stages]) / sum(stage.share for stage in self.stages)
        return self.stages[min(int(np.searchsorted(ends, progress, side="right")), len(self.stages) - 1)]

    def rate(self, progress: float) -> float:
        """The factor of the peak learning rates at this progress."""
        if self.schedule == "cosine":
            return cosine(progress, self.warmup)
        return warmup_stable_decay(progress, self.warmup, self.decay)

    def autocast(self, device: torch.device) -> AbstractContextManager:
        """Autocast to bfloat16 if `bf16` is set."""
        return torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.bf16)


@dataclass(frozen=True)
class DrafterRecipe(Recipe):
    """Every setting of an EAGLE-3 head's training.  None: the target's own shape; feature layers 2, N // 2, N - 3."""

    feature_layers: Layers | None = None            # indices into transformers' hidden_states: layer inputs
    intermediate: Size | None = None
    heads: Size | None = None
    kv_heads: Size | None = None
    head_dim: Size | None = None
    draft_vocab: Count = 32000
    rope: Rope = Rope()                             # base 10000, which every reader of this layout uses
    ttt_steps: Annotated[int, Range(1, 64)] = 7
    loss: Annotated[str, OneOf(("kl", "lk"))] = "kl"
    # Folder that keeps the target's features of each row, for later epochs and runs; epochs then repeat the same rows.
    features: str | None = None

    stages: tuple[Stage, ...] = (Stage(2048),)
    total_tokens: Tokens = 100_000_000
    tokens_per_step: AtOnce = 16384
    micro_tokens: AtOnce | None = 4096
    max_positions: Count = 2048
    schedule: Schedule = "cosine"
    warmup: Share = 0.015                           # SpecForge's
    feature_pass: Annotated[float, Range(-10, 10)] = 0.06   # factor with which the fresh fc passes the last feature
    warm_start: bool = True                         # the first layer starts as the target's at the last feature
    muon_lr: Rate = 1e-3                            # speculators' ten times AdamW's
    adam_lr: Rate = 1e-4
    grad_clip: Positive = 0.5                       # EAGLE's
    valid_steps: Count = 500
    mat_prompts: Whole = 4                          # unseen rows of each kind that are also decoded in replay
    mat_tokens: Count = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.feature_layers == ():
            raise ValueError("feature_layers is empty. Name a layer, or leave it out for EAGLE's.")
        if (shortest := min(self.valid_length, *(stage.length for stage in self.stages))) <= self.ttt_steps:
            raise ValueError(f"Rows of {shortest:,} tokens leave nothing to predict after {self.ttt_steps} "
                             "training-time-test steps. Lower ttt_steps, or lengthen the stages and valid_length.")


def _read(path: Path) -> dict[str, Any]:
    """The settings of a JSON or TOML file, or of the shipped recipe of this name."""
    if not path.exists() and (SHIPPED / f"{path}.toml").exists():
        path = SHIPPED / f"{path}.toml"
    try:
        text = path.read_text(encoding="utf-8")
        given = tomllib.loads(text) if path.suffix == ".toml" else parse_json(text, str(path))
    except (OSError, ValueError, RecursionError) as error:
        shipped = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.toml")))
        raise ValueError(f"The recipe {path} cannot be read: {str(error).rstrip('.')}.\nGive a file, or one of "
                         f"{shipped}.") from error
    if not isinstance(given, dict):
        raise ValueError(f"The recipe {path} holds a {type(given).__name__}; an object of settings is needed.")
    return given

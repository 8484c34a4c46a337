"""Settings of training runs, their bounds, and the recipe files that set them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from annotated_types import Ge, Gt, Le

from longgraft.config.options import Checked, Count, Positive, Share, named, options
from longgraft.files.data_files import read_table
from longgraft.kernels.build import features
from longgraft.yarn_drafters.layouts import Layers
from longgraft.yarn_drafters.rope import Rope
from longgraft.yarn_drafters.training.schedule import cosine, warmup_stable_decay
from longgraft.yarn_drafters.training.streams import TokenStream

if TYPE_CHECKING:
    from longgraft.yarn_drafters.network import HeadConfig

SHIPPED = Path(__file__).parents[1] / "recipes"  # recipes that can be given by name
# Features of processors on which torch's products in bfloat16 are 3 to 4 times as fast as those in float32.
# On others they are slower: with AVX-512 alone they take 1.2 times as long, with AVX2 4 times.
BF16_FEATURES = frozenset(("amx_bf16", "avx512_bf16", "bf16"))
Tokens = Annotated[int, Ge(1), Le(10**15)]
Rate = Annotated[float, Gt(0), Le(10)]  # learning rate
NotNegative = Annotated[float, Ge(0)]
AtOnce = Annotated[int, Ge(1), Le(2**24)]  # tokens in memory at once
Size = Annotated[int, Ge(1), Le(2**20)]  # dimension of a model
Schedule = Literal["wsd", "cosine"]
Whole = Annotated[int, Ge(0), Le(10**15)]
# Settings of the machine, the log and the measurements.
OF_NO_STEP = (
    "micro_tokens",
    "threads",
    "device",
    "log_steps",
    "valid_steps",
    "valid_rows",
    "valid_length",
    "checkpoint_minutes",
    "mat_prompts",
    "mat_tokens",
)


@dataclass(frozen=True)
class Stage(Checked):
    """A stage of the curriculum.

    Attributes:
        length: Tokens of a row.
        share: Relative part of the run.
        skip: Share of rows with skipped positions.
        grouped: True if rows follow one another as in their repository.
    """

    length: Annotated[int, Ge(2), Le(TokenStream.window)]
    share: Annotated[float, Gt(0), Le(1e6)] = 1.0
    skip: Share = 0.0
    grouped: bool = False


@dataclass(frozen=True)
class Recipe(Checked):
    """Settings of all training runs.

    Attributes:
        threads, device: None for torch's own choice.
        bf16: Products in bfloat16; None: where they are faster.
    """

    stages: tuple[Stage, ...] = (Stage(2048),)
    total_tokens: Tokens = 10_000_000
    tokens_per_step: AtOnce = 8192
    micro_tokens: AtOnce | None = None  # tokens per forward on a device; None: all of a step's
    budget_minutes: Positive | None = None  # the run ends at total_tokens or after this time
    max_positions: Count = 65536
    # Largest share of meetings, books and reports in the tokens; None: no limit.
    prose_share: Share | None = None

    schedule: Schedule = "wsd"
    warmup: Share = 0.02
    decay: Share = 0.2
    muon_lr: Rate = 2.5e-3  # AdamW-like scale: match_rms_adamw, arXiv 2502.16982
    muon_decay: Annotated[float, Ge(0), Le(10)] = 0.1
    grad_clip: Positive = 1.0

    # The two streams are seeded with seed and seed + 1.
    seed: Annotated[int, Ge(0), Le(2**63 - 2)] = 0
    threads: Annotated[int, Ge(1), Le(1024)] | None = None
    device: str | None = None
    bf16: bool | None = None
    log_steps: Count = 10
    valid_steps: Count = 100  # steps between measurements on unseen text
    # Validation rows of code; half as many are taken of prose and of other text.
    valid_rows: Annotated[int, Ge(0), Le(2**16)] = 12
    valid_length: Annotated[int, Ge(2), Le(TokenStream.window)] = 2048
    checkpoint_minutes: NotNegative = 3.0

    @classmethod
    def load(cls, path: Path | None = None, base: Self | None = None, **changes: Any) -> Self:
        """Returns `base` (None: the defaults) with the settings of a JSON or TOML file, then the `changes`
        that are not None."""
        where = "The options"
        if path is not None:
            where = f"The recipe {path}"
        table = {} if path is None else read_table(_shipped(Path(path)))
        table |= {name: value for name, value in changes.items() if value is not None}
        try:
            return replace(base or cls(), **named(options(cls), table, where))
        except ValueError as error:
            raise ValueError(str(error) if where in str(error) else f"{where}: {error}") from error

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.stages or any(TokenStream.window % stage.length for stage in self.stages):
            raise ValueError(
                f"Stages of {', '.join(str(s.length) for s in self.stages) or 'no'} tokens were "
                f"given; each length must divide {TokenStream.window:,}: use powers of two."
            )
        if self.longest > self.reach:
            raise ValueError(
                f"A stage has rows of {self.longest:,} tokens and max_positions is "
                f"{self.reach:,}. Raise the latter or shorten the stage."
            )
        if self.total_tokens < 2 * max(self.tokens_per_step, self.longest):
            raise ValueError(
                f"total_tokens (--tokens) is {self.total_tokens:,}, a step takes "
                f"{max(self.tokens_per_step, self.longest):,}, and a run needs two steps. "
                "Raise the one or lower the other."
            )

    def of_steps(self) -> dict[str, Any]:
        """Returns the settings that a step depends on."""
        return {name: value for name, value in asdict(self).items() if name not in OF_NO_STEP}

    @property
    def longest(self) -> int:
        """Number of tokens of the longest rows."""
        return max(stage.length for stage in self.stages)

    @property
    def reach(self) -> int:
        """Number of positions that rows may take."""
        return self.max_positions

    @property
    def repeat_rows(self) -> bool:
        """True if every epoch has the same rows as the first one."""
        return False

    def need_longer(self, name: str, tokens: int) -> None:
        """Raises ValueError unless all rows have more tokens than a setting takes."""
        shortest = min(self.valid_length, *(stage.length for stage in self.stages))
        if shortest <= tokens:
            raise ValueError(
                f"Rows of {shortest:,} tokens leave nothing to predict where {name} takes "
                f"{tokens}. Lower {name}, or lengthen the stages and valid_length."
            )

    def stage_at(self, progress: float) -> Stage:
        """Returns the curriculum's stage at this progress."""
        ends = np.cumsum([stage.share for stage in self.stages]) / sum(stage.share for stage in self.stages)
        return self.stages[min(int(np.searchsorted(ends, progress, side="right")), len(self.stages) - 1)]

    def rate(self, progress: float) -> float:
        """Returns the factor on the peak learning rates at this progress."""
        if self.schedule == "cosine":
            return cosine(progress, self.warmup)
        return warmup_stable_decay(progress, self.warmup, self.decay)

    def autocast(self, device: torch.device) -> AbstractContextManager:
        """Returns the autocast to bfloat16, which has no effect unless products are in bfloat16."""
        return torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.in_bf16(device))

    def in_bf16(self, device: torch.device) -> bool:
        """Returns True if products on this device are in bfloat16."""
        if self.bf16 is not None:
            return self.bf16
        return device.type != "cpu" or bool(BF16_FEATURES & features())


@dataclass(frozen=True)
class DistilledRecipe(Recipe):
    """Settings of drafters that learn a frozen target's distributions."""

    total_tokens: Tokens = 100_000_000
    tokens_per_step: AtOnce = 16384
    micro_tokens: AtOnce | None = 4096
    schedule: Schedule = "cosine"
    valid_steps: Count = 500
    adam_lr: Rate = 1e-3
    mat_prompts: Whole = 4  # validation rows of each kind that are also decoded in replay
    mat_tokens: Count = 64


@dataclass(frozen=True)
class DrafterRecipe(DistilledRecipe):
    """Settings of an EAGLE-3 head's training.

    None stands for the head's own value where `start` names one.  For a new head it stands for the target's own
    shape, for feature layers 2, N // 2, N - 3, and for the values of USUAL.

    Attributes:
        start: Folder of a head to continue from.  Its rope and max_positions may be changed, its shape may not.
        feature_layers: Indices into transformers' hidden_states: layer inputs.
        vocabulary: File that a new head's draft vocabulary is counted over, best of the target's own text;
            None: the data.
        fc_norm, norm_output: A new head norms each feature, and feeds its normed state to the next level
            (both: EAGLE-3.1).
        features: Folder that keeps the target's features of each row, for later epochs and runs; epochs then repeat
            the same rows.
        feature_pass: Factor by which a new head's fc passes the last feature on.
        warm_start: A new head's first layer starts as the target's at the last feature.
    """

    # Base 10000 is what every reader of this layout uses.
    USUAL: ClassVar[Mapping[str, Any]] = {
        "draft_vocab": 32000,
        "fc_norm": False,
        "norm_output": False,
        "rope": Rope(),
        "max_positions": 2048,
        "feature_pass": 0.06,
        "warm_start": True,
    }

    start: str | None = None
    feature_layers: Layers | None = None
    intermediate: Size | None = None
    heads: Size | None = None
    kv_heads: Size | None = None
    head_dim: Size | None = None
    draft_vocab: Count | None = None
    vocabulary: str | None = None
    fc_norm: bool | None = None
    norm_output: bool | None = None
    rope: Rope | None = None
    ttt_steps: Annotated[int, Ge(1), Le(64)] = 7
    loss: Literal["kl", "lk"] = "kl"
    features: str | None = None

    # Wider than in Recipe: the trainer puts the head's into None before anything reads it (`of_head`).
    max_positions: Count | None = None  # type: ignore[assignment]
    warmup: Share = 0.015  # SpecForge's
    feature_pass: Annotated[float, Ge(-10), Le(10)] | None = None
    warm_start: bool | None = None
    muon_lr: Rate = 1e-3  # speculators' ten times AdamW's
    adam_lr: Rate = 1e-4
    grad_clip: Positive = 0.5  # EAGLE's

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.feature_layers == ():
            raise ValueError("feature_layers is empty. Name a layer, or leave it out for EAGLE's.")
        self.need_longer("ttt_steps", self.ttt_steps)

    def usual(self, name: str) -> Any:
        """Returns a setting of a new head: the named value, else the usual one."""
        named = getattr(self, name)
        return self.USUAL[name] if named is None else named

    @property
    def reach(self) -> int:
        if self.start is not None and self.max_positions is None:
            return self.longest  # `of_head` checks the rows again
        return self.usual("max_positions")

    def of_head(self, head: HeadConfig) -> Self:
        """Returns the recipe with the rope and length of its head, and the other values of a new one.

        Raises:
            ValueError: the head has fewer positions than the rows have tokens.
        """
        settled = {}
        if self.start is None:
            settled = {name: self.usual(name) for name in self.USUAL}
        return replace(self, **settled | {"rope": head.rope, "max_positions": head.max_positions})

    @property
    def repeat_rows(self) -> bool:
        return self.features is not None


def _shipped(path: Path) -> Path:
    """Returns the path, or the shipped recipe of this name if there is no such file."""
    ours = SHIPPED / f"{path}.toml"
    if not path.exists() and not ours.exists():
        raise ValueError(
            f"The recipe {path} does not exist. Give a TOML or JSON file, or one of "
            f"{', '.join(sorted(file.stem for file in SHIPPED.glob('*.toml')))}."
        )
    if path.exists():
        return path
    return ours

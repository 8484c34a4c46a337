"""What a sweep measures and how: one frozen value, from flags, JSON or TOML.

Knows names and numbers; reads no row and no model.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from longgraft.eval.prompts.buckets import parse_lengths
from longgraft.eval.runs.measure import COLD, PLAIN, Variant
from longgraft.sampling import Sampling

MODES = ("replay", "sampled", "greedy")
# EAGLE's tables and the paper's Tables 1 and 5: question sets as they are, temperature 0, up to 1,024 new tokens.
SHORT = {"suites": ("humaneval", "gsm8k", "cnn_dm", "alpaca", "mt_bench"), "lengths": (), "modes": ("greedy",),
         "prompts": 20, "max_new_tokens": 1024}

FLAGS = {"buckets": "lengths", "mode": "modes", "head": "heads", "calibrated": "calibrations"}
LISTS = ("suites", "methods", "modes", "recorded")


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
    check_tokens: int = 32          # drawn by every method beside a replay, which itself can show no divergence
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
    profile: bool = False           # on a GPU: true seconds by part, at the price of a wait each

    def __post_init__(self) -> None:
        if unknown := [mode for mode in self.modes if mode not in MODES]:
            raise ValueError(f"Mode {', '.join(unknown)} is unknown. Known: {', '.join(MODES)}.")
        for name in ("prompts", "repeats", "max_new_tokens", "check_tokens", "draft_levels", "draft_top_k", "budget"):
            if (value := getattr(self, name)) is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} is {value!r}; it must be a whole number, 1 or more.")
        if not all(isinstance(length, int) and length > 0 for length in self.lengths):
            raise ValueError(f"lengths are {list(self.lengths)}; they must be tokens, 1 or more.")
        Sampling(self.temperature, seed=self.seed)
        if not (self.suites and self.modes):
            raise ValueError("A sweep needs a suite and a mode; none was given.")
        for variant in self.variants:
            for what, option, wanted, given in (
                    ("head", "head", [variant.head] if variant.head else [], self.heads),
                    ("calibration", "calibrated", [c for c in variant.calibrations.values() if c != COLD],
                     self.calibrations)):
                if missing := [name for name in wanted if name not in given]:
                    raise ValueError(f"{variant.name} names the {what} {missing[0]!r}, which was not given. "
                                     f"Add --{option} {missing[0]}=PATH.")

    @classmethod
    def load(cls, path: Path | None, base: Mapping[str, Any] | None = None, **changes: Any) -> SweepConfig:
        """A configuration from JSON or TOML; changes win, unless None; base: what neither says.

        A file may use the flags' names (buckets, mode, head, calibrated) and their comma-separated lists.
        """
        given: dict[str, Any] = dict(base or {})
        if path is not None:
            try:
                text = path.read_text(encoding="utf-8")
                said = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
                given |= {FLAGS.get(name, name): value for name, value in said.items()}
            except (OSError, ValueError, AttributeError) as error:
                raise ValueError(f"The configuration {path} cannot be read: {error}.") from error
        given |= {name: value for name, value in changes.items() if value is not None}
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise ValueError(f"{path} sets {', '.join(unknown)}, which no sweep has.\n"
                             f"Known: {', '.join(sorted(known))}.")
        if isinstance(given.get("lengths"), (str, int)):
            given["lengths"] = parse_lengths(str(given["lengths"]))
        settings: dict[str, Any] = {}
        for name, value in given.items():
            if name in LISTS and isinstance(value, str):
                value = [part.strip() for part in value.split(",") if part.strip()]
            settings[name] = tuple(value) if isinstance(value, list) else value
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

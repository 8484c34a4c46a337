"""The configuration of a sweep: one frozen value, from flags, JSON or TOML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from annotated_types import Ge, Le

from longgraft.config.answer_settings import AnswerTokens, Seed, Temperature
from longgraft.config.method_roles import COMPARED, PLAIN
from longgraft.config.options import Checked, Option, made, option
from longgraft.config.settings import (
    Attention,
    Budget,
    CacheDType,
    CalibrationFile,
    CostsFile,
    Device,
    Drafter,
    Drafting,
    DraftLevels,
    DraftTopK,
    DType,
    Given,
    Model,
    Tokens,
    Weights,
)
from longgraft.eval.runs.variants import COLD, Variant
from longgraft.files.data_files import read_table

if TYPE_CHECKING:
    from longgraft.acceptance.sampling import Sampling

Mode = Literal["replay", "sampled", "greedy"]
MODES = get_args(Mode)
# As in EAGLE's tables and the paper's Tables 1 and 5: uncut question sets, temperature 0, up to 1,024 new tokens.
SHORT = {
    "suites": ("humaneval", "gsm8k", "cnn_dm", "alpaca", "mt_bench"),
    "lengths": (),
    "modes": ("greedy",),
    "prompts": 20,
    "max_new_tokens": 1024,
}


# Options that a sweep and a diagnosis have.
SUITES = ("repobench-p", "lcc", "qmsum", "gov_report")
Suites = Annotated[tuple[str, ...], Option("Names, or files (JSONL, Parquet); see `longgraft suites`")]
Data = Annotated[str | None, Option("Folder of local JSONL or Parquet files", none="the hub")]
Recorded = Annotated[
    tuple[str, ...],
    Option(
        "JSONL of {_id, continuation}, replayed before all others; repeatable; see `longgraft recordings`",
        many=True,
        metavar="FILE",
    ),
]
Lengths = Annotated[
    tuple[Tokens, ...],
    Option("Prompt lengths in tokens, e.g. 4k,8k,16k,32k", flag="--buckets", unit="tokens"),
]
Prompts = Annotated[int, Ge(1), Le(10**6)]


@dataclass(frozen=True)
class SweepConfig(Checked):
    """Everything that a sweep's numbers depend on."""

    suites: Suites = SUITES
    data: Data = None
    recorded: Recorded = ()
    lengths: Lengths = (4096, 8192, 16384, 32768)
    methods: tuple[str, ...] = option(
        COMPARED,
        "See `longgraft methods`; method@head takes a --head; method+budget=30, +depth=, +width=, +levels=, +top_k=, "
        "+window=, +thresholds=, +warm= and its own choices set that of one method; `transformers`, "
        "`transformers-lookup`: its own generate, plain and by prompt lookup",
    )
    modes: tuple[Mode, ...] = option(
        ("replay",),
        "Source of the answers. replay: the rows' own text decides which guesses are right; sampled, greedy: the "
        "model's own answers",
        flag="--mode",
    )
    prompts: Prompts = option(
        5, "Prompts per suite and length, evenly spread over a suite that is taken whole", unit="prompts"
    )
    repeats: Annotated[int, Ge(1), Le(1000)] = option(3, "Repeats of each decoding")
    max_new_tokens: AnswerTokens = option(128, "Most tokens of an answer", unit="tokens", short="-n")
    concurrency: tuple[Annotated[int, Ge(1), Le(1024)], ...] = option(
        (),
        "Requests at once, e.g. 1,2,4,8,16: each suite and length is answered "
        "again by so many, and the tables say what all of them and each of them get",
        none="each prompt alone",
    )
    temperature: Temperature = option(1.0, "Temperature of mode sampled", note="0 is greedy")
    seed: Seed = option(0, "Seed of mode sampled")
    # A replay itself cannot show a divergence.
    check_tokens: Annotated[int, Ge(1), Le(2**20)] | None = option(
        None,
        "Tokens that every method draws once per prompt beside a replay, to be compared with those of plain decoding",
        unit="tokens",
        none="as many as are replayed",
    )
    model: Model = None
    drafter: Drafter = "auto"
    allow_missing: bool = option(
        False,
        "Methods whose head or other need is missing become failures in the tables, "
        "instead of an error before anything is measured",
    )
    heads: dict[str, str] = option({}, "For method@NAME; repeatable", flag="--head", many=True, metavar="NAME=PATH")
    given: Given = field(default_factory=dict)
    calibration: CalibrationFile = "auto"
    calibrations: dict[str, str] = option(
        {},
        "File of `longgraft calibrate`, for method+thresholds=NAME and +warm=NAME; repeatable",
        flag="--calibrated",
        many=True,
        metavar="NAME=PATH",
    )
    budget: Budget = option(
        None,
        "Nodes per verification, root included; paper: the method's own, mostly 60",
        unit="nodes",
        none="what pays, where the method can choose; else its own, mostly 60",
    )
    costs: CostsFile = None
    draft_levels: DraftLevels = Drafting.levels
    draft_top_k: DraftTopK = Drafting.top_k
    device: Device = None
    dtype: DType = None
    weights: Weights = "auto"
    kv_dtype: CacheDType = None
    attention: Attention = "auto"
    quiet: bool = option(
        False, "Refuse to start while other programs use the processor, and wait for them between prompts"
    )
    profile: bool = option(
        False, "On a GPU: true seconds by part, at the price of a wait each; `longgraft costs` needs it"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "lengths", tuple(sorted(set(self.lengths))))
        self.sampling("sampled")
        if not (self.suites and self.modes):
            raise ValueError("A sweep needs a suite and a mode; none was given.")
        if max(self.concurrency, default=0) > self.prompts:
            raise ValueError(
                f"concurrency is {max(self.concurrency)}, and of each suite and length {self.prompts} "
                "prompts are taken. Give --prompts of as many or more."
            )
        for variant in self.variants:
            if variant.head:
                _check_given(variant, "head", variant.head, self.heads, "head")
            for name in variant.calibrations.values():
                if name != COLD:
                    _check_given(variant, "calibration", name, self.calibrations, "calibrated")

    @classmethod
    def load(cls, path: Path | None, base: Mapping[str, Any] | None = None, **changes: Any) -> SweepConfig:
        """Makes a configuration from JSON or TOML; changes win, unless None; base: values where neither has one."""
        values = dict(base or {})
        if path is not None:
            values.update(read_table(path))
        values.update({name: value for name, value in changes.items() if value is not None})
        return made(cls, values, str(path))

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The methods as variants, plain decoding first, because everything is paired with it."""
        names = dict.fromkeys((PLAIN, *self.methods))
        return tuple(Variant.parse(name) for name in names)

    def sampling(self, mode: str, recording: Sequence[int] = ()) -> Sampling:
        """Returns how tokens are drawn in this mode."""
        from longgraft.acceptance.sampling import Sampling

        if mode == "replay":
            return Sampling(replay=tuple(recording))
        if mode == "sampled":
            return Sampling(temperature=self.temperature, seed=self.seed)
        return Sampling()


def _check_given(variant: Variant, what: str, name: str, by_name: Mapping[str, str], switch: str) -> None:
    """Raises ValueError if a variant names a head or calibration that was not given."""
    if name not in by_name:
        raise ValueError(f"{variant.name} names the {what} {name!r}, which was not given. Add --{switch} {name}=PATH.")


@dataclass(frozen=True)
class Diagnosis(Checked):
    """Prompts and settings of `longgraft diagnose`."""

    suites: Suites = SUITES
    data: Data = None
    recorded: Recorded = ()
    lengths: Lengths = (2048, 8192)
    prompts: Prompts = option(5, "Prompts per suite and length", unit="prompts")
    max_new_tokens: AnswerTokens = option(
        128, "Most tokens of a continuation; each is a start", unit="tokens", short="-n"
    )
    depth: Annotated[int, Ge(1), Le(64)] = option(8, "Tokens ahead that are predicted", unit="tokens")
    text: Literal["recorded", "greedy"] = option(
        "recorded", "What follows a prompt: the row's own continuation, or the target's greedy answer"
    )
    heads: dict[str, str] = option(
        {}, "Further EAGLE-3 heads, by the names they get; repeatable", flag="--head", many=True, metavar="NAME=PATH"
    )
    given: Given = field(default_factory=dict)
    device: Device = None
    dtype: DType = None

"""All options of decoding: names, units and ranges.

Sources of defaults: "EAGLE" is SafeAILab's release, "Graft" is arXiv 2605.20104.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from longgraft.config.method_roles import DEFAULT
from longgraft.config.method_syntax import joined, split
from longgraft.config.options import Checked, Option, option, options

POSITIONS = 2**24  # tokens; larger than any model's context
Tokens = Annotated[int, Ge(1), Le(POSITIONS)]
Budget = Literal["paper"] | Annotated[int, Ge(1), Le(4096)] | None

# Options that several groups have.
Model = Annotated[
    str | None,
    Option("A name of `longgraft models`, a folder, a GGUF file or a hub id", none="the embedded model", short="-m"),
]
Drafter = Annotated[
    str | None,
    Option("EAGLE-3 head: hub id, folder, auto (the known one), a model whose head ships, or none", none="no drafter"),
]
Given = Annotated[
    dict[str, str],
    Option(
        "What a method needs besides a head, by its name in `longgraft methods`: a hub id, folder or file; repeatable",
        flag="--with",
        many=True,
        metavar="NAME=PATH",
    ),
]
CalibrationFile = Annotated[
    str | None,
    Option("File of `longgraft calibrate`, auto (where that writes) or none", none="default thresholds"),
]
CostsFile = Annotated[
    str | None,
    Option(
        "File of `longgraft costs`, which makes decoding's choices reproducible",
        none="measured at load, and followed",
    ),
]
Device = Annotated[str | None, Option("cpu, cuda, cuda:1 ...", none="a GPU if there is one")]
DType = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    Option("Type of weights and caches", none="float32 on a CPU, else what the weights were saved in"),
]
Weights = Annotated[
    Literal["auto", "gguf", "int8", "float"],
    Option(
        "How linear layers keep their weights. gguf: the quantized blocks of the GGUF file; int8: rounded to bytes; "
        "float: floats; auto: gguf for a GGUF file on a CPU with compiled kernels, else float"
    ),
]
CacheDType = Annotated[
    Literal["bfloat16", "float32", "int8"] | None,
    Option(
        "Type of the cached keys and values, with a CPU's compiled kernels. "
        "int8: bytes, with a scale for each 32 of them",
        none="bfloat16 beside weights in blocks or bytes, else that of --dtype",
    ),
]
Attention = Annotated[Literal["auto", "sdpa", "split", "flash", "triton"], Option("Attention backend")]
DraftLevels = Annotated[
    int,
    Ge(1),
    Le(64),
    Option("Draft forwards per step at most", unit="levels", source="EAGLE's depth of 8, and one"),
]
DraftTopK = Annotated[
    int,
    Ge(1),
    Le(64),
    Option("Beam width and branching of the drafter", unit="candidates", source="EAGLE-3's released setting"),
]
DraftWindow = Annotated[
    Tokens | None,
    Option("Latest tokens that the drafter sees", unit="tokens", none="what the head was made for"),
]
RetrievedDepth = Annotated[
    Annotated[int, Ge(1), Le(64)] | None,
    Option("Retrieved tokens in a row at most", unit="tokens", none="the template's, up to 9", source="Graft, Table 7"),
]
RetrievedWidth = Annotated[
    Annotated[int, Ge(1), Le(8)] | None,
    Option(
        "Retrieved successors of one token at most",
        unit="tokens",
        none="the template's, up to 8",
        source="Graft, Table 7",
    ),
]


@dataclass(frozen=True)
class HeadOverrides(Checked):
    """Overrides of a head's config."""

    rope_base: Annotated[float, Ge(1)] | None = option(None, "Base of the rotary embedding", none="the config's")
    yarn: tuple[Annotated[float, Ge(1)], Annotated[int, Ge(1)]] | None = option(
        None, "YaRN factor and original length", none="the config's"
    )
    feature_layers: tuple[Annotated[int, Ge(0)], ...] | None = option(
        None, "Indices into transformers' hidden_states", none="the config's"
    )
    max_positions: Tokens | None = option(None, "Positions the head was made for", unit="tokens", none="the config's")
    window: Tokens | None = option(None, "Latest tokens that the head sees", unit="tokens", none="the config's")
    norm_output: bool | None = option(None, "The next level reads the normed state (EAGLE-3.1)", none="the config's")


@dataclass(frozen=True)
class Pair(Checked):
    """The models that decode: target and drafter."""

    model: Model = None
    gguf_file: str | None = option(
        None, "GGUF file of --model, where that is a hub id or a folder with several", none="what --model is"
    )
    drafter: Drafter = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gguf_file is not None:  # from here on, the model has only one name
            if self.model is None:
                raise ValueError("--gguf-file was given without --model. Give the folder or hub id that holds it.")
            object.__setattr__(self, "model", f"{self.model.rstrip('/')}/{self.gguf_file}")
            object.__setattr__(self, "gguf_file", None)


@dataclass(frozen=True)
class Machine(Checked):
    """The part of this machine that a command may use."""

    threads: Annotated[int, Ge(1), Le(1024)] | None = option(
        None, "Threads of a CPU", none="OMP_NUM_THREADS, else one for each core", short="-t"
    )


@dataclass(frozen=True)
class Settings(Checked):
    """Decoding options of a session."""

    # In Python it may also be a method, or an object that proposes.
    method: Any = option(DEFAULT, "A name of `longgraft methods`, or FILE.py:OBJECT")
    budget: Budget = option(
        None,
        "Nodes per verification, root included; paper: the method's own, mostly 60",
        unit="nodes",
        none="what pays, where the method can choose; else its own, on a CPU at most 16",
        source="K_max: Graft, 4.1",
    )
    device: Device = None
    dtype: DType = None
    weights: Weights = "auto"
    kv_dtype: CacheDType = None
    attention: Attention = "auto"
    graphs: Literal["auto", "none"] = option(
        "auto", "CUDA graphs, which record a step's launches once, where the model allows it"
    )
    kernels: Literal["auto", "none"] = option(
        "auto", "Compiled kernels for a CPU in float32 and bfloat16, built once if there is a C++ compiler"
    )
    chunk: Tokens | None = option(None, "Prompt tokens per prefill pass", unit="tokens", none="chosen by free memory")
    prefixes: Annotated[float, Ge(0), Le(2**20)] | None = option(
        None,
        "Size of the cache of earlier prompts, on the model's device; a "
        "new prompt is read from where it differs from them",
        unit="GiB",
        none="nothing",
    )
    prefix: tuple[str, ...] = option(
        (),
        "File of `longgraft prefill`; prompts that begin with its text need not read it again; repeatable",
        many=True,
        metavar="FILE",
    )
    corpus: str | None = option(
        None,
        "Name of a corpus (`longgraft corpus`) that answers may repeat; graft-x and graft-x-text read it",
        none="none",
    )
    remember: Annotated[int, Ge(1024), Le(2**30)] | None = option(
        None,
        "Size of the memory of earlier answers, which later answers of the "
        "same client may repeat; the oldest are dropped",
        unit="bytes",
        none="nothing",
    )
    calibration: CalibrationFile = "auto"
    costs: CostsFile = None
    given: Given = field(default_factory=dict)
    persist: bool = option(False, "Keep the matrix after a request")
    head: HeadOverrides = field(default_factory=HeadOverrides)

    def __post_init__(self) -> None:
        if self.dtype is not None:  # torch.float32 becomes float32
            object.__setattr__(self, "dtype", str(self.dtype).removeprefix("torch."))
        for name in ("calibration", "costs"):
            object.__setattr__(self, name, _file(getattr(self, name)))
        prefixes: Any = self.prefix
        if isinstance(prefixes, (str, os.PathLike)):
            prefixes = (prefixes,)
        if isinstance(prefixes, (list, tuple)):
            prefixes = tuple(map(_file, prefixes))
        object.__setattr__(self, "prefix", prefixes)
        super().__post_init__()


def _file(value: Any) -> Any:
    """Returns a path as text."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


@dataclass(frozen=True)
class Drafting(Checked):
    """Choices of methods that draft with an EAGLE-3 head."""

    levels: DraftLevels = 9
    top_k: DraftTopK = 10
    window: DraftWindow = None


@dataclass(frozen=True)
class Retrieving(Checked):
    """Choices of methods that retrieve trees from the matrix."""

    depth: RetrievedDepth = None
    width: RetrievedWidth = None


@dataclass(frozen=True)
class Bounds(Checked):
    """Bounds of a step's tree, as choices of the method."""

    draft_levels: DraftLevels = Drafting.levels
    draft_top_k: DraftTopK = Drafting.top_k
    draft_window: DraftWindow = None
    retrieved_depth: RetrievedDepth = None
    retrieved_width: RetrievedWidth = None

    def of(self, method: Any) -> Any:
        """Returns a method's name with the bounds that are not the defaults, unless the name sets them itself."""
        given = {}
        for name, described in options(Bounds).items():
            value = getattr(self, name)
            if value != described.default:
                given[name.partition("_")[2]] = described.text(value)
        if not given:
            return method
        bare, own = split(method)
        return joined(bare, given | own)

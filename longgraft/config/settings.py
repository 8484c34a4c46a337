"""All options of decoding: names, units and ranges.

Sources of defaults: "EAGLE" is SafeAILab's release, "Graft" is arXiv 2605.20104.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Literal

from longgraft.config.method_roles import DEFAULT
from longgraft.config.method_syntax import joined, split
from longgraft.config.options import Checked, like, option, options
from longgraft.files.data_files import read_text

POSITIONS = 2**24  # tokens; larger than any model's context
Budget = Literal["paper"] | int | None


@dataclass(frozen=True)
class HeadOverrides(Checked):
    """Overrides of a head's config."""

    rope_base: float | None = option(None, "Base of the rotary embedding", low=1, none="the config's")
    yarn: tuple[float, int] | None = option(None, "YaRN factor and original length", low=1, none="the config's")
    feature_layers: tuple[int, ...] | None = option(
        None, "Indices into transformers' hidden_states", low=0, none="the config's"
    )
    max_positions: int | None = option(
        None, "Positions the head was made for", unit="tokens", low=1, high=POSITIONS, none="the config's"
    )
    window: int | None = option(
        None, "Latest tokens that the head sees", unit="tokens", low=1, high=POSITIONS, none="the config's"
    )
    norm_output: bool | None = option(None, "The next level reads the normed state (EAGLE-3.1)", none="the config's")


@dataclass(frozen=True)
class Pair(Checked):
    """The models that decode: target and drafter."""

    model: str | None = option(
        None, "A name of `longgraft models`, a folder, a GGUF file or a hub id", none="the embedded model", short="-m"
    )
    gguf_file: str | None = option(
        None, "GGUF file of --model, where that is a hub id or a folder with several", none="what --model is"
    )
    drafter: str | None = option(
        "auto",
        "EAGLE-3 head: hub id, folder, auto (the known one), a model whose head ships, or none",
        none="no drafter",
    )

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

    threads: int | None = option(
        None,
        "Threads of a CPU",
        low=1,
        high=1024,
        none="OMP_NUM_THREADS, else one for each core",
        short="-t",
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
        low=1,
        high=4096,
        none="what pays, where the method can choose; else its own, on a CPU at most 16",
        source="K_max: Graft, 4.1",
    )
    device: str | None = option(None, "cpu, cuda, cuda:1 ...", none="a GPU if there is one")
    dtype: str | None = option(
        None,
        "Type of weights and caches",
        choices=("float32", "bfloat16", "float16"),
        none="float32 on a CPU, else what the weights were saved in",
    )
    weights: str = option(
        "auto",
        "How linear layers keep their weights. gguf: the quantized blocks of the GGUF file; int8: rounded to bytes; "
        "float: floats; auto: gguf for a GGUF file on a CPU with compiled kernels, else float",
        choices=("auto", "gguf", "int8", "float"),
    )
    kv_dtype: str | None = option(
        None,
        "Type of the cached keys and values, with a CPU's compiled kernels. "
        "int8: bytes, with a scale for each 32 of them",
        choices=("bfloat16", "float32", "int8"),
        none="bfloat16 beside weights in blocks or bytes, else that of --dtype",
    )
    attention: str = option("auto", "Attention backend", choices=("auto", "sdpa", "split", "flash", "triton"))
    graphs: str = option(
        "auto", "CUDA graphs, which record a step's launches once, where the model allows it", choices=("auto", "none")
    )
    kernels: str = option(
        "auto",
        "Compiled kernels for a CPU in float32 and bfloat16, built once if there is a C++ compiler",
        choices=("auto", "none"),
    )
    chunk: int | None = option(
        None, "Prompt tokens per prefill pass", unit="tokens", low=1, high=POSITIONS, none="chosen by free memory"
    )
    prefixes: float | None = option(
        None,
        "Size of the cache of earlier prompts, on the model's device; a "
        "new prompt is read from where it differs from them",
        unit="GiB",
        low=0,
        high=2**20,
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
    remember: int | None = option(
        None,
        "Size of the memory of earlier answers, which later answers of the "
        "same client may repeat; the oldest are dropped",
        unit="bytes",
        low=1024,
        high=2**30,
        none="nothing",
    )
    calibration: str | None = option(
        "auto", "File of `longgraft calibrate`, auto (where that writes) or none", none="default thresholds"
    )
    costs: str | None = option(
        None,
        "File of `longgraft costs`, which makes decoding's choices reproducible",
        none="measured at load, and followed",
    )
    given: dict[str, str] = option(
        {},
        "What a method needs besides a head, by its name in `longgraft methods`: a hub id, folder or file; repeatable",
        flag="--with",
        many=True,
        metavar="NAME=PATH",
    )
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


FROM_MODEL = "generation_config.json's if the answer is sampled"


@dataclass(frozen=True)
class SamplingSettings(Checked):
    """Sampling options.

    `Sampling` and the fields of requests take their ranges from here.  None is what the model's
    generation_config.json says, or off.
    """

    temperature: float = option(0.0, "How evenly tokens are drawn", low=0, note="0 is greedy")
    top_p: float | None = option(
        None,
        "Draw from the most probable tokens up to this mass",
        low=0,
        high=1,
        note="1 is all, 0 greedy",
        none=FROM_MODEL,
    )
    top_k: int | None = option(
        None, "Draw from this many most probable tokens", low=-1, note="0 and -1 are all", none=FROM_MODEL
    )
    min_p: float | None = option(
        None,
        "Draw from tokens at least this probable, relative to the most probable",
        low=0,
        high=1,
        below=True,
        note="0 is all",
        none=FROM_MODEL,
    )
    seed: int = option(0, "Seed of sampling", low=0, high=2**63 - 1)


@dataclass(frozen=True)
class LogitSettings(Checked):
    """Options that change the logits: constraints, penalties and biases.

    `LogitOptions` and the fields of requests take their ranges from here.
    """

    json_schema: str | None = option(
        None,
        "A JSON schema, or a file of one, that the answer follows; extra grammar",
        none="none",
        metavar="FILE|TEXT",
    )
    regex: str | None = option(None, "A regular expression (Rust's syntax) of the whole answer", none="none")
    grammar: str | None = option(
        None, "A grammar (GBNF or Lark), or a file of one, that the answer follows", none="none", metavar="FILE|TEXT"
    )
    repetition_penalty: float | None = option(
        None,
        "Above 1, tokens of prompt and answer are less likely",
        low=0.001,
        high=1000,
        note="1 changes none",
        none=FROM_MODEL,
    )
    presence_penalty: float = option(
        0.0, "Subtracted from the logits of the answer's tokens", low=-2, high=2, note="0 is off"
    )
    frequency_penalty: float = option(
        0.0, "Subtracted from a token's logit for each time that the answer has it", low=-2, high=2, note="0 is off"
    )
    logit_bias: tuple[str, ...] = option((), "Added to a token's logit; repeatable", many=True, metavar="ID=NUMBER")
    logprobs: int | None = option(
        None, "With --json: log-probabilities of the answer's tokens and that many others", low=0, high=20, none="none"
    )
    prompt_logprobs: int | None = option(
        None, "With --json: the same for the prompt's tokens after the first", low=0, high=20, none="none"
    )

    def read(self) -> dict[str, Any]:
        """Returns the fields as `LogitOptions` takes them.

        Raises:
            ValueError: a file cannot be read, or a bias is not ID=NUMBER.
        """
        return vars(self) | {
            "json_schema": _text(self.json_schema, "{"),
            "grammar": _text(self.grammar, "=:\n"),
            "logit_bias": dict(map(_bias, self.logit_bias)) or None,
        }


def _bias(text: str) -> tuple[int, float]:
    token, _, number = text.partition("=")
    try:
        return int(token), float(number)
    except ValueError:
        raise ValueError(f"--logit-bias is {text!r}; a token id and a number are needed, such as 42=-5.") from None


def _text(value: str | None, marks: str) -> str | None:
    """Returns a file's text, or the value itself if it contains one of the marks."""
    if value is None or any(mark in value for mark in marks):
        return value
    return read_text(value, "Give a file, or the text itself.")


@dataclass(frozen=True)
class StopSettings(Checked):
    """Stopping options, besides the model's end token."""

    max_new_tokens: int = option(
        256, "Most tokens of the answer; an end token ends it earlier", unit="tokens", low=1, high=2**20, short="-n"
    )
    stop: tuple[str, ...] = option(
        (), "End the answer before this text, also that of a special token; repeatable", many=True
    )
    stop_token_ids: tuple[int, ...] = option(
        (), "End the answer at these tokens, beside the model's own end tokens", low=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if "" in self.stop:
            raise ValueError("A stop string is empty. Give at least one character, or leave --stop out.")


@dataclass(frozen=True)
class Drafting(Checked):
    """Choices of methods that draft with an EAGLE-3 head."""

    levels: int = option(
        9, "Draft forwards per step at most", unit="levels", low=1, high=64, source="EAGLE's depth of 8, and one"
    )
    top_k: int = option(
        10,
        "Beam width and branching of the drafter",
        unit="candidates",
        low=1,
        high=64,
        source="EAGLE-3's released setting",
    )
    window: int | None = option(
        None,
        "Latest tokens that the drafter sees",
        unit="tokens",
        low=1,
        high=POSITIONS,
        none="what the head was made for",
    )


@dataclass(frozen=True)
class Retrieving(Checked):
    """Choices of methods that retrieve trees from the matrix."""

    depth: int | None = option(
        None,
        "Retrieved tokens in a row at most",
        unit="tokens",
        low=1,
        high=64,
        none="the template's, up to 9",
        source="Graft, Table 7",
    )
    width: int | None = option(
        None,
        "Retrieved successors of one token at most",
        unit="tokens",
        low=1,
        high=8,
        none="the template's, up to 8",
        source="Graft, Table 7",
    )


@dataclass(frozen=True)
class Bounds(Checked):
    """Bounds of a step's tree, as choices of the method."""

    draft_levels: int = like(Drafting, "levels")
    draft_top_k: int = like(Drafting, "top_k")
    draft_window: int | None = like(Drafting, "window")
    retrieved_depth: int | None = like(Retrieving, "depth")
    retrieved_width: int | None = like(Retrieving, "width")

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


@dataclass(frozen=True)
class MethodSettings(Checked):
    """Settings of one method in a run, as in `method+name=value`, besides the method's own choices.

    thresholds and warm name calibrations; "none" is the empty calibration.
    """

    budget: Budget = like(Settings, "budget")
    thresholds: str = option("", "Thresholds of this calibration")
    warm: str = option("", "The matrix begins with this calibration's rows")

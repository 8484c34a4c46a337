"""From names to a session: resolve models and methods, load them, assemble them.

Knows hub ids, folders and the registries; knows no decoding.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.cost_measurement import costs_for
from longgraft.budget.cost_model import LiveCosts
from longgraft.config.settings import Budget, Settings
from longgraft.engine.encoder import Prompt
from longgraft.engine.engine import Engine
from longgraft.engine.predicted_output import Prediction
from longgraft.engine.session import Generation, Session
from longgraft.kernels.build import NotBuilt
from longgraft.kernels.cpu import DTYPES, CpuKernels, Integers, cpu_kernels, packed_bytes
from longgraft.kernels.integers import linear_weights, rounded
from longgraft.memories.compiled_continuations import compiled
from longgraft.memories.partial_matching import PartialMatching
from longgraft.methods.calibration import Calibration, default_path, made_for
from longgraft.methods.find import Method, build, find, verifies
from longgraft.methods.needs import AUTO, HEAD, Missing, Sources, check_given
from longgraft.methods.own_settings import with_own_settings
from longgraft.methods.parts import Parts, Shape
from longgraft.models.gguf_blocks import READ, read_blocks
from longgraft.models.places import EMBEDDED, embedded, place_of
from longgraft.prefill.prefixes import Prefixes
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions, cuda_graphs
from longgraft.runtime.device_memory import free_bytes
from longgraft.runtime.devices import device_of, dtype_of
from longgraft.runtime.fingerprint import digest, vocabulary
from longgraft.runtime.hub import hub_answers, offline
from longgraft.target_model.fused_modules import FusedModules, fused
from longgraft.target_model.model import Target
from longgraft.target_model.static_pass import why_not_fixed
from longgraft.target_model.weights import check_finite, read_config, read_model, read_tokenizer
from longgraft.yarn_drafters.network import Eagle3Network

# Verifying many nodes is not free on a CPU: of 8 to 60, sixteen lost least speed and kept most of the acceptance
# (embedded pair, docs/results/embedded).
CPU_BUDGET = 16
PROMISES = {"exact": "", "distribution": ", keeps the target's law where it samples",
            "lossy": ", LOSSY: need not say what the target would"}


@dataclass(frozen=True)
class Loaded:
    """A target and what a method needs on it: a session is made from them.

    method: the requested one, or its fallback; notes: replacements that were chosen, for people
    costs:  a file of `longgraft costs`; None: measured where a method needs them
    """

    target: Target
    tokenizer: Any
    method: Method
    parts: Parts
    notes: tuple[str, ...] = ()
    costs: str | None = None

    @property
    def identity(self) -> dict[str, str]:
        """The target, tokenizer and drafter that a calibration belongs to."""
        return identity_of(self.target, self.tokenizer, self.parts.head)

    def session(self, budget: Budget = None, chunk: int | None = None, prefixes: float | None = None,
                prefix: Sequence[str] = (), corpus: str | None = None) -> Session:
        """budget: nodes per verification; paper: the method's; None: what pays, where the method can choose, else the
        method's, on a CPU at most CPU_BUDGET.  prefixes: GiB of the cache of prompts; prefix: prefix files; corpus: of
        requests that ask for none."""
        session = self._made(budget, chunk, Prefixes(int(prefixes * 2 ** 30)) if prefixes else None)
        known = (f"prefix {path}: {session.pin_prefix(path):,} tokens are known" for path in prefix)
        session.about += tuple(known)
        if corpus is not None:
            session.default_corpus = corpus
            session.about += (f"corpus {corpus}: {len(session.corpus(corpus).tokens):,} tokens may be repeated",)
        return session

    def _made(self, budget: Budget, chunk: int | None, prefixes: Prefixes | None, costs: LiveCosts | None = None
              ) -> Session:
        """costs: of a session that was made before; None: read or measured."""
        method, nodes = self.method, self.method.usual_budget(budget)
        # Memories and clock of its own: two sessions may share one target.
        parts = replace(self.parts, kept={}, clock=Clock(), regions=self.parts.regions.anew())
        adaptive = method.chooses(budget)
        if adaptive:
            costs = costs.copy() if costs else costs_for(self.target, parts.head, self.costs, parts.regions)
            parts = replace(parts, costs=costs)
        elif budget is None and self.target.device.type == "cpu":
            nodes = min(nodes, CPU_BUDGET)
        gates = f", {self._gates(nodes)}" if "thresholds" in method.takes else ""
        spends = f"what pays, up to {nodes} nodes" if adaptive else str(nodes)
        kernels = " with compiled kernels" if self.target.kernels else ", CUDA graphs" if parts.regions.fixed else ""
        kernels += f" and {self.target.weights} weights" if self.target.integers else ""
        kernels += f", cache in {str(self.target.cache_dtype)[6:]}" if self.target.cache_dtype else ""
        about = (f"{self.target.name} on {self.target.device} in {str(self.target.dtype)[6:]}, attention "
                 f"{self.target.attention}{kernels}, method {method}{PROMISES[method.promise]}, budget {spends}{gates}")
        engine = Engine(self.target, build(method, parts, adaptive), parts.clock, nodes, chunk, parts.regions,
                        verifies(method, parts), prefixes)
        notes = self.notes
        reads = any(isinstance(memory, PartialMatching) for memory in engine.proposer.memories)
        if reads and isinstance(why := compiled(), NotBuilt):
            notes = (*notes, f"what follows in the text is looked up in Python, 25 times as slowly: {why}")
        return Session(engine, self.tokenizer, (*notes, about), method.promise, str(method),
                       partial(self._made, budget, chunk, prefixes, costs))

    def _gates(self, nodes: int) -> str:
        """The thresholds, and the differences between this session and their calibration, for people."""
        shape, calibration = self.parts.shape, self.parts.calibration
        differs = calibration.differs(made_for(nodes, shape.levels, shape.top_k, shape.window))
        follow = "" if shape.online is None else ", then following the last steps"
        return calibration.describe() + (f" (made for {'; '.join(differs)})" if differs else "") + follow


def load(model: Any = None, drafter: str | Path | None = AUTO, tell: bool = True, **options: Any) -> Session:
    """A session: `load(...)` once, then `generate` and `stream` as often as you like.

    model:   a name of `longgraft models`, a folder, a GGUF file, a hub id, a loaded (model, tokenizer), or None for the
             embedded pair
    drafter: a hub id or folder of an EAGLE-3 head; "auto": the known head of this model, else none, as the method says;
             None or "none": no drafter, and the method's fallback where it needs one
    tell:    print the choices on stderr
    options: the fields of `Settings`
    """
    return open_session(model, drafter, Settings(**options), tell)[0]


def generate(prompt: Prompt, model: Any = None, drafter: str | Path | None = "auto", max_new_tokens: int = 256,
             stop: Sequence[str] = (), *, prediction: Prediction | None = None, **options: Any) -> Generation:
    """The model's exact answer to a long prompt.

    prediction: text that the answer may repeat, which the model does not read; options: the fields of `Settings` and of
    `Sampling`
    """
    draw = {f.name: options.pop(f.name) for f in fields(Sampling) if f.name in options}
    Sampling(**draw)        # checked before a model is loaded
    session = load(model, drafter, tell=False, **options)
    return session.generate(prompt, max_new_tokens, stop, prediction=prediction, **draw)


def open_session(model: Any, drafter: str | Path | None, settings: Settings, tell: bool = False
                 ) -> tuple[Session, Loaded]:
    """A session, and what it was made from; arguments as of `load`."""
    loaded = assemble(model, drafter, settings)
    session = loaded.session(with_own_settings(settings).budget, settings.chunk, settings.prefixes, settings.prefix,
                             settings.corpus)
    if tell:
        print(*(f"longgraft: {line}" for line in session.about), sep="\n", file=sys.stderr)
    return session, loaded


def assemble(model: Any, drafter: str | Path | None, settings: Settings) -> Loaded:
    """Resolve and load the target and everything that the method needs."""
    settings = with_own_settings(settings)
    method, source = find(settings.method), resolve(model)
    check_given(settings.given, method.needs)
    target, tokenizer = load_target(source, settings)
    method, given, notes = load_needs(method, Sources(target, None if drafter == "none" else drafter, settings.head,
                                                      settings.given, tokenizer))
    if target.kernels is None and isinstance(why := _kernels(settings, target.model), NotBuilt):
        notes = (*notes, f"no compiled kernels: {why}; torch decodes, more slowly")
    regions, why_eager = _regions(settings, target)
    if why_eager:
        notes = (*notes, f"no CUDA graphs: {why_eager}; each kernel is launched by itself")
    shape = Shape(settings.draft_levels, settings.draft_top_k, settings.draft_window, settings.retrieved_depth,
                  settings.retrieved_width, settings.online, settings.persist)
    calibration = _calibration(target, tokenizer, given.get(HEAD.name), settings)
    parts = Parts(target, given, shape, calibration, regions=regions)
    return Loaded(target, tokenizer, method, parts, notes, settings.costs)


@dataclass(frozen=True)
class Source:
    """Where a target comes from.  name: as it was given; given: a loaded model and its tokenizer."""

    name: str
    given: tuple[PreTrainedModel, Any] | None = None


def resolve(model: Any) -> Source:
    """Reads nothing.  ValueError for what is no model."""
    if model in (None, EMBEDDED):
        return Source(EMBEDDED)
    if isinstance(model, (str, Path)):
        return Source(str(model))
    if not isinstance(model, tuple):
        raise ValueError(f"A {type(model).__name__} was given as the model. "
                         "Pass (model, tokenizer), a name of `longgraft models`, a folder, a GGUF file or a hub id.")
    if len(model) != 2 or not isinstance(model[0], PreTrainedModel):
        raise ValueError(f"({', '.join(type(part).__name__ for part in model)}) was given as the model. Pass "
                         "(model, tokenizer): a transformers model, and its tokenizer or None.")
    return Source(getattr(model[0].config, "_name_or_path", "") or type(model[0]).__name__, given=model)


def load_target(source: Source, settings: Settings) -> tuple[Target, Any]:
    """(target, its tokenizer or None); ValueError where they do not fit each other or the settings."""
    if source.given is not None:
        model, tokenizer = source.given
        if settings.weights == "gguf":
            raise ValueError("A loaded model was given, which has no blocks of a GGUF file. Give --weights int8 or "
                             "float, or the file.")
        target = _target(model, source.name, settings)
        asked = None if settings.dtype is None else dtype_of(settings.dtype)
        if asked not in (None, target.dtype) or settings.device not in (None, str(target.device), target.device.type):
            raise ValueError(f"The model given is {target.dtype} on {target.device}; {settings.dtype or 'any dtype'} "
                             f"on {settings.device or 'any device'} was asked for. Move it with model.to(...) first.")
        check_finite(model, source.name)
    else:
        name, device = source.name, device_of(settings.device)
        wanted = _wanted(settings.dtype, device)
        path = place_of(name, wanted, blocks=settings.weights == "gguf").path
        with nullcontext() if Path(path).exists() or hub_answers() else offline():
            config: Any = read_config(path, name)
            tokenizer = read_tokenizer(path, name)
            read: Any = read_model(path, name, config, wanted or config.dtype or torch.bfloat16)
        target = _target(read.to(device), name, settings, Path(path))
    # Without added tokens: some models ship a few that they never predict.
    if tokenizer is not None and tokenizer.vocab_size > target.vocab_size:
        raise ValueError(f"The tokenizer has {tokenizer.vocab_size:,} tokens and {target.name} predicts "
                         f"{target.vocab_size:,}: it is another model's. Load the tokenizer of this model.")
    return target, tokenizer


def _target(model: PreTrainedModel, name: str, settings: Settings, folder: Path | None = None) -> Target:
    """folder: where its weights are, and a GGUF file's blocks."""
    kernels = _kernels(settings, model)
    small = fused(model) if settings.graphs == "auto" and model.device.type == "cuda" else None
    if not isinstance(kernels, CpuKernels) and (asked := [
            name for name, is_asked in (("--weights", settings.weights != "float"), ("--kv-dtype", settings.kv_dtype))
            if is_asked]):
        why = kernels or f"this model is {str(model.dtype)[6:]} on {model.device}, with kernels={settings.kernels}"
        raise ValueError(f"{' and '.join(asked)}: for a CPU's compiled kernels, in float32 or bfloat16, and {why}. "
                         f"Leave {' and '.join(asked)} out, or give --device cpu --dtype float32 --kernels auto.")
    if settings.kv_dtype and settings.attention not in ("auto", "split"):
        raise ValueError(f"--kv-dtype is for the compiled kernels' attention, and --attention {settings.attention} was "
                         "given. Leave one of them out.")
    return Target(model, name, settings.attention, kernels if isinstance(kernels, CpuKernels) else None,
                  small if isinstance(small, FusedModules) else None, _integers(settings, model, kernels, folder),
                  dtype_of(settings.kv_dtype) if settings.kv_dtype else None)


def _integers(settings: Settings, model: PreTrainedModel, kernels: Any, folder: Path | None) -> Integers | None:
    """The linear weights in integers, where the settings ask for them."""
    if settings.weights == "float":
        return None
    linear = dict(linear_weights(model))
    if settings.weights == "gguf" and folder:
        blocks = {name: of for name, of in read_blocks(folder).items() if name in linear}
        if not blocks:
            raise ValueError("The GGUF file has no matrix in blocks that the kernels multiply with "
                             f"({', '.join(READ)}). Give --weights int8, or leave --weights out.")
        return Integers("gguf", {name: kernels.packed_integers(of) for name, of in blocks.items()})
    return Integers("int8", {name: kernels.packed_integers(rounded(weight)) for name, weight in linear.items()})


def _wanted(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype | None:
    """On a CPU float32, where decoding is exact; None: what the weights were saved in."""
    if dtype is not None:
        return dtype_of(dtype)
    return torch.float32 if device.type == "cpu" else None


def load_needs(method: Method, sources: Sources) -> tuple[Method, dict[str, Any], tuple[str, ...]]:
    """(method, its needs by name, notes for people): where a need is missing, the method's fallback, with a note."""
    given: dict[str, Any] = {}
    for need in method.needs:
        try:
            given[need.name] = need.load(sources)
        except Missing as error:
            # A choice that was made is of this method: another method would not have it.
            falls_back = method.fallback and sources.drafter in (AUTO, None) and method.choices == method.usual
            if not falls_back:
                raise ValueError(f"Method {method.name!r} needs {need.clause}: {error}") from error
            why = str(error).splitlines()[0].rstrip(".")
            other, given, notes = load_needs(find(method.fallback), sources)
            return other, given, (f"{why}; decoding with method {other.name} instead of {method.name}", *notes)
    return method, given, ()


def _kernels(settings: Settings, model: PreTrainedModel) -> CpuKernels | NotBuilt | None:
    """None where they are switched off, or do not apply to the device and dtype."""
    if (settings.kernels, model.device.type) != ("auto", "cpu") or model.dtype not in DTYPES:
        return None
    if (packed := packed_bytes(model, settings.weights != "float")) > (free := free_bytes(model.device)):
        needed, left = (size / 2 ** 30 for size in (packed, free))
        return NotBuilt(f"their copy of the weights takes {needed:.1f} GiB, and {left:.1f} are free")
    return cpu_kernels()


def _regions(settings: Settings, target: Target) -> tuple[Regions, str]:
    """(CUDA graphs or eager execution, the reason for eager execution where graphs were requested)."""
    if settings.graphs == "none" or target.device.type != "cuda":
        return EAGER, ""
    why = why_not_fixed(settings.attention)
    return (EAGER if why else Regions(cuda_graphs(target.device))), why


def _calibration(target: Target, tokenizer: Any, network: Eagle3Network | None, settings: Settings) -> Calibration:
    identity = identity_of(target, tokenizer, network)
    if settings.calibration is None:
        return Calibration()
    if settings.calibration == "auto":
        path = default_path(identity)
        if path.exists():
            return Calibration.load(path, identity, target.device)
        if target.name == EMBEDDED:
            with suppress(ValueError):      # with another head, or none, the shipped one does not apply
                return Calibration.load(embedded("calibration.safetensors"), identity, target.device)
        return Calibration()
    path = Path(settings.calibration)
    if not path.exists():
        raise ValueError(f"Calibration file {path} does not exist. Make it with `longgraft calibrate --out {path}`.")
    return Calibration.load(path, identity, target.device)


def identity_of(target: Target, tokenizer: Any, network: Eagle3Network | None) -> dict[str, str]:
    """What a calibration belongs to: token ids are of one tokenizer and target, thresholds of one drafter.  A few
    values of the weights identify them."""
    drafter = "none" if network is None else digest([network.config, network.fc.weight[0].tolist()])
    numbers = {} if target.integers is None else {"linear weights": target.weights}
    return {**numbers, "target": Path(target.name).name, "vocab_size": str(target.vocab_size),
            "tokenizer": vocabulary(tokenizer), "weights": digest(target.head.weight[-1].tolist()), "drafter": drafter}

"""From names to a session: resolve models and methods, load them, assemble them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.cost_measurement import costs_for
from longgraft.budget.cost_model import LiveCosts
from longgraft.config.settings import Budget, Settings
from longgraft.engine.encoder import Prompt
from longgraft.engine.engine import Engine
from longgraft.engine.predicted_output import Prediction
from longgraft.engine.session import Generation, Session
from longgraft.kernels.build import NotBuilt
from longgraft.memories.compiled_continuations import compiled
from longgraft.memories.partial_matching import PartialMatching
from longgraft.methods.calibration import Calibration, any_kept_for, default_path, made_for
from longgraft.methods.find import Method, build, find, verifies
from longgraft.methods.needs import AUTO, HEAD, Missing, Sources, check_given
from longgraft.methods.own_settings import with_own_settings
from longgraft.methods.parts import DraftShape, Parts
from longgraft.models.places import EMBEDDED, embedded
from longgraft.models.targets import kernels_for, load_target, resolve
from longgraft.prefill.prefixes import Prefixes
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions, cuda_graphs
from longgraft.runtime.fingerprint import digest, vocabulary
from longgraft.target_model.model import Target
from longgraft.target_model.static_pass import why_not_fixed
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
            known = costs or parts.costs
            costs = known.copy() if known else costs_for(self.target, parts.head, self.costs, parts.regions)
            parts = replace(parts, costs=costs)
        elif budget is None and self.target.device.type == "cpu":
            nodes = min(nodes, CPU_BUDGET)
        gates = f", {self._gates(nodes)}" if "thresholds" in method.takes else ""
        spends = f"what pays, up to {nodes} nodes" if adaptive else str(nodes)
        kernels = " with compiled kernels" if self.target.kernels else ", CUDA graphs" if parts.regions.fixed else ""
        kernels += f" and {self.target.weights} weights" if self.target.weights != "float" else ""
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
    found = load_target(source, settings)
    target, tokenizer = found.target, found.tokenizer
    method, given, notes = load_needs(method, Sources(target, None if drafter == "none" else drafter, settings.head,
                                                      settings.given, tokenizer))
    notes = (*found.notes, *notes)
    if target.kernels is None and isinstance(why := kernels_for(settings, target.model), NotBuilt):
        notes = (*notes, f"no compiled kernels: {why}; torch decodes, more slowly")
    regions, why_eager = _regions(settings, target)
    if why_eager:
        notes = (*notes, f"no CUDA graphs: {why_eager}; each kernel is launched by itself")
    shape = DraftShape(settings.draft_levels, settings.draft_top_k, settings.draft_window, settings.retrieved_depth,
                  settings.retrieved_width, settings.online, settings.persist)
    calibration = _calibration(target, tokenizer, given.get(HEAD.name), settings)
    parts = Parts(target, given, shape, calibration, regions=regions)
    return Loaded(target, tokenizer, method, parts, notes, settings.costs)


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


def _regions(settings: Settings, target: Target) -> tuple[Regions, str]:
    """(CUDA graphs or eager execution, the reason for eager execution where graphs were requested)."""
    if settings.graphs == "none" or target.device.type != "cuda":
        return EAGER, ""
    why = why_not_fixed(settings.attention)
    return (EAGER if why else Regions(cuda_graphs(target.device))), why


def _calibration(target: Target, tokenizer: Any, network: Eagle3Network | None, settings: Settings) -> Calibration:
    if settings.calibration is None or (settings.calibration == "auto" and target.name != EMBEDDED
                                        and not any_kept_for(target.name)):
        return Calibration()        # a vocabulary's fingerprint takes a second
    identity = identity_of(target, tokenizer, network)
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
    """What a calibration belongs to: token ids are of one tokenizer and target, thresholds of one drafter.

    A few rows of the head identify the weights. They are spread over the vocabulary, whose end is often unused padding.
    """
    rows = target.head.weight[::max(1, target.vocab_size // 8)]
    drafter = "none" if network is None else digest([network.config, network.fc.weight[0].tolist()])
    numbers = {} if target.weights == "float" else {"linear weights": target.weights}
    return {**numbers, "target": Path(target.name).name, "vocab_size": str(target.vocab_size),
            "tokenizer": vocabulary(tokenizer), "weights": digest(rows.tolist()), "drafter": drafter}

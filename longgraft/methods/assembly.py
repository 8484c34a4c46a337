"""The third step of loading: a target and a method become sessions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from longgraft.budget.cost_measurement import costs_for
from longgraft.budget.cost_model import LiveCosts
from longgraft.budget.sample_text import sample_tokens
from longgraft.config.settings import Budget, Settings
from longgraft.engine.earlier_answers import EarlierAnswers
from longgraft.engine.end_tokens import end_note
from longgraft.engine.engine import Engine
from longgraft.engine.lane import Lane
from longgraft.engine.session import Session
from longgraft.kernels.build import NotBuilt
from longgraft.memories.continuations import compiled
from longgraft.memories.partial_matching import PartialMatching
from longgraft.methods.calibration import calibration_of, identity_of, made_for
from longgraft.methods.find import Method, build, find, verifies
from longgraft.methods.needs import AUTO, HEAD, Missing, Sources
from longgraft.methods.parts import Parts
from longgraft.models.targets import LoadedTarget
from longgraft.prefill.prefixes import Prefixes
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions, cuda_graphs
from longgraft.target_model.model import Target
from longgraft.target_model.static_pass import why_not_fixed

# Nodes per verification on a CPU, where verifying many nodes is not free: of budgets from 8 to 60, sixteen lost the
# least speed and kept most of the acceptance (embedded pair, docs/results/embedded).
CPU_BUDGET = 16
PROMISES = {
    "exact": "",
    "distribution": ", keeps the target's law where it samples",
    "lossy": ", LOSSY: need not say what the target would",
}


@dataclass(frozen=True)
class Loaded:
    """A target and all that a method needs on it; sessions are made from it.

    Attributes:
        target: The target.
        tokenizer: Its tokenizer; None: prompts are ids.
        method: The requested method, or its fallback.
        parts: The parts that the method is built from.
        notes: Replacements that were chosen, for people.
        settings: The settings, with the values of the method's name.
    """

    target: Target
    tokenizer: Any
    method: Method
    parts: Parts
    notes: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)

    @property
    def identity(self) -> dict[str, str]:
        """The target, tokenizer and drafter that a calibration belongs to."""
        return identity_of(self.target, self.tokenizer, self.parts.head)

    def session(self, settings: Settings | None = None) -> Session:
        """Makes a session.

        settings: Its budget, chunk, prefixes, prefix, corpus and remember are read; None: their defaults.  A budget of
            None is as many nodes as pay, if the method can choose, else the method's own, but at most CPU_BUDGET on a
            CPU.
        """
        chosen = settings or Settings()
        adaptive = self.method.chooses(chosen.budget)
        parts = replace(self.parts, shared={})
        if adaptive:
            parts = replace(parts, costs=(parts.costs and parts.costs.copy()) or self._costs(parts))
        engine = self._engine(chosen, parts, adaptive)
        session = Session(engine, self.tokenizer, self._about(engine, adaptive), self.method.promise, str(self.method))
        session.pass_seconds = None if parts.costs is None else parts.costs.verify
        if session.defaults.described:
            session.about += (session.defaults.described,)
        for path in chosen.prefix:
            session.about += (f"prefix {path}: {session.pin_prefix(path):,} tokens are known",)
        if chosen.remember:
            session.about += (f"the newest answers are remembered, in {chosen.remember:,} bytes",)
        if chosen.corpus is not None:
            session.default_corpus = chosen.corpus
            tokens = len(session.corpus(chosen.corpus).tokens)
            session.about += (f"corpus {chosen.corpus}: {tokens:,} tokens may be repeated",)
        return session

    def _engine(self, chosen: Settings, parts: Parts, adaptive: bool) -> Engine:
        """Makes a session's engine of these parts; its lanes have memories of their own."""
        nodes = self.method.usual_budget(chosen.budget)
        if not adaptive and chosen.budget is None and self.target.device.type == "cpu":
            nodes = min(nodes, CPU_BUDGET)
        prefixes = Prefixes(int(chosen.prefixes * 2**30)) if chosen.prefixes else None
        earlier = EarlierAnswers(chosen.remember) if chosen.remember else None
        parts = replace(parts, regions=parts.regions.anew())
        first = self._lane(parts, adaptive)

        def another() -> Lane:
            further = self._lane(replace(parts, costs=parts.costs and parts.costs.copy()), adaptive)
            return further.beside(first)

        engine = Engine(first, nodes, chosen.chunk, prefixes, another, earlier)
        engine.plan_pool(1)
        return engine

    def joined_engine(self, budget: Budget) -> Engine:
        """Makes an engine of one lane that uses the parts' own memories, shared objects, clock and regions.

        Engines of several methods that are made from the same parts share their memories, so that a fork
        (`longgraft.engine.fork`) reads a prompt once for all of them.

        budget: as in `session`, but None stands for the method's own nodes on every device
        """
        adaptive = self.method.chooses(budget)
        parts = self.parts
        if adaptive and parts.costs is None:
            parts = replace(parts, costs=self._costs(parts))
        return Engine(self._lane_of(parts, adaptive), self.method.usual_budget(budget))

    def _costs(self, parts: Parts) -> LiveCosts:
        return costs_for(self.target, parts.head, self.settings.costs, parts.regions, sample_tokens(self.tokenizer))

    def _lane(self, parts: Parts, adaptive: bool) -> Lane:
        """Makes a lane with memories and a clock of its own, because several lanes may share one target."""
        return self._lane_of(replace(parts, kept={}, clock=Clock()), adaptive)

    def _lane_of(self, parts: Parts, adaptive: bool) -> Lane:
        return Lane(
            self.target, build(self.method, parts, adaptive), parts.clock, parts.regions, verifies(self.method, parts)
        )

    def _about(self, engine: Engine, adaptive: bool) -> tuple[str, ...]:
        """Returns what was chosen, as lines for people."""
        target, nodes = self.target, engine.budget
        kernels = ""
        if target.kernels:
            kernels += " with compiled kernels"
        elif engine.regions.fixed:
            kernels += ", CUDA graphs"
        if target.weights != "float":
            kernels += f" and {target.weights} weights"
        if target.cache_dtype:
            kernels += f", cache in {str(target.cache_dtype)[6:]}"
        spends = f"chosen for each step, up to {nodes} nodes" if adaptive else str(nodes)
        gates = f", {self._gates(nodes)}" if "thresholds" in self.method.takes else ""
        about = (
            f"{target.name} on {target.device} in {str(target.dtype)[6:]}, attention {target.attention}{kernels}, "
            f"method {self.method}{PROMISES[self.method.promise]}, budget {spends}{gates}"
        )
        reads = any(isinstance(memory, PartialMatching) for memory in engine.proposer.memories)
        why = compiled() if reads else None
        if isinstance(why, NotBuilt):
            return (*self.notes, f"nothing is proposed from the text, which needs compiled code: {why}", about)
        return (*self.notes, about)

    def _gates(self, nodes: int) -> str:
        """Describes the thresholds, and how this session differs from the one that they were calibrated for."""
        calibration = self.parts.calibration
        differs = calibration.differs(made_for(nodes, self.method.choices))
        return calibration.describe() + (f" (made for {'; '.join(differs)})" if differs else "")


def with_method(found: LoadedTarget, drafter: str | Path | None, method: Method, settings: Settings) -> Loaded:
    """Loads everything that the method needs on a target.

    Args:
        found: The target.
        drafter: Hub id or folder of an EAGLE-3 head; AUTO: the known one of this target; None or "none": none.
        method: The method, as `chosen_method` returns it; its fallback replaces it if a need is missing.
        settings: The settings, likewise.
    """
    target = found.target
    sources = Sources(target, None if drafter == "none" else drafter, settings.head, settings.given, found.tokenizer)
    method, given, notes = load_needs(method, sources)
    network = given.get(HEAD.name)
    if network is not None and network.notice:
        notes = (*notes, network.notice)
    ends = end_note(target.model, found.tokenizer, target.vocab_size)
    if ends:
        notes = (*notes, ends)
    regions, why_eager = _regions(settings, target)
    if why_eager:
        notes = (*notes, f"no CUDA graphs: {why_eager}; each kernel is launched by itself")
    calibration = calibration_of(target, found.tokenizer, network, settings.calibration)
    parts = Parts(target, given, calibration, regions=regions, persist=settings.persist)
    return Loaded(target, found.tokenizer, method, parts, (*found.notes, *notes), settings)


def load_needs(method: Method, sources: Sources) -> tuple[Method, dict[str, Any], tuple[str, ...]]:
    """Returns (method, its needs by name, notes for people); if a need is missing, the method's fallback and a note."""
    given: dict[str, Any] = {}
    for need in method.needs:
        try:
            given[need.name] = need.load(sources)
        except Missing as error:
            other = find(method.fallback, method.bounds) if method.fallback else method
            # A choice that the other method does not have would be dropped.
            kept = method.changed.keys() <= other.bounds.keys()
            if other is method or not kept or sources.drafter not in (AUTO, None):
                raise ValueError(f"Method {method.name!r} needs {need.clause}: {error}") from error
            why = str(error).splitlines()[0].rstrip(".")
            other, given, notes = load_needs(other, sources)
            return other, given, (f"{why}; decoding with method {other.name} instead of {method.name}", *notes)
    return method, given, ()


def _regions(settings: Settings, target: Target) -> tuple[Regions, str]:
    """Returns (CUDA graphs or eager execution, why it is eager although graphs were requested)."""
    if settings.graphs == "none" or target.device.type != "cuda":
        return EAGER, ""
    why = why_not_fixed(settings.attention)
    return (EAGER if why else Regions(cuda_graphs(target.device))), why

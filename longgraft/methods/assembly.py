"""The third step of loading: a target and a method become sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from longgraft.budget.cost_measurement import costs_for
from longgraft.budget.cost_model import LiveCosts
from longgraft.budget.sample_text import sample_tokens
from longgraft.config.settings import Budget, Settings
from longgraft.engine.earlier_answers import EarlierAnswers
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
PROMISES = {"exact": "", "distribution": ", keeps the target's law where it samples",
            "lossy": ", LOSSY: need not say what the target would"}


@dataclass(frozen=True)
class Loaded:
    """A target and all that a method needs on it; sessions are made from it.

    method: the requested one, or its fallback; notes: replacements that were chosen, for people
    settings: those of the plan
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

    def session(self, budget: Budget = None, chunk: int | None = None, prefixes: float | None = None,
                prefix: Sequence[str] = (), corpus: str | None = None, remember: int | None = None) -> Session:
        """Makes a session.

        Args:
            budget: Nodes per verification; paper: the method's; None: as many as pay, if the method can choose, else
                the method's, but at most CPU_BUDGET on a CPU.
            chunk: Prompt tokens per prefill pass; None: as many as memory allows.
            prefixes: Size of the prefix cache in GiB; None: no prefix cache.
            prefix: Prefix files.
            corpus: Name of the corpus for requests that name none.
            remember: Bytes of earlier answers that are kept; None: none.
        """
        parts, adaptive = self._session_parts(budget), self.method.chooses(budget)
        nodes = self.method.usual_budget(budget)
        if not adaptive and budget is None and self.target.device.type == "cpu":
            nodes = min(nodes, CPU_BUDGET)
        engine = Engine(self._lane(parts, adaptive), nodes, chunk,
                        Prefixes(int(prefixes * 2 ** 30)) if prefixes else None,
                        lambda: self._lane(replace(parts, costs=parts.costs and parts.costs.copy()), adaptive),
                        EarlierAnswers(remember) if remember else None)
        session = Session(engine, self.tokenizer, self._about(engine, adaptive), self.method.promise, str(self.method))
        said = session.defaults.described
        session.about += (said,) if said else ()
        known = (f"prefix {path}: {session.pin_prefix(path):,} tokens are known" for path in prefix)
        session.about += tuple(known)
        if remember:
            session.about += (f"the newest answers are remembered, in {remember:,} bytes",)
        if corpus is not None:
            session.default_corpus = corpus
            session.about += (f"corpus {corpus}: {len(session.corpus(corpus).tokens):,} tokens may be repeated",)
        return session

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

    def _session_parts(self, budget: Budget) -> Parts:
        parts = replace(self.parts, shared={})
        if not self.method.chooses(budget):
            return parts
        return replace(parts, costs=(parts.costs and parts.costs.copy()) or self._costs(parts))

    def _costs(self, parts: Parts) -> LiveCosts:
        return costs_for(self.target, parts.head, self.settings.costs, parts.regions, sample_tokens(self.tokenizer))

    def _lane(self, parts: Parts, adaptive: bool) -> Lane:
        """Makes a lane with memories and a clock of its own, because several lanes may share one target."""
        return self._lane_of(replace(parts, kept={}, clock=Clock(), regions=parts.regions.anew()), adaptive)

    def _lane_of(self, parts: Parts, adaptive: bool) -> Lane:
        return Lane(self.target, build(self.method, parts, adaptive), parts.clock, parts.regions,
                    verifies(self.method, parts))

    def _about(self, engine: Engine, adaptive: bool) -> tuple[str, ...]:
        """Returns what was chosen, as lines for people."""
        target, nodes = self.target, engine.budget
        gates = f", {self._gates(nodes)}" if "thresholds" in self.method.takes else ""
        spends = f"chosen for each step, up to {nodes} nodes" if adaptive else str(nodes)
        kernels = " with compiled kernels" if target.kernels else ", CUDA graphs" if engine.regions.fixed else ""
        kernels += f" and {target.weights} weights" if target.weights != "float" else ""
        kernels += f", cache in {str(target.cache_dtype)[6:]}" if target.cache_dtype else ""
        about = (f"{target.name} on {target.device} in {str(target.dtype)[6:]}, attention {target.attention}{kernels}, "
                 f"method {self.method}{PROMISES[self.method.promise]}, budget {spends}{gates}")
        reads = any(isinstance(memory, PartialMatching) for memory in engine.proposer.memories)
        if reads and isinstance(why := compiled(), NotBuilt):
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
            # Chosen options belong to this method only, so there is no fallback if any were chosen.
            falls_back = method.fallback and sources.drafter in (AUTO, None) and method.is_usual
            if not falls_back:
                raise ValueError(f"Method {method.name!r} needs {need.clause}: {error}") from error
            why = str(error).splitlines()[0].rstrip(".")
            other, given, notes = load_needs(find(method.fallback, method.flags), sources)
            return other, given, (f"{why}; decoding with method {other.name} instead of {method.name}", *notes)
    return method, given, ()


def _regions(settings: Settings, target: Target) -> tuple[Regions, str]:
    """Returns (CUDA graphs or eager execution, why it is eager although graphs were requested)."""
    if settings.graphs == "none" or target.device.type != "cuda":
        return EAGER, ""
    why = why_not_fixed(settings.attention)
    return (EAGER if why else Regions(cuda_graphs(target.device))), why

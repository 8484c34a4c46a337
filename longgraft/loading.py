"""Makes a session from names: resolves models and methods, loads them, assembles them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from longgraft.acceptance.sampling import Sampling
from longgraft.acceptance.sampling_defaults import SamplingDefaults
from longgraft.budget.cost_measurement import costs_for
from longgraft.budget.cost_model import LiveCosts
from longgraft.budget.sample_text import sample_tokens
from longgraft.config.method_roles import DEFAULT, HEADLESS
from longgraft.config.settings import Budget, Settings
from longgraft.engine.earlier_answers import EarlierAnswers
from longgraft.engine.encoder import Prompt
from longgraft.engine.engine import Engine
from longgraft.engine.lane import Lane
from longgraft.engine.predicted_output import Prediction
from longgraft.engine.session import Generation, Session
from longgraft.kernels.build import NotBuilt
from longgraft.memories.continuations import compiled
from longgraft.memories.partial_matching import PartialMatching
from longgraft.methods.calibration import Calibration, any_kept_for, default_path, made_for
from longgraft.methods.find import Method, build, find, verifies
from longgraft.methods.load_plan import LoadPlan
from longgraft.methods.needs import AUTO, HEAD, Missing, Sources, default_method
from longgraft.methods.parts import Parts
from longgraft.models.catalogue import shipped_head
from longgraft.models.places import EMBEDDED, embedded
from longgraft.models.targets import load_target
from longgraft.prefill.prefixes import Prefixes
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions, cuda_graphs
from longgraft.runtime.devices import device_of
from longgraft.runtime.fingerprint import digest, vocabulary
from longgraft.target_model.model import Target
from longgraft.target_model.static_pass import why_not_fixed
from longgraft.yarn_drafters.network import Eagle3Network

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


def load(model: Any = None, drafter: str | Path | None = AUTO, tell: bool = True, **options: Any) -> Session:
    """Loads a model with a method; then call `generate` and `stream` as often as you like.

    Args:
        model: A name of `longgraft models`, a folder, a GGUF file, a hub id, a loaded (model, tokenizer), or None for
            the embedded pair.
        drafter: Hub id or folder of an EAGLE-3 head; "auto": the known head of this model; None or "none": no drafter.
            Without a head, a method that needs one is replaced by its fallback.
        tell: Print the choices on stderr.
        **options: The fields of `Settings`, such as method, budget, device, dtype and weights.

    Returns:
        The session.

    Raises:
        ValueError: a name or setting is wrong, or model, drafter and settings do not fit each other.
    """
    return open_session(model, drafter, Settings(**options), tell)[0]


def generate(prompt: Prompt, model: Any = None, drafter: str | Path | None = "auto", max_new_tokens: int = 256,
             stop: Sequence[str] = (), *, prediction: Prediction | None = None,
             stop_token_ids: int | Sequence[int] = (), **options: Any) -> Generation:
    """Answers one prompt; loads the model for it.

    Args:
        prompt: Text, chat messages or token ids.
        model: As in `load`.
        drafter: As in `load`.
        max_new_tokens: Most tokens of the answer.
        stop: Stop strings.
        prediction: Text that the answer may repeat; the model does not read it.
        stop_token_ids: Ids of tokens that end the answer, too.
        **options: The fields of `Settings` and of `Sampling`.

    Returns:
        The answer, with the tokens that the model alone would give (see `Session.generate`).

    Raises:
        ValueError: a name or setting is wrong, or the prompt does not fit the model.
    """
    draw = {f.name: options.pop(f.name) for f in fields(Sampling) if f.name in options}
    SamplingDefaults().sampling(draw)       # checked before a model is loaded
    session = load(model, drafter, tell=False, **options)
    return session.generate(prompt, max_new_tokens, stop, prediction=prediction, stop_token_ids=stop_token_ids, **draw)


def open_session(model: Any, drafter: str | Path | None, settings: Settings, tell: bool = False
                 ) -> tuple[Session, Loaded]:
    """Returns a session, and what it was made from; arguments as in `load`."""
    plan, note = _without_slow_head(LoadPlan.of(model, drafter, settings))
    loaded = assemble(plan)
    loaded = replace(loaded, notes=(*loaded.notes, *note))
    chosen = loaded.settings
    session = loaded.session(chosen.budget, chosen.chunk, chosen.prefixes, chosen.prefix, chosen.corpus,
                             chosen.remember)
    if tell:
        print(*(f"longgraft: {line}" for line in session.about), sep="\n", file=sys.stderr)
    return session, loaded


def _without_slow_head(plan: LoadPlan) -> tuple[LoadPlan, tuple[str, ...]]:
    """Returns the plan, without a head that ships where the default does not use it, and notes for people."""
    name = plan.source.name
    usual = plan.method.name == DEFAULT and plan.method.is_usual
    ships = plan.drafter == AUTO and shipped_head(name) is not None
    on_cpu = device_of(plan.settings.device).type == "cpu"
    if not usual or not ships or default_method(name, plan.drafter, on_cpu) == DEFAULT:
        return plan, ()
    note = (f"the head of {name} made decoding no faster on any CPU that was measured, so method {HEADLESS} replaces "
            f"{DEFAULT} (--drafter {name} uses the head)")
    return replace(plan, method=find(HEADLESS)), (note,)


def assemble(plan: LoadPlan) -> Loaded:
    """Loads the target and everything that the method needs."""
    settings, found = plan.settings, load_target(plan.source, plan.settings)
    target, tokenizer = found.target, found.tokenizer
    method, given, notes = load_needs(plan.method, Sources(target, plan.drafter, settings.head, settings.given,
                                                           tokenizer))
    notes = (*found.notes, *notes)
    network = given.get(HEAD.name)
    if network is not None and network.notice:
        notes = (*notes, network.notice)
    regions, why_eager = _regions(settings, target)
    if why_eager:
        notes = (*notes, f"no CUDA graphs: {why_eager}; each kernel is launched by itself")
    calibration = _calibration(target, tokenizer, network, settings)
    parts = Parts(target, given, calibration, regions=regions, persist=settings.persist)
    return Loaded(target, tokenizer, method, parts, notes, settings)


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


def _calibration(target: Target, tokenizer: Any, network: Eagle3Network | None, settings: Settings) -> Calibration:
    if settings.calibration is None or (settings.calibration == "auto" and target.name != EMBEDDED
                                        and not any_kept_for(target.name)):
        return Calibration()        # returned early, because a vocabulary's fingerprint takes a second
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
    """Returns what a calibration belongs to: token ids to a tokenizer and target, thresholds to a drafter.

    A few rows of the head identify the weights. They are spread over the vocabulary, whose end is often unused padding.
    """
    rows = target.head.weight[::max(1, target.vocab_size // 8)]
    drafter = "none" if network is None else digest([network.config, network.fc.weight[0].tolist()])
    numbers = {} if target.weights == "float" else {"linear weights": target.weights}
    return {**numbers, "target": Path(target.name).name, "vocab_size": str(target.vocab_size),
            "tokenizer": vocabulary(tokenizer), "weights": digest(rows.tolist()), "drafter": drafter}

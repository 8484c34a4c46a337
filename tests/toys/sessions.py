"""Sessions of toy models, their prompts and their answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.cost_model import Costs, LiveCosts
from longgraft.engine.earlier_answers import EarlierAnswers
from longgraft.engine.engine import Engine
from longgraft.engine.lane import Lane
from longgraft.engine.predicted_output import Prediction
from longgraft.engine.request import Request
from longgraft.engine.session import Generation, Session, answer
from longgraft.kernels.cpu import CpuKernels
from longgraft.methods.calibration import Calibration
from longgraft.methods.find import build, find, known, verifies
from longgraft.methods.needs import HEAD
from longgraft.methods.parts import Parts
from longgraft.prefill.prefixes import Prefixes
from longgraft.runtime.clock import Clock
from longgraft.target_model.model import Target
from toys.models import once, toy_network, toy_target
from toys.prompts import toy_prompt as toy_prompt

# Costs of a machine where a few rows take little longer than one and drafting is cheap, so that all choices occur.
TOY_COSTS = Costs({}, "made up", {0: {1: 1.0, 60: 1.6}}, {0: {1: 0.02, 10: 0.03}}, {0: {1: 0.02, 64: 0.1}})

# Choices and settings of methods that the tests cover as if they were methods.
ABLATIONS = (
    "eagle3+window=2048",
    "graft+pruning=none+retrieved=20",
    "graft+pruning=none+retrieval=tail+retrieved=20",
    "graft+retrieval=none",
    "graft+retrieval=drafted",
    "graft+pruning=none",
    "graft-x+text=false",
    "graft-x+rows=false+budget=60",
    "graft-x+probing=false",
    "graft-x+pruning=none+budget=60",
    "adapld+branches=0",
    "adapld+successors=false",
    "adapld+likeness=none",
    "graft-dflash+both=true+budget=24",
)
METHODS = known()
ABLATIONS = tuple(name for name in ABLATIONS if name.partition("+")[0] in METHODS)
# Methods by their names for `build`: those of the registry and the ablations.
EVERY = METHODS | {
    name: find(name) for name in (re.sub(r"\+budget=.*", "", name) for name in ABLATIONS) if "window" not in name
}
# Methods that choose the budget of each step if none is given.
CHOOSING = [name for name, method in EVERY.items() if method.adaptive and "pruning=none" not in name]

# Builders of what methods need, by the name of the need, for a toy target and a seed.
TOYS: dict[str, Callable[[Target, int], object]] = {HEAD.name: lambda target, seed: toy_network(seed)}
if find_spec("longgraft.zoo"):  # the core's tests run without it, too
    from toys.zoo import NEEDS

    TOYS |= NEEDS


@once
def toys(family: str, seed: int) -> dict[str, object]:
    """Builds all of TOYS, once per family and seed."""
    return {name: toy(toy_target(family), seed) for name, toy in TOYS.items()}


def toy_parts(family: str = "llama", seed: int = 0, kernels: CpuKernels | None = None, **more) -> Parts:
    """Returns toy parts; `more` are fields of `Parts` and of its calibration."""
    calibration = {name: more.pop(name) for name in Calibration.__dataclass_fields__ if name in more}
    more.setdefault("costs", LiveCosts(TOY_COSTS, frozen=True))
    return Parts(toy_target(family, kernels=kernels), toys(family, seed), Calibration(**calibration), **more)


@cache
def kinds() -> list[str]:
    """Names one method for each combination of memory types."""
    return list({tuple(map(type, build(name, toy_parts()).memories)): name for name in reversed(EVERY)}.values())


def toy_session(
    method,
    family: str = "llama",
    budget: int | None = None,
    chunk: int | None = 17,
    adaptive: bool = False,
    prefixes: Prefixes | None = None,
    earlier: EarlierAnswers | None = None,
    **more,
) -> Session:
    """Returns a session; adaptive: the method chooses its budgets if it can; prefixes, earlier: what it keeps."""
    parts = toy_parts(family, **more)
    proposer = build(method, parts, adaptive)
    budget = budget or find(method).budget
    lane = Lane(parts.target, proposer, parts.clock, parts.regions, verifies(method, parts))
    return Session(Engine(lane, budget, chunk, prefixes, earlier=earlier), None)


def repeatable(
    method: str,
    parts=None,
    prefixes: Prefixes | None = None,
    chunk: int = 17,
    earlier: EarlierAnswers | None = None,
    **more,
) -> Session:
    """Returns a session as `load` makes it, whose engine can have more lanes."""
    parts = parts or toy_parts(**more)

    def lane() -> Lane:
        own = replace(parts, kept={}, clock=Clock())
        return Lane(own.target, build(method, own, adaptive=True), own.clock, own.regions, verifies(method, own))

    first = lane()
    return Session(Engine(first, find(method).budget, chunk, prefixes, lambda: lane().beside(first), earlier), None)


def beside(session: Session, *asked, **options) -> Request:
    """Opens a request in a further lane of the session's engine."""
    session.engine.lanes.append(session.engine.another())
    return session.open(*asked, lane=session.engine.lanes[-1], **options)


def answered(
    session: Session,
    ids: list[int],
    new: int,
    sampling: Sampling | None = None,
    eos=(),
    *,
    prediction: Prediction | None = None,
    budget: int | None = None,
) -> Generation:
    """Generates to the end of the answer, from ids."""
    return answer(session.open(ids, new, sampling, eos=eos, prediction=prediction, budget=budget))

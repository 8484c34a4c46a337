"""The registry: every method is one expression over proposers.  Installed packages and files add methods of their own.

Knows names and constructors; no code outside this file asks for a method by name.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

from longgraft.compose import Plain, TailGraft
from longgraft.drafters.policies import Dense, Filled, Mass, Split
from longgraft.needs import HEAD, Need
from longgraft.parts import Parts
from longgraft.proposer import Proposer
from longgraft.retrievers.matrix import MatrixRetriever
from longgraft.retrievers.prompt_lookup import PromptLookup
from longgraft.settings import Budget
from longgraft.templates import chain, token_recycling

BUDGET = 60     # nodes per verification, root included; the paper's K_max
WINDOW = 2048   # tokens that a windowed drafter sees: what most heads are trained on
ENTRY_POINTS = "longgraft.methods"      # the group under which installed packages register a `Method`

# Settings that a method may be given for itself (`method+name=value`), by what it is made of.
BUDGETED = frozenset({"budget"})
DRAFTS = BUDGETED | {"levels", "top_k", "window"}
SPLIT = DRAFTS | {"thresholds"}
GATED = SPLIT | {"online"}
RANKED = DRAFTS | {"warm"}
LOOKS_UP = BUDGETED | {"depth", "width", "warm"}

Promise = Literal["exact", "distribution", "lossy"]


@dataclass(frozen=True)
class Method:
    """A way to decode.

    clause, paper: for people
    build:    from parts to a proposer
    needs:    what must be given besides the target
    promise:  exact: in float32 the ids of plain decoding, greedy and sampled; distribution: its law; lossy: neither,
              and kept out of lossless tables
    budget:   nodes per verification, root included, where none is given
    takes:    settings that can be its own
    fallback: the method that takes its place where what it needs is not known for a target; "": none does
    adaptive: from parts with costs to a proposer that chooses its own budgets, up to `budget`, where none is given
    """

    name: str
    clause: str
    paper: str
    build: Callable[[Parts], Proposer]
    needs: tuple[Need, ...] = ()
    promise: Promise = "exact"
    budget: int = BUDGET
    takes: frozenset[str] = BUDGETED
    fallback: str = ""
    adaptive: Callable[[Parts], Proposer] | None = None

    def usual_budget(self, wanted: Budget) -> int:
        """The wanted nodes per verification, the method's own, or one where it never proposes anything."""
        return wanted if isinstance(wanted, int) and self.budget > 1 else self.budget

    def chooses(self, wanted: Budget) -> bool:
        """Whether it chooses its budgets: it can, and none is wanted."""
        return wanted is None and self.adaptive is not None


OURS = "docs/choices.md, one ranking"
GRAFT = "Draft Less, Retrieve More (arXiv 2605.20104)"
EAGLE3 = "EAGLE-3 (arXiv 2503.01840)"
LOOKUP = "Prompt lookup decoding (Saxena, 2023)"
RECYCLING = "Token Recycling (arXiv 2408.08696)"

METHODS: dict[str, Method] = {method.name: method for method in (
    Method("ar", "plain decoding, one token a step", "-", lambda p: Plain(), budget=1, takes=frozenset()),
    Method("pld", "copies what followed the same n-gram before", LOOKUP,
           lambda p: PromptLookup(p.history(), clock=p.clock), budget=11),
    Method("token-recycling", "a static tree of the target's last top-8 per token, learnt over all requests", RECYCLING,
           lambda p: MatrixRetriever(p.rows(warm=False, unseen=0, seeded=False, in_order=True, lasting=True),
                                     lambda _: token_recycling(), p.clock),
           budget=81),
    Method("retrieval", "graft's matrix alone, seeded by the prompt; what graft is without a head", GRAFT,
           lambda p: p.retriever(), takes=LOOKS_UP),
    Method("eagle3", "a dense drafted tree, never pruned", EAGLE3, lambda p: p.drafter(Dense()), (HEAD,), takes=DRAFTS),
    Method("eagle3-window", "eagle3 with a drafter that sees only its last 2,048 tokens", EAGLE3 + "; vLLM, SGLang",
           lambda p: p.drafter(Dense(), window=WINDOW), (HEAD,), takes=DRAFTS),
    Method("graft-x", "drafted and remembered nodes in one ranking by the probability of their paths", OURS,
           lambda p: p.ranked(Mass()), (HEAD,), takes=RANKED, fallback="graft-x-text",
           adaptive=lambda p: p.controlled()),
    Method("graft-x-text", "graft-x without a drafter: what followed the longest match", OURS, lambda p: p.ranked(),
           adaptive=lambda p: p.controlled(drafts=False)),
    Method("graft-x-no-text", "graft-x without the text: drafted nodes and the matrix", OURS,
           lambda p: p.ranked(Mass(), order=0), (HEAD,), takes=RANKED, adaptive=lambda p: p.controlled(order=0)),
    Method("graft-x-no-probing", "graft-x that leaves a drafter which loses for the rest of an answer", OURS,
           lambda p: p.ranked(Mass()), (HEAD,), takes=RANKED, adaptive=lambda p: p.controlled(probing=False)),
    Method("graft-x-no-rows", "graft-x without the matrix", OURS, lambda p: p.ranked(Mass(), rows=False), (HEAD,),
           takes=DRAFTS),
    Method("graft-x-dense", "graft-x that never stops drafting", OURS, lambda p: p.ranked(Dense()), (HEAD,),
           takes=RANKED),
    Method("graft", "drafts, stops when unsure, fills the freed slots from the matrix", GRAFT,
           lambda p: p.graft(p.gated(), p.retriever()), (HEAD,), takes=GATED | LOOKS_UP,
           fallback="retrieval"),
    Method("graft-root", "never stops; a fixed 20 of 60 slots retrieved at the root", GRAFT + ", Figure 2",
           lambda p: p.graft(p.drafter(Split()), p.retriever()), (HEAD,), takes=DRAFTS | LOOKS_UP),
    Method("graft-tail", "never stops; four retrieved chains of five behind the best leaves", GRAFT + ", Figure 2",
           lambda p: TailGraft(p.drafter(Split()), p.retriever(chain), clock=p.clock), (HEAD,),
           takes=DRAFTS | {"warm"}),
    Method("graft-no-retrieval", "stops when unsure and leaves the freed slots empty", GRAFT + ", Figure 5",
           lambda p: p.gated(), (HEAD,), takes=GATED),
    Method("graft-filled", "stops when unsure and fills the freed slots with drafted candidates", GRAFT + ", Figure 5",
           lambda p: p.gated(Filled), (HEAD,), takes=GATED),
    Method("graft-no-prune", "never stops; the retrieved share is the calibrated one", GRAFT + ", Figure 5",
           lambda p: p.graft(p.drafter(Split(p.split)), p.retriever()), (HEAD,), takes=SPLIT | LOOKS_UP),
)}


@cache
def installed() -> dict[str, Method]:
    """Methods of installed packages, by name; ValueError where one cannot be loaded or takes a name of ours."""
    found: dict[str, Method] = {}
    for point in entry_points(group=ENTRY_POINTS):
        try:
            method = as_method(point.load(), point.name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"Method {point.name!r}, registered by an installed package as {point.value!r}, cannot be "
                             f"loaded: {error}. Mend or uninstall that package.") from error
        if method.name in METHODS or method.name in found:
            raise ValueError(f"The installed package {point.value!r} registers method {method.name!r}, which there is "
                             "already. Uninstall it, or give its method another name.")
        found[method.name] = method
    return found


def known() -> dict[str, Method]:
    """The registry and what installed packages add."""
    return METHODS | installed()


def find(what: str | Method | Proposer) -> Method:
    """A method by its name, as `FILE.py:OBJECT` or `MODULE:OBJECT`, or the object itself: a `Method`, or whatever
    proposes.  ValueError lists the known ones."""
    if not isinstance(what, str):
        return as_method(what, type(what).__name__)
    if what in METHODS:
        return METHODS[what]
    if ":" in what:
        return as_method(_named(what), what)
    methods = known()
    if what not in methods:
        raise ValueError(f"Method {what!r} is unknown. Known: {', '.join(methods)}; FILE.py:OBJECT names one of yours.")
    return methods[what]


def as_method(found: object, name: str) -> Method:
    """A `Method` as it is; an object that proposes as a method of this name."""
    if isinstance(found, Method):
        return found
    if isinstance(found, Proposer) and not isinstance(found, type):
        return Method(name, f"an object of {type(found).__name__}", "-", lambda _: found)
    raise ValueError(f"{name!r} is a {type(found).__name__}. A method is a longgraft.methods.Method, or an object with "
                     "`memories` and `propose`; see docs/adding-a-method.md.")


@cache
def _named(what: str) -> object:
    place, _, name = what.rpartition(":")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(place, Path(place))
            assert spec is not None and spec.loader is not None
            module = sys.modules[place] = importlib.util.module_from_spec(spec)     # dataclasses look their module up
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        return getattr(module, name)
    except (ImportError, AttributeError, OSError, SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"Method {what!r} cannot be loaded: {error}. Give FILE.py:OBJECT or MODULE:OBJECT.") from error


def build(what: str | Method | Proposer, parts: Parts, adaptive: bool = False) -> Proposer:
    """The method's proposer; ValueError where something that it needs is missing.  adaptive: one that chooses its
    budgets, where the method has one."""
    method = find(what)
    if missing := [need.clause for need in method.needs if need.name not in parts.given]:
        raise ValueError(f"Method {method.name!r} needs {' and '.join(missing)} for {parts.target.name}, and none was "
                         f"given.\nMethods without one: {', '.join(m.name for m in METHODS.values() if not m.needs)}.")
    return method.adaptive(parts) if adaptive and method.adaptive is not None else method.build(parts)

"""Calibrates thresholds on warm-up prompts, which are drafted densely.

The warm-up fills the adjacency matrix and logs the values that every gate would have compared with its threshold.
Source: Graft (arXiv 2605.20104), section 3.3.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from longgraft.acceptance.rules import Greedy
from longgraft.acceptance.sampling import Sampling
from longgraft.config.method_roles import PAPERS
from longgraft.config.settings import Budget, Settings
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.pruning import KEPT_OF_60, kept_nodes
from longgraft.engine.repetition import loops
from longgraft.engine.session import Session, answer
from longgraft.eval.prompts.example import Example
from longgraft.methods.assembly import Loaded
from longgraft.methods.building import drafter, retriever
from longgraft.methods.calibration import Calibration, default_path, made_for
from longgraft.methods.find import as_method, find
from longgraft.methods.parts import Parts
from longgraft.protocol.observation import Wants
from longgraft.protocol.proposer import Ask, memories_of
from longgraft.protocol.pruning import Level, Verdict
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER
from longgraft.target_model.passes import Segment
from longgraft.target_model.verifier import Verifier
from longgraft.trees.padded import on_host
from longgraft.trees.tree import UNPRUNED, ProposalTree

SPLITS = (50, 40, 24)  # nodes kept of 60 by a fixed split, which leaves 10, 20 or 36 to retrieval
QUANTILES = 12  # candidate thresholds per gate
Prompt = tuple[Sequence[int], Sequence[int]]  # (ids, ids to replay; empty: the target's own draws)


@dataclass
class _Step:
    """One dense step."""

    position: int  # position of the root
    confidence: list[float]  # c_d of each level
    # By gate (UNPRUNED: no gate), the tree that would have been verified; dropped once the answer is known.
    stages: dict[int, ProposalTree]
    splits: dict[int, ProposalTree]  # the same by nodes kept of 60
    # How many tokens of the answer each of `stages` accepts; set once the answer is known.
    accepted: dict[int, int] = field(default_factory=dict)
    accepted_split: dict[int, int] = field(default_factory=dict)  # the same of `splits`


class _Recorder:
    """A pruning policy that never prunes and records each level's confidence."""

    def __init__(self) -> None:
        self.confidence: list[float] = []

    def __call__(self, level: Level) -> Verdict:
        self.confidence.append(float(level.scores.max().exp()))
        return Verdict()


class _Warmup:
    """A proposer whose dense EAGLE-3 tree is verified; it records the trees that Graft's stages would have made."""

    def __init__(self, parts: Parts) -> None:
        self.policy = _Recorder()
        self.drafter = drafter(parts, self.policy)
        self.retriever = retriever(parts)
        self.memories = memories_of([self.drafter, self.retriever])
        self.steps: list[_Step] = []

    def propose(self, ask: Ask) -> ProposalTree:
        self.policy.confidence = []
        dense = on_host(self.drafter.propose(ask))
        if self.policy.confidence:
            stages = {UNPRUNED: dense}
            for gate in KEPT_OF_60:
                stages[gate] = self._stage(ask, gate)
            splits = {}
            for split in SPLITS:
                splits[split] = self._graft(ask, dense.top(kept_nodes(ask.budget, split)))
            self.steps.append(_Step(ask.position, self.policy.confidence, stages, splits))
        return dense

    def _stage(self, ask: Ask, depth: int) -> ProposalTree:
        """Returns the tree that gate `depth` would have made: the best of its levels, and retrieved nodes."""
        nodes = kept_nodes(ask.budget, KEPT_OF_60[depth])
        whole = self.drafter
        levels = min(depth + 1, whole.levels)  # the last level of a shallow tree stands for deeper gates
        short = Eagle3Drafter(whole.memory, lambda level: Verdict(nodes - 1), levels, whole.top_k)
        return self._graft(ask, on_host(short.propose(ask)))

    def _graft(self, ask: Ask, drafted: ProposalTree) -> ProposalTree:
        retrieved = on_host(self.retriever.candidates(ask.root, ask.budget - len(drafted)))
        return drafted.merge(retrieved, at=0, budget=ask.budget)


def prompt_of(example: Example, session: Session, ids: Sequence[int] | None = None) -> Prompt:
    """Returns (prompt ids, ids of the replayed answer).  ids: prompt ids, if the example was cut to a length."""
    recorded = session.tokenizer(example.recording, add_special_tokens=False)["input_ids"]
    return session.encode(ids or example.encode(session.tokenizer)), recorded


@dataclass(frozen=True)
class WarmupSettings:
    """Settings of a calibration: how it answers its warm-up prompts and chooses thresholds."""

    max_new_tokens: int  # most tokens of an answer
    temperature: float  # temperature of the answers that are not replayed
    budget: Budget = None  # nodes per verification; None: as many as a session would use
    draft_cost: float | None = None  # cost of one drafted level, in verifications; None: measured
    keep: bool = False  # True to only choose thresholds that accept at least as much as the dense tree does


def calibrate(loaded: Loaded, prompts: Sequence[Prompt], how: WarmupSettings, out: Path | None) -> Path:
    """Runs the prompts, chooses thresholds on half of them, reports on the other half, and writes the file."""
    from tqdm import tqdm

    # Matrix rows are kept after each answer, because the warm-up must fill them.  Regions are eager, because the host
    # reads the drafts.
    parts = loaded.parts
    bounds = find(PAPERS, loaded.method.bounds).choices
    warmup = _Warmup(
        replace(
            parts,
            choices=bounds,
            persist=True,
            kept={},
            regions=EAGER,
            calibration=replace(parts.calibration, snapshot=None),
        )
    )
    session = replace(loaded, method=as_method(warmup, "warm-up")).session(Settings(budget=how.budget))
    nodes = session.engine.budget
    halves: tuple[list[_Step], list[_Step]] = ([], [])
    looping = 0
    for index, (ids, recorded) in enumerate(tqdm(prompts, desc="warm-up", unit="prompt", disable=None)):
        warmup.steps = []
        replay = recorded[: how.max_new_tokens]
        if replay:
            sampling = Sampling(replay=replay)
        elif how.temperature:
            sampling = Sampling(how.temperature, seed=index)
        else:
            sampling = Sampling()
        decoded = answer(session.open(ids, len(replay) or how.max_new_tokens, sampling)).token_ids
        _replay(warmup.steps, [*ids, *decoded])
        # In a loop every guess is right, and every gate looks useless, so such answers only fill the matrix.
        looped = not replay and loops(decoded)
        looping += looped
        if not looped:
            halves[index % 2].extend(warmup.steps)
    chosen, unseen = halves
    if not (chosen and unseen):  # one half has all steps: nothing is left to report on but itself
        chosen = unseen = halves[0] + halves[1]
    if not chosen:
        raise ValueError(
            f"The warm-up gave no step to learn from: of {len(prompts)} answers {looping} repeat "
            "themselves, the others ended at once. Give other prompts, or --temperature 1."
        )
    costs = _costs(loaded, warmup, nodes) if how.draft_cost is None else (how.draft_cost, 1.0)
    thresholds, gain = choose(chosen, costs, how.keep)
    split = max(SPLITS, key=lambda k: sum(step.accepted_split[k] for step in chosen + unseen))
    about = {
        "prompts": str(len(prompts)),
        "looping": str(looping),
        "steps": str(len(chosen)),
        **made_for(nodes, bounds),
        "temperature": f"{how.temperature:g}",
        "date": time.strftime("%Y-%m-%d"),
        "draft_cost": f"{costs[0] / costs[1]:.3f}",
        "gain_on_chosen_half": f"{gain:.3f}",
        "gain_on_other_half": f"{_gain(unseen, thresholds, costs):.3f}",
        "acceptance_on_other_half": f"{_gain(unseen, thresholds, (0.0, 1.0)):.3f}",
    }
    result = Calibration(thresholds, split, warmup.retriever.matrix.snapshot(), "calibrated", about)
    path = out or default_path(loaded.identity)
    result.save(path, loaded.identity)
    print(
        f"longgraft: {result.describe()}, split {split}; " + ", ".join(f"{k} {v}" for k, v in about.items()),
        file=sys.stderr,
    )
    return path


def choose(steps: Sequence[_Step], costs: tuple[float, float], keep: bool = False) -> tuple[dict[int, float], float]:
    """Returns the thresholds with the most tokens per second over the logged steps, and their gain.

    Every combination of quantiles is tried.  keep: only combinations whose tokens per step are at least the dense
    tree's; pruning nothing is one of them
    """
    grid = {}
    for gate in KEPT_OF_60:
        confidence = [step.confidence[gate] for step in steps if gate < len(step.confidence)]
        grid[gate] = [0.0, *np.quantile(confidence, np.linspace(0.05, 0.95, QUANTILES)).tolist()]
    every = [dict(zip(grid, taus, strict=True)) for taus in itertools.product(*grid.values())]
    if keep:
        every = [taus for taus in every if _gain(steps, taus, (0.0, 1.0)) >= 1]
    best = max(every, key=lambda taus: _gain(steps, taus, costs))
    return {d: round(tau, 4) for d, tau in best.items()}, _gain(steps, best, costs)


def stage_of(step: _Step, thresholds: Mapping[int, float]) -> int:
    """Returns the gate at which these thresholds would have stopped the step, or UNPRUNED."""
    for depth, tau in sorted(thresholds.items()):
        if tau > 0 and depth < len(step.confidence) and not step.confidence[depth] > tau:
            return depth
    return UNPRUNED


def _gain(steps: Sequence[_Step], thresholds: Mapping[int, float], costs: tuple[float, float]) -> float:
    """Returns the tokens per second under the thresholds, relative to those of the dense tree."""
    draft, verify = costs

    def speed(stages: list[int]) -> float:
        tokens = sum(step.accepted[stage] + 1 for step, stage in zip(steps, stages, strict=True))
        levels = (
            len(step.confidence) if stage == UNPRUNED else stage + 1 for step, stage in zip(steps, stages, strict=True)
        )
        return tokens / sum(count * draft + verify for count in levels)

    return speed([stage_of(step, thresholds) for step in steps]) / speed([UNPRUNED] * len(steps))


def accepted(tree: ProposalTree, rest: Sequence[int]) -> int:
    """Returns how many tokens of `rest` lie on a path of the tree from its root."""
    node = 0
    for depth, token in enumerate(rest):
        if (node, token) not in tree.children:
            return depth
        node = tree.children[node, token]
    return len(rest)


def _replay(steps: Sequence[_Step], text: Sequence[int]) -> None:
    """Counts how much of the text, prompt and answer, each tree would have accepted; the text depends on no tree."""
    for step in steps:
        rest = text[step.position + 1 :]
        step.accepted = {stage: accepted(tree, rest) for stage, tree in step.stages.items()}
        step.accepted_split = {kept: accepted(tree, rest) for kept, tree in step.splits.items()}
        step.stages = {}
        step.splits = {}


def _costs(loaded: Loaded, warmup: _Warmup, budget: int) -> tuple[float, float]:
    """Measures the median seconds of one draft forward and of one verification of a whole tree."""
    target = loaded.target
    wants = Wants.union(memory.wants for memory in warmup.memories)
    tree = ProposalTree.chain(torch.arange(budget) % target.vocab_size)
    cache = target.cache(budget * 2)
    for memory in warmup.memories:
        memory.reset(budget)
    observation = Verifier(target, cache, Greedy(), Clock()).read(tree.tokens[:1], wants)
    warmup.drafter.memory.observe(observation)

    def median(action: Callable[[], object], times: int = 7) -> float:
        seconds = []
        for _ in range(times):
            began = time.perf_counter()
            action()
            if target.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        return float(np.median(seconds))

    verify = median(lambda: target.run([Segment(tree, cache)], wants))
    dense = median(lambda: warmup.drafter.propose(Ask(0, budget, 1)))
    return dense / warmup.drafter.levels, verify

"""Warm-up: dense drafting on a few prompts fills the matrix and logs what every gate would have seen.

Knows sessions and proposers.  The paper's warm-up: arXiv 2605.20104, section 3.3.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from longgraft.calibration import Calibration, default_path
from longgraft.drafters.eagle3 import LEVELS, Eagle3Drafter
from longgraft.drafters.policies import KEPT_OF_60, kept_nodes
from longgraft.eval.loops import loops
from longgraft.eval.prompts.suites import Example
from longgraft.loading import identity_of
from longgraft.methods import Parts
from longgraft.observation import Clock, Level, Observation, Verdict
from longgraft.retrievers.matrix import MatrixRetriever
from longgraft.session import Sampling, Session, Stats
from longgraft.tree import ProposalTree

SPLITS = (50, 40, 24)       # nodes kept of 60 by a fixed split: 10, 20 or 36 retrieved
QUANTILES = 12              # candidate thresholds per gate
Prompt = tuple[Sequence[int], Sequence[int]]    # ids, and those to replay; none: the target's own draws


@dataclass
class _Step:
    """One dense step.  position: index of the root in the output; confidence: c_d per level; trees: what each
    stage would have verified."""

    position: int
    confidence: list[float]
    trees: dict[str, ProposalTree]
    accepted: dict[str, int] = field(default_factory=dict)


class _Recorder:
    """A policy that never prunes and remembers each level's confidence."""

    def __init__(self) -> None:
        self.confidence: list[float] = []

    def __call__(self, level: Level) -> Verdict:
        self.confidence.append(float(level.scores.max().exp()))
        return Verdict()


class _Warmup:
    """EAGLE-3's dense tree is verified; the trees that Graft's stages would have made are kept beside it."""

    def __init__(self, session: Session, clock: Clock) -> None:
        parts = Parts(session.target, session.parts.network, persist=True, clock=clock)
        self.policy = _Recorder()
        self.drafter: Eagle3Drafter = parts.drafter(self.policy)
        self.retriever: MatrixRetriever = parts.retriever()
        self.wants = self.drafter.wants | self.retriever.wants
        self.steps: list[_Step] = []
        self.seen = 0

    def reset(self, capacity: int) -> None:
        self.drafter.reset(capacity)
        self.retriever.reset(capacity)
        self.seen = 0

    def observe(self, seen: Observation) -> None:
        self.drafter.observe(seen)
        self.retriever.observe(seen)
        self.seen += 0 if seen.prompt else len(seen.path)

    def propose(self, root: int, budget: int) -> ProposalTree:
        self.policy.confidence = []
        dense = self.drafter.propose(root, budget)
        if self.policy.confidence:
            trees = {"none": dense} | {f"d{d}": self._stage(root, d, budget) for d in KEPT_OF_60}
            trees |= {f"split{k}": self._graft(root, dense.top(kept_nodes(budget, k)), budget) for k in SPLITS}
            self.steps.append(_Step(self.seen, self.policy.confidence, trees))
        return dense

    def _stage(self, root: int, depth: int, budget: int) -> ProposalTree:
        """The tree that gate `depth` would have made: the best of its levels, and retrieved nodes."""
        kept = kept_nodes(budget, KEPT_OF_60[depth])
        short = Eagle3Drafter(self.drafter.network, lambda level: Verdict(kept - 1), depth + 1, self.drafter.top_k)
        short.cache, short.state = self.drafter.cache, self.drafter.state
        return self._graft(root, short.propose(root, budget), budget)

    def _graft(self, root: int, drafted: ProposalTree, budget: int) -> ProposalTree:
        return drafted.merge(self.retriever.candidates(root, budget - len(drafted)), at=0, budget=budget)


def prompt_of(example: Example, session: Session, ids: Sequence[int] | None = None) -> Prompt:
    """What is fed and what is replayed; ids: of an example that was cut to a length."""
    said = session.tokenizer(example.recording, add_special_tokens=False)["input_ids"]
    return session.encode(ids or example.encode(session.tokenizer)), said


def calibrate(session: Session, prompts: Sequence[Prompt], max_new_tokens: int, temperature: float,
              out: Path | None, draft_cost: float | None = None, keep: bool = False,
              budget: int | None = None) -> Path:
    """Run the prompts, choose thresholds on half of them, report the other half, write the file.

    draft_cost: of one drafted level, in verifications; None: measured here and now
    keep:       only thresholds that accept no less than the dense tree does
    budget:     nodes per verification; None: the session's
    """
    from tqdm import tqdm

    clock, budget = Clock(), budget or session.budget
    warmup = _Warmup(session, clock)
    recorder = Session(session.target, session.tokenizer, warmup, clock, budget, session.limits, session.chunk)
    halves: tuple[list[_Step], list[_Step]] = ([], [])
    looping = 0
    for index, (ids, said) in enumerate(tqdm(prompts, desc="warm-up", unit="prompt")):
        warmup.steps = []
        recording = said[:max_new_tokens]
        sampling = Sampling(replay=recording) if recording else Sampling(temperature, seed=index)
        output = [t for new in recorder.tokens(ids, Stats(), len(recording) or max_new_tokens, sampling) for t in new]
        _replay(warmup.steps, output)
        # In a loop every guess is right, and every gate looks useless: such answers only fill the matrix.
        looped = not recording and loops(output)
        looping += looped
        if not looped:
            halves[index % 2].extend(warmup.steps)
    chosen, unseen = halves if all(halves) else (halves[0] + halves[1],) * 2
    if not chosen:
        raise ValueError(f"The warm-up gave no step to learn from: of {len(prompts)} answers {looping} repeat "
                         "themselves, the others ended at once. Give other prompts, or --temperature 1.")
    costs = _costs(session, warmup, budget) if draft_cost is None else (draft_cost, 1.0)
    thresholds, gain = choose(chosen, costs, keep)
    split = max(SPLITS, key=lambda k: sum(step.accepted[f"split{k}"] for step in chosen + unseen))
    about = {"prompts": str(len(prompts)), "looping": str(looping), "steps": str(len(chosen)),
             "budget": str(budget), "temperature": f"{temperature:g}",
             "date": time.strftime("%Y-%m-%d"), "draft_cost": f"{costs[0] / costs[1]:.3f}",
             "gain_on_chosen_half": f"{gain:.3f}",
             "gain_on_other_half": f"{_gain(unseen, thresholds, costs):.3f}",
             "acceptance_on_other_half": f"{_gain(unseen, thresholds, (0.0, 1.0)):.3f}"}
    result = Calibration(thresholds, split, warmup.retriever.matrix.snapshot(), "calibrated", about)
    identity = identity_of(session.target, session.tokenizer, session.parts.network)
    path = out or default_path(identity)
    result.save(path, identity)
    print(f"longgraft: {result.describe()}, split {split}; " + ", ".join(f"{k} {v}" for k, v in about.items()),
          file=sys.stderr)
    return path


def choose(steps: Sequence[_Step], costs: tuple[float, float],
           keep: bool = False) -> tuple[dict[int, float], float]:
    """Thresholds that maximise tokens per second over the logged steps: every combination of quantiles.

    keep: of those whose tokens per step are at least the dense tree's; to prune nothing is one of them
    """
    grid = {d: [0.0, *np.quantile([s.confidence[d] for s in steps if d < len(s.confidence)],
                                  np.linspace(0.05, 0.95, QUANTILES)).tolist()] for d in KEPT_OF_60}
    every = [dict(zip(grid, taus, strict=True)) for taus in itertools.product(*grid.values())]
    if keep:
        every = [taus for taus in every if _gain(steps, taus, (0.0, 1.0)) >= 1]
    best = max(every, key=lambda taus: _gain(steps, taus, costs))
    return {d: round(tau, 4) for d, tau in best.items()}, _gain(steps, best, costs)


def stage_of(step: _Step, thresholds: Mapping[int, float]) -> str:
    """Where these thresholds would have stopped the step."""
    for depth, tau in sorted(thresholds.items()):
        if tau > 0 and depth < len(step.confidence) and not step.confidence[depth] > tau:
            return f"d{depth}"
    return "none"


def _gain(steps: Sequence[_Step], thresholds: Mapping[int, float], costs: tuple[float, float]) -> float:
    """Tokens per second under the thresholds over tokens per second of the dense tree."""
    draft, verify = costs

    def speed(stages: list[str]) -> float:
        tokens = sum(step.accepted[stage] + 1 for step, stage in zip(steps, stages, strict=True))
        return tokens / sum((LEVELS if stage == "none" else int(stage[1:]) + 1) * draft + verify for stage in stages)

    return speed([stage_of(step, thresholds) for step in steps]) / speed(["none"] * len(steps))


def _replay(steps: Sequence[_Step], output: Sequence[int]) -> None:
    """How much of each tree the output that followed would have accepted: it does not depend on the tree."""
    for step in steps:
        rest = output[step.position + 1:]
        for name, tree in step.trees.items():
            node, depth = 0, 0
            while depth < len(rest) and (node, rest[depth]) in tree.children:
                node, depth = tree.children[node, rest[depth]], depth + 1
            step.accepted[name] = depth
        step.trees = {}


def _costs(session: Session, warmup: _Warmup, budget: int) -> tuple[float, float]:
    """Median seconds of one draft forward and of one verification of a whole tree, measured here and now."""
    tree = ProposalTree.chain(torch.arange(budget) % session.target.vocab_size)
    cache = session.target.cache(budget * 2)

    def median(action: object, times: int = 7) -> float:
        seconds = []
        for _ in range(times):
            began = time.perf_counter()
            action()        # type: ignore[operator]
            if session.target.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        return float(np.median(seconds))

    verify = median(lambda: session.target.run(tree, cache, warmup.wants))
    dense = median(lambda: warmup.drafter.propose(0, budget))
    return dense / LEVELS, verify

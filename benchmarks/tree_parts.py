"""Parts that make and judge trees without a network: retrieval, merge and acceptance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks import floors
from benchmarks.bench import Bench
from benchmarks.machine import Work
from benchmarks.network_parts import BUDGET, ROWS
from benchmarks.report import Row
from benchmarks.rig import two_chains
from longgraft.acceptance.draws_on_gpu import rule_for
from longgraft.acceptance.rules import DrawThenWalk, Greedy, Sampled
from longgraft.memories.adjacency import WIDTH
from longgraft.target_model.pass_geometry import accepted, geometry
from longgraft.trees.padded import PaddedTree, Tree, on_host, size_of
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT, ProposalTree

SLOTS = (8, 20, 36, 52)  # numbers of slots that the drafter leaves free for retrieved nodes
AFTER = 4096  # tokens before the tree whose acceptance is timed
RULES: dict[str, DrawThenWalk] = {
    "greedy": Greedy(),
    "sampled": Sampled(seed=1),
    "top-k 50": Sampled(top_k=50, seed=1),
    "top-p 0.95": Sampled(top_p=0.95, seed=1),
}


def retrieval(bench: Bench) -> Iterator[Row]:
    """Looking up a tree in the matrix, and updating the matrix with a verified tree."""
    rig = bench.rig
    vocab = rig.target.vocab_size
    device = rig.target.device
    spent = bench.race({slots: partial(rig.retriever.candidates, 1, slots) for slots in SLOTS})
    for slots, seconds in spent.items():
        yield bench.row(f"retrieval, {slots} slots", bench.which, seconds, Work(4.0 * WIDTH * slots), slots=slots)
    for n in ROWS:
        tokens = torch.randint(vocab, (n,), device=device)
        topk = torch.randint(vocab, (n, WIDTH), device=device).int()
        write = partial(rig.rows.matrix.update, tokens, topk)
        with torch.inference_mode():
            seconds = bench.race({"": partial(rig.regions, ("update", n), write)})[""]
        yield bench.row(f"update, {n} rows", bench.which, seconds, Work(2 * 4.0 * WIDTH * n), rows=n)


def merge(bench: Bench) -> Iterator[Row]:
    """Filling the free slots of a drafted tree with retrieved nodes."""
    for slots in SLOTS:
        merged = _merger(bench, slots)
        with torch.inference_mode():
            seconds = bench.race({"": merged})[""]
            both = on_host(merged())
        retrieved = int((both.origin & RETRIEVED).bool().sum())
        figures = {"slots": slots, "retrieved": retrieved}
        work = Work(8.0 * BUDGET)
        yield bench.row(f"merge, {slots} slots", bench.which, seconds, work, f"{len(both)} nodes", **figures)


def _merger(bench: Bench, slots: int) -> Callable[[], Tree]:
    """Returns the merge of a drafted tree and a retrieved one, in a region if the retrieved one is padded."""
    rig = bench.rig
    found = rig.retriever.candidates(1, slots)
    drafted = _drafted(bench, slots)
    if not isinstance(found, PaddedTree):
        return partial(drafted.merge, found, 0, BUDGET)
    padded = PaddedTree.of(drafted, size_of(len(drafted)), rig.target.device)
    retrieved = found

    def merged() -> Tree:
        return padded.first(len(padded), size_of(BUDGET)).merge(replace(retrieved), at=0, budget=BUDGET)

    return lambda: rig.regions(("merge", slots), merged)


def _drafted(bench: Bench, slots: int) -> ProposalTree:
    """Returns a tree with this many free slots and half of the retrieved nodes, so that the merge skips some."""
    found = on_host(bench.rig.retriever.candidates(1, slots))
    kept = BUDGET - slots
    tokens = [1, *found.tokens[1 : 1 + min(kept - 1, len(found) // 2)].tolist()]
    tokens += list(range(1, kept - len(tokens) + 1))
    children = len(tokens) - 1
    return ProposalTree.build(tokens, [-1] + [0] * children, [0.0] * len(tokens), [ROOT] + [DRAFT] * children)


def acceptance(bench: Bench) -> Iterator[Row]:
    """Times the way from logits to the accepted path, greedy and sampled."""
    target = bench.rig.target
    fixed = bench.rig.regions.fixed
    rules = dict(RULES)
    for name, rule in RULES.items():
        drawn = rule_for(rule, target.device)
        if drawn is not rule:
            rules[f"{name}, one launch"] = drawn
    for n in (1, 16, BUDGET):
        padded = size_of(n) if fixed else n
        logits = torch.randn(padded, target.vocab_size, device=target.device, dtype=target.dtype) * 3
        tree = two_chains(n)
        actions: dict[str, Callable[[], object]] = {}
        for name, rule in rules.items():
            if fixed:
                actions[name] = partial(_walk_in_region, bench, rule, tree, logits)
            else:
                actions[name] = partial(rule, tree, logits, AFTER + tree.depths)
        # A CPU draws only at nodes that it reaches, and of random logits it accepts only the root.
        read = padded if fixed or target.device.type != "cpu" else 1
        work = floors.reading(read, target.vocab_size, logits.itemsize)
        with torch.inference_mode():
            spent = bench.race(actions)
        for name, seconds in spent.items():
            yield bench.row(f"acceptance, {n} rows", f"{bench.which} {name}", seconds, work, rows=n, rule=name)


def _walk_in_region(bench: Bench, rule: DrawThenWalk, tree: ProposalTree, logits: Tensor) -> object:
    """Draws and walks in a region, like a pass of fixed shape.  logits: [m, V], of the padded tree"""
    regions = bench.rig.regions
    n = len(tree)
    rows = len(logits)
    numbers = torch.tensor([0, rows, 0, AFTER, AFTER])  # one slot

    def packed() -> Tensor:
        return torch.cat([PaddedTree.pack(tree, rows).flatten(), numbers]).to(logits.device)

    inputs = regions.kept(("inputs", n), packed)
    given = regions.kept(("geometry", n), lambda: geometry(inputs, 1))
    keys = rule.keys(given.places[2])
    fixed = regions.kept(("keys", n, keys.ndim), lambda: torch.zeros_like(keys))
    fixed.copy_(keys)
    kernels = bench.rig.target.fused_kernels
    walk = accepted if kernels is None else kernels.accepted
    return regions(("walk", n, rule.law), lambda: walk(inputs, given.words, rule.choose(logits, fixed), 1))

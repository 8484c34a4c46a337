"""Every part of a decoding step and of a prefill, timed on its own against its floor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks import floors
from benchmarks.machine import Machine, Work, race, rates, wait
from benchmarks.report import Row
from benchmarks.shapes import BEHIND, Rig, two_chains
from benchmarks.texts import numbered
from longgraft.acceptance.draws_on_gpu import rule_for
from longgraft.acceptance.rules import DrawThenWalk, Greedy, Sampled
from longgraft.budget.cost_measurement import key_of
from longgraft.budget.cost_model import Costs
from longgraft.engine.pool_size import fitting_rows
from longgraft.memories.adjacency import WIDTH
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.observation import Wants
from longgraft.runtime.device_memory import free_bytes
from longgraft.target_model.pass_geometry import accepted, geometry
from longgraft.trees.padded import PaddedTree, Tree, on_host, size_of
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT, ProposalTree

ROWS = (1, 8, 16, 32, 64)
REQUESTS = (1, 4, 8, 16)
DEEP = 9  # levels of the timed draft, including the root's
FED = (1, 16)  # numbers of observed tokens that are fed
STEP_FED = 4  # observed tokens that a whole step feeds: about as many as a good head has accepted
SLOTS = (8, 20, 36, 52)  # numbers of slots that the drafter leaves free for retrieved nodes
BUDGET = 60
NEW = 16  # tokens of transformers' generate
CHUNKS = (1024, 2048, 8192)  # tokens of a prefill chunk
PROFILED = 20  # runs in which kernels are counted and timed
KERNELS = 14  # kernels that are listed, the slowest first
KERNEL_NAME = 60  # characters of a kernel's name
RULES: dict[str, DrawThenWalk] = {
    "greedy": Greedy(),
    "sampled": Sampled(seed=1),
    "top-k 50": Sampled(top_k=50, seed=1),
    "top-p 0.95": Sampled(top_p=0.95, seed=1),
}


@dataclass(frozen=True)
class Bench:
    """The rig that is timed, and settings.  prefixes: lengths in tokens; patience: seconds for each measurement"""

    rig: Rig
    machine: Machine
    prefixes: Sequence[int]
    patience: float = 0.3
    mode: str = "eager"

    @property
    def name(self) -> str:
        return self.rig.target.name

    @property
    def which(self) -> str:
        """The name of the model and its mode."""
        return f"{self.name} {self.mode}"

    def race(self, actions: dict[str, Callable[[], object]]) -> dict[str, float]:
        return race(actions, self.machine.device, self.patience)

    def row(self, part: str, case: str, seconds: float, work: Work, note: str = "", **figures: object) -> Row:
        """Returns a row of this model, with the floor of the work."""
        floor, bound = self.machine.floor(work)
        return Row(part, case, seconds, floor, bound, note, figures={"model": self.name, "mode": self.mode, **figures})


def rows(bench: Bench) -> Iterator[Row]:
    """A target pass over 1 to 64 rows, including draw, walk and commit."""
    rig = bench.rig
    for prefix in bench.prefixes:
        spent = bench.race({str(n): partial(rig.verify, two_chains(n), prefix) for n in ROWS})
        for n in ROWS:
            work = floors.target_pass(rig.target, prefix, n)
            yield bench.row(
                f"pass, {n} rows",
                f"{bench.which} {prefix:,}",
                spent[str(n)],
                work,
                f"{spent[str(n)] / spent['1']:.2f} of one row, {rates(work, spent[str(n)])}",
                table="passes",
                prefix=prefix,
                rows=n,
            )


def requests(bench: Bench) -> Iterator[Row]:
    """A plain step of several requests in one pass, each after a prefix of its own; as many as memory holds."""
    rig = bench.rig
    target = rig.target
    for prefix in bench.prefixes:
        rows = fitting_rows(free_bytes(target.device), target.cache_bytes_per_token())
        counts = [count for count in REQUESTS if count * (prefix + BEHIND) <= rows]
        step = rig.requests(max(counts, default=1), prefix)
        spent = bench.race({str(count): partial(step, count) for count in counts})
        for count in counts:
            seconds = spent[str(count)]
            yield bench.row(
                f"requests, {count}",
                f"{bench.which} {prefix:,}",
                seconds,
                floors.requests(target, prefix, count),
                f"{count / seconds:,.0f} tokens/s, {count * spent['1'] / seconds:.2f} times one request",
                prefix=prefix,
                requests=count,
            )


def draft(bench: Bench) -> Iterator[Row]:
    """A draft level of ten nodes, and a feed of observed tokens into the drafter's cache."""
    rig, network = bench.rig, bench.rig.network
    deep, flat = rig.drafter(DEEP), rig.drafter(1)
    for prefix in bench.prefixes:
        spent = bench.race(
            {
                "deep": partial(rig.draft, deep, prefix),
                "flat": partial(rig.draft, flat, prefix),
                **{str(fed): partial(rig.draft, flat, prefix, fed) for fed in FED},
            }
        )
        width = deep.top_k
        level = max(0.0, spent["deep"] - spent["flat"]) / (DEEP - 1)
        yield bench.row(
            "draft level",
            f"{bench.which} {prefix:,}",
            level,
            floors.draft_level(network, prefix, width),
            f"{width} nodes, mean of {DEEP - 1}",
            table="levels",
            prefix=prefix,
            rows=width,
        )
        for fed in FED:
            yield bench.row(
                f"draft feed, {fed}",
                f"{bench.which} {prefix:,}",
                spent[str(fed)],
                floors.draft_feed(network, prefix, fed),
                "and the root's candidates",
                table="feeds",
                prefix=prefix,
                rows=fed,
            )


def step(bench: Bench) -> Iterator[Row]:
    """A whole step of eagle3, with the host's time: feed, draft, and verify a tree of 60; beside a plain step.

    The ratio is the number of tokens per step from which on the drafter pays.
    """
    rig = bench.rig
    deep = rig.drafter(DEEP)
    for prefix in bench.prefixes:

        def drafted(prefix: int = prefix) -> None:
            proposal = rig.draft(deep, prefix, STEP_FED)
            rig.verify(proposal, prefix + STEP_FED)

        spent = bench.race({"plain": partial(rig.verify, ProposalTree.root_only(0), prefix), "drafted": drafted})
        plain = floors.target_pass(rig.target, prefix, 1)
        case = f"{bench.which} {prefix:,}"
        yield bench.row("plain step", case, spent["plain"], plain, rates(plain, spent["plain"]), prefix=prefix)
        level = floors.draft_level(rig.network, prefix, deep.top_k)
        parts = [floors.target_pass(rig.target, prefix, BUDGET), floors.draft_feed(rig.network, prefix, STEP_FED)]
        parts += [level] * (DEEP - 1)
        work = Work(sum(part.bytes for part in parts), sum(part.operations for part in parts))
        ratio = spent["drafted"] / spent["plain"]
        yield bench.row(
            "drafted step",
            case,
            spent["drafted"],
            work,
            f"{ratio:.2f} of a plain step",
            prefix=prefix,
            ratio=ratio,
            levels=DEEP,
            fed=STEP_FED,
        )


def seeding(bench: Bench) -> Iterator[Row]:
    """A prompt read with and without seeding the matrix."""
    rig, target = bench.rig, bench.rig.target
    for tokens in bench.prefixes:
        prompt = torch.tensor(numbered(tokens, target.vocab_size))

        def read(wants: Wants, prompt: Tensor = prompt) -> None:
            rig.verifier.cache.length = 0
            for seen in read_prompt(rig.verifier, prompt, wants):
                if wants.topk:
                    rig.rows.observe(seen)

        spent = race(
            {"seeded": partial(read, Wants(topk=WIDTH)), "plain": partial(read, Wants())},
            bench.machine.device,
            0.0,
            least=3,
        )
        distinct = len(set(prompt.tolist()))
        share = spent["seeded"] / spent["plain"] - 1
        yield bench.row(
            "prefill",
            f"{bench.name} {tokens:,}",
            spent["plain"],
            floors.prefill(target, tokens),
            f"{tokens / spent['plain']:,.0f} tokens/s",
            prefix=tokens,
        )
        yield bench.row(
            "seeding",
            f"{bench.name} {tokens:,}",
            max(0.0, spent["seeded"] - spent["plain"]),
            floors.seeding(target, distinct),
            f"{100 * share:.1f} % of the prefill; {distinct:,} distinct",
            prefix=tokens,
            distinct=distinct,
            share=share,
        )


def reading(bench: Bench) -> Iterator[Row]:
    """A prompt read in chunks of different sizes, without seeding."""
    target = bench.rig.target
    for tokens in bench.prefixes:
        prompt = torch.tensor(numbered(tokens, target.vocab_size))

        def read(chunk: int, prompt: Tensor = prompt) -> None:
            bench.rig.verifier.cache.length = 0
            for _ in read_prompt(bench.rig.verifier, prompt, Wants(), chunk):
                pass

        sizes = [size for size in CHUNKS if size <= tokens] or [tokens]
        actions = {str(size): partial(read, size) for size in sizes}
        spent = race(actions, bench.machine.device, 0.0, least=2)
        for size in sizes:
            seconds = spent[str(size)]
            yield bench.row(
                f"prefill, chunks of {size:,}",
                f"{bench.name} {tokens:,}",
                seconds,
                floors.prefill(target, tokens),
                f"{tokens / seconds:,.0f} tokens/s, {1e3 * seconds / math.ceil(tokens / size):.1f} ms a chunk",
                prefix=tokens,
                chunk=size,
            )


def launches(bench: Bench) -> Iterator[Row]:
    """The kernels of a pass of 1 and of 64 rows, and of a draft of all levels: how often each runs, and its time."""
    rig = bench.rig
    prefix = bench.prefixes[0]
    actions: dict[str, Callable[[], object]] = {
        f"pass, {n} rows": partial(rig.verify, two_chains(n), prefix) for n in (1, ROWS[-1])
    }
    actions[f"draft of {DEEP} levels"] = partial(rig.draft, rig.drafter(DEEP), prefix, STEP_FED)
    device = bench.machine.device
    on_gpu = device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    for name, action in actions.items():
        for _ in range(2):
            action()
        with profile(activities=[activity]) as profiled:
            for _ in range(PROFILED):
                action()
            wait(device)
        events = profiled.key_averages()
        seconds = {
            event.key: (event.self_device_time_total if on_gpu else event.self_cpu_time_total) for event in events
        }
        counts = {event.key: event.count / PROFILED for event in events}
        case = f"{bench.which} {prefix:,}"
        total = sum(seconds.values()) / PROFILED / 1e6
        yield Row(name, case, total, note=f"{sum(counts.values()):.0f} launches")
        for kernel in sorted(seconds, key=seconds.__getitem__, reverse=True)[:KERNELS]:
            each = seconds[kernel] / PROFILED / 1e6
            note = f"{counts[kernel]:.1f} launches, {1e6 * each / counts[kernel]:.1f} us each"
            figures = {"launches": counts[kernel]}
            yield Row(f"{name}: {kernel[:KERNEL_NAME]}", case, each, note=note, figures=figures)


def retrieval(bench: Bench) -> Iterator[Row]:
    """Looking up a tree in the matrix, and updating the matrix with a verified tree."""
    rig, vocab = bench.rig, bench.rig.target.vocab_size
    spent = bench.race({str(slots): partial(rig.retriever.candidates, 1, slots) for slots in SLOTS})
    for slots in SLOTS:
        yield bench.row(
            f"retrieval, {slots} slots", bench.which, spent[str(slots)], Work(4.0 * WIDTH * slots), slots=slots
        )
    device = rig.target.device
    for n in ROWS:
        tokens, topk = torch.randint(vocab, (n,), device=device), torch.randint(vocab, (n, WIDTH), device=device).int()
        write = partial(rig.rows.matrix.update, tokens, topk)
        with torch.inference_mode():
            took = bench.race({"": partial(rig.regions, ("update", n), write)})[""]
        yield bench.row(f"update, {n} rows", bench.which, took, Work(2 * 4.0 * WIDTH * n), rows=n)


def merge(bench: Bench) -> Iterator[Row]:
    """Filling the free slots of a drafted tree with retrieved nodes."""
    rig, regions = bench.rig, bench.rig.regions
    for slots in SLOTS:
        found, drafted = rig.retriever.candidates(1, slots), _drafted(bench, slots)
        if isinstance(found, PaddedTree):
            padded = PaddedTree.of(drafted, size_of(len(drafted)), rig.target.device)

            def merged(slots: int = slots, found: PaddedTree = found, padded: PaddedTree = padded) -> Tree:
                return regions(
                    ("merge", slots),
                    lambda: padded.first(len(padded), size_of(BUDGET)).merge(replace(found), at=0, budget=BUDGET),
                )
        else:
            merged = partial(drafted.merge, found, 0, BUDGET)
        with torch.inference_mode():
            took, both = bench.race({"": merged})[""], on_host(merged())
        yield bench.row(
            f"merge, {slots} slots",
            bench.which,
            took,
            Work(8.0 * BUDGET),
            f"{len(both)} nodes",
            slots=slots,
            retrieved=int((both.origin & RETRIEVED).bool().sum()),
        )


def _drafted(bench: Bench, slots: int) -> ProposalTree:
    """Returns a tree with this many free slots and half of the retrieved nodes, so that the merge skips some."""
    found, kept = on_host(bench.rig.retriever.candidates(1, slots)), BUDGET - slots
    tokens = [1, *found.tokens[1 : 1 + min(kept - 1, len(found) // 2)].tolist()]
    tokens += list(range(1, kept - len(tokens) + 1))
    return ProposalTree.build(
        tokens, [-1] + [0] * (len(tokens) - 1), [0.0] * len(tokens), [ROOT] + [DRAFT] * (len(tokens) - 1)
    )


def acceptance(bench: Bench) -> Iterator[Row]:
    """Times the way from logits to the accepted path, greedy and sampled."""
    rig, target = bench.rig, bench.rig.target
    rules = dict(RULES)
    for name, rule in RULES.items():
        drawn = rule_for(rule, target.device)
        if drawn is not rule:
            rules[f"{name}, one launch"] = drawn
    for n in (1, 16, BUDGET):
        padded = size_of(n) if rig.regions.fixed else n
        logits = torch.randn(padded, target.vocab_size, device=target.device, dtype=target.dtype) * 3
        tree = two_chains(n)
        positions = 4096 + tree.depths
        if rig.regions.fixed:
            actions: dict[str, Callable[[], object]] = {
                name: partial(_walk_in_region, bench, rule, tree, logits) for name, rule in rules.items()
            }
        else:
            actions = {name: partial(rule, tree, logits, positions) for name, rule in rules.items()}
        # A CPU draws only at nodes that it reaches, and of random logits it accepts only the root.
        read = padded if rig.regions.fixed or target.device.type != "cpu" else 1
        with torch.inference_mode():
            spent = bench.race(actions)
        for name in rules:
            yield bench.row(
                f"acceptance, {n} rows",
                f"{bench.which} {name}",
                spent[name],
                floors.reading(read, target.vocab_size, logits.itemsize),
                rows=n,
                rule=name,
            )


def _walk_in_region(bench: Bench, rule: DrawThenWalk, tree: ProposalTree, logits: Tensor) -> object:
    """Draws and walks in a region, like a pass of fixed shape.  logits: [m, V], of the padded tree"""
    regions, n, device, rows = bench.rig.regions, len(tree), logits.device, len(logits)
    numbers = torch.tensor([0, rows, 0, 4096, 4096])  # one slot after 4,096 tokens
    inputs = regions.kept(("inputs", n), lambda: torch.cat([PaddedTree.pack(tree, rows).flatten(), numbers]).to(device))
    given = regions.kept(("geometry", n), lambda: geometry(inputs, 1))
    keys = rule.keys(given.places[2])
    fixed = regions.kept(("keys", n, keys.ndim), lambda: torch.zeros_like(keys))
    fixed.copy_(keys)
    kernels = bench.rig.target.fused_kernels
    walk = accepted if kernels is None else kernels.accepted
    return regions(("walk", n, rule.law), lambda: walk(inputs, given.words, rule.choose(logits, fixed), 1))


def peer(bench: Bench) -> Iterator[Row]:
    """transformers' own generate of the same model: one token of plain decoding."""
    model: Any = bench.rig.target.model
    device, vocab = bench.machine.device, bench.rig.target.vocab_size
    for prefix in dict.fromkeys((bench.prefixes[0], bench.prefixes[-1])):
        ids = torch.tensor([numbered(prefix, vocab)], device=device)

        def generate(new: int, ids: Tensor = ids) -> None:
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
            )

        # torch prefers cuDNN on some chips, and cuDNN plans anew for every length.
        for cudnn in (True, False) if device.type == "cuda" else (False,):
            torch.backends.cuda.enable_cudnn_sdp(cudnn)
            try:
                spent = race({"one": partial(generate, 1), "all": partial(generate, 1 + NEW)}, device, 0.0, least=2)
            finally:
                torch.backends.cuda.enable_cudnn_sdp(True)
            yield bench.row(
                "transformers",
                f"{bench.name} {prefix:,}{' cuDNN' if cudnn else ''}",
                max(0.0, spent["all"] - spent["one"]) / NEW,
                floors.target_pass(bench.rig.target, prefix, 1),
                f"mean of {NEW}",
                prefix=prefix,
                rows=1,
                cudnn=cudnn,
            )


ONCE = ("seeding", "peer")  # parts that are the same in every mode
PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "rows": rows,
    "draft": draft,
    "step": step,
    "acceptance": acceptance,
    "retrieval": retrieval,
    "merge": merge,
    "seeding": seeding,
    "peer": peer,
}  # the most important first, because time on a GPU is scarce


def costs(bench: Bench, found: Sequence[Row], source: str) -> Costs | None:
    """Returns this bench's costs for the controller, from its rows; None without passes.

    The host's costs are those of retrieval, merge and update, if they are among the rows.
    """
    tables: dict[str, dict[int, dict[int, float]]] = {"passes": {}, "levels": {}, "feeds": {}}
    for row in found:
        if (table := row.figures.get("table")) and row.seconds is not None:
            tables[table].setdefault(row.figures["prefix"], {})[row.figures["rows"]] = row.seconds
    if not tables["passes"]:
        return None
    besides = (f"retrieval, {SLOTS[1]} slots", f"merge, {SLOTS[1]} slots", f"update, {ROWS[-1]} rows")
    rig, host = bench.rig, sum(row.seconds or 0.0 for row in found if row.part in besides)
    return Costs(key_of(rig.target, rig.network, rig.regions), source, **tables, host=host)

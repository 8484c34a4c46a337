"""Replays recorded answers through methods that propose from text, without a model: a bench of the controller.

    python -m benchmarks.policies build answers.jsonl --data ROWS --rows RUN/per_prompt.jsonl.gz
    python -m benchmarks.policies replay answers.jsonl --machines zen5,xeon

A step's proposal is verified against the recorded answer, and its time comes from a table of costs by prefix and rows.
So hundreds of answers take seconds, and no noise of a machine is in the numbers.  The methods are the shipped ones.
`graft-x` ranks recorded drafts, each of which takes the time of DRAFT_LEVELS levels.  Not in the time: proposing itself
(the column `host` has the processor's time of a step, here), and reading the prompt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from pathlib import Path
from random import Random
from typing import Annotated, Any, Optional

import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.recorded_answers import RecordedAnswer, distinct, of_edits, of_other_models, of_result_rows
from benchmarks.recorded_drafts import RecordedDrafts
from benchmarks.recorded_rows import RecordedRows
from longgraft.budget.controller import Controller
from longgraft.budget.cost_model import Costs, LiveCosts
from longgraft.config.method_syntax import joined, split
from longgraft.eval.statistics import Mean, bootstrap
from longgraft.memories.partial_matching import PartialMatching
from longgraft.methods.find import build as built
from longgraft.methods.find import find
from longgraft.methods.parts import Parts
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask, Proposer
from longgraft.runtime.fingerprint import digest
from longgraft.trees.padded import on_host
from longgraft.trees.tree import ProposalTree

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
PLAIN, ORACLE = "ar", "oracle"
SHORTEST = 8  # tokens of an answer that is replayed
CHUNK = 512  # tokens of a prompt that are observed at once
DRAFT_LEVELS = 9  # levels of a recorded draft


def _costs(source: str, milliseconds: dict[int, dict[int, float]], level: float) -> Costs:
    passes = {prefix: {rows: ms / 1e3 for rows, ms in line.items()} for prefix, line in milliseconds.items()}
    levels = {64: {1: level, 10: 1.3 * level}}
    return Costs({}, source, passes, levels, {64: {1: level, 16: 2.5 * level}}, host=DRAFT_LEVELS * 1.3 * level)


# Milliseconds of a pass by prefix and rows.  The first four are Qwen2.5-Coder 0.5B in the file's blocks on one core.
MACHINES = {
    "zen5": _costs(
        "AMD Zen 5, keys and values in bfloat16, measured",
        {
            64: {1: 18, 8: 23, 16: 40, 60: 135},
            4096: {1: 21, 8: 35, 16: 61, 60: 211},
            16384: {1: 29, 8: 69, 16: 128, 60: 446},
        },
        0.003,
    ),
    "zen4": _costs(
        "AMD Zen 4, measured",
        {64: {1: 27, 2: 28, 8: 65, 16: 112, 60: 318}, 4096: {1: 34, 2: 41, 8: 105, 16: 182, 60: 612}},
        0.004,
    ),
    "zen3": _costs(
        "AMD Zen 3, from the ratios in its tables",
        {64: {1: 37, 2: 41, 8: 110, 16: 185, 60: 420}, 4096: {1: 43, 2: 52, 8: 140, 16: 230, 60: 640}},
        0.006,
    ),
    "xeon": _costs(
        "Xeon (AVX-512 with VNNI) before cheap rows, measured",
        {
            64: {1: 47, 8: 73, 16: 160, 60: 594},
            4096: {1: 53, 8: 144, 16: 224, 60: 946},
            16384: {1: 86, 8: 239, 16: 589, 60: 2615},
        },
        0.006,
    ),
    "amx": _costs(
        "Xeon with cheap rows, a goal",
        {
            64: {1: 47, 8: 55, 16: 70, 60: 140},
            4096: {1: 53, 8: 70, 16: 100, 60: 250},
            16384: {1: 86, 8: 120, 16: 172, 60: 430},
        },
        0.006,
    ),
    "gpu": _costs(
        "a GPU by arithmetic: 64 rows cost 5 % more than one", {64: {1: 20, 64: 21}, 16384: {1: 24, 64: 25.2}}, 0.001
    ),
    "h100": _costs(
        "Llama-3.1-8B on an H100, measured",
        {
            4096: {1: 8.36, 8: 8.57, 16: 8.75, 32: 8.88, 64: 9.26},
            32768: {1: 9.15, 8: 9.43, 16: 9.54, 32: 9.65, 64: 10.73},
        },
        0.0006,
    ),
}


@dataclass
class Replayed:
    """One answer replayed by one method.

    Attributes:
        answer: The answer.
        seconds: By the table of costs, of decoding.
        plain: The same of plain decoding.
        steps: Number of steps.
        rows: Number of verified rows.
        host: Seconds of the processor that the method itself took.
    """

    answer: RecordedAnswer
    seconds: float = 0.0
    plain: float = 0.0
    steps: int = 0
    rows: int = 0
    host: float = 0.0

    @property
    def speedup(self) -> float:
        return self.plain / self.seconds


@dataclass(frozen=True)
class Bench:
    """A machine's costs, and the methods as they decide by them.

    Attributes:
        costs: Seconds of passes.
        rows: What the target predicted around an answer.
        drafts: What a drafter proposed for it.
        noise: Standard deviation of the logarithm of measured costs.  0: the method knows the costs, and they are
            frozen.  Otherwise each of its costs was measured once, so that it is too high by chance, and the method may
            correct it by the times of its steps, which have half of that noise.
    """

    costs: Costs
    noise: float = 0.0
    rows: Callable[[RecordedAnswer], RecordedRows] = lambda answer: RecordedRows({})
    drafts: Callable[[RecordedAnswer], RecordedDrafts] = lambda answer: RecordedDrafts()
    _drafter: RecordedDrafts = field(default_factory=RecordedDrafts, repr=False)
    _random: Random = field(default_factory=lambda: Random(0), repr=False)
    _table: dict[tuple[int, int], float] = field(default_factory=dict, repr=False)

    def seconds(self, rows: int, prefix: int) -> float:
        """Returns the seconds of a pass; prefixes are rounded to 64 tokens."""
        key = rows, prefix // 64
        if key not in self._table:
            self._table[key] = self.costs.verify(rows, prefix)
        return self._table[key]

    def proposer(self, method: str) -> tuple[Proposer, int]:
        """Returns a method without a model, and its budget; with a budget in its name, it fills that one."""
        costs = LiveCosts(self.measured(), frozen=not self.noise)
        parts: Any = Parts(None, costs=costs)  # type: ignore[arg-type]
        name, settings = split(method)
        fixed = settings.pop("budget", None)
        found = find(joined(name, settings))
        budget = found.budget if fixed is None else int(fixed)
        if not found.needs:
            return built(found, parts, fixed is None), budget
        parts = replace(parts, source=self._drafter, choices=found.choices)
        build = found.adaptive if fixed is None and found.adaptive is not None else found.build
        return build(parts), budget

    def measured(self) -> Costs:
        """Returns the costs as the method knows them."""
        passes = {
            prefix: {rows: seconds * exp(abs(self._random.gauss(0.0, self.noise))) for rows, seconds in line.items()}
            for prefix, line in self.costs.passes.items()
        }
        return replace(self.costs, passes=passes)

    def replay(
        self,
        proposer: Proposer,
        budget: int,
        answer: RecordedAnswer,
        told: Callable[[int, ProposalTree, int], None] = lambda *_: None,
    ) -> Replayed:
        """Decodes the answer: its first token comes with the prompt, as from a prefill.

        Args:
            told: Takes for each step the answer's tokens so far, the tree, and how many tokens the step decodes.
        """
        for memory in proposer.memories:
            memory.reset(len(answer.prompt) + len(answer.answer) + budget)
        rows = self.rows(answer)
        self._drafter.drafts = self.drafts(answer).drafts
        text = torch.tensor([*answer.prompt, answer.answer[0]])
        for start in range(0, len(answer.prompt), CHUNK):
            chunk = text[start : min(start + CHUNK, len(answer.prompt))]
            whole = torch.arange(len(chunk))
            seen = Observation(ProposalTree.chain(chunk), whole, int(text[start + len(chunk)]), prompt=True)
            _observe(proposer, rows.beside(seen, start, chunk[1:].tolist()))
        done, found = 1, Replayed(answer)
        while done < len(answer.answer):
            prefix = len(answer.prompt) + done - 1
            left = len(answer.answer) - done
            ask = Ask(answer.answer[done - 1], budget, prefix)
            began = time.thread_time()
            tree = on_host(proposer.propose(ask)) if left > 1 else ProposalTree.root_only(ask.root)
            found.host += time.thread_time() - began
            tree = tree.shallower(left - 1)
            following = answer.answer[done:]
            path = walk(tree, following)
            told(done, tree, len(path))
            seconds = self.seconds(len(tree), prefix)
            done += len(path)
            timed = seconds * exp(self._random.gauss(0.0, self.noise / 2))
            seen = Observation(tree, torch.tensor(path), answer.answer[done - 1], seconds=timed)
            seen = rows.beside(seen, prefix, following)
            began = time.thread_time()
            _observe(proposer, seen)
            found.host += time.thread_time() - began
            found.seconds += seconds
            found.steps += 1
            found.rows += len(tree)
        found.plain = self.plain(answer)
        return found

    def plain(self, answer: RecordedAnswer) -> float:
        """Returns the seconds of plain decoding."""
        return sum(self.seconds(1, len(answer.prompt) + done) for done in range(len(answer.answer) - 1))

    def oracle(self, answer: RecordedAnswer) -> Replayed:
        """Returns the least seconds of any policy that proposes what the text knows.

        A step may propose the answer's next tokens as long as each is among those that the text gives a probability.
        The best lengths follow from the end of the answer to its beginning.
        """
        text = PartialMatching()
        text.extend([*answer.prompt, answer.answer[0]])
        text.known().answer()
        known = []
        for token in answer.answer[1:]:
            known.append(any(one.token == token for one in text.known().after(())[0]))
            text.extend([token])
        size = len(answer.answer) - 1
        best = [0.0] * (size + 1)
        for start in range(size - 1, -1, -1):
            prefix, reach = len(answer.prompt) + start, 0
            best[start] = self.seconds(1, prefix) + best[start + 1]
            while start + reach + 1 < size and reach < 60 and known[start + reach]:
                reach += 1
                best[start] = min(best[start], self.seconds(reach + 1, prefix) + best[start + reach + 1])
        return Replayed(answer, best[0], self.plain(answer), 1, 1)


def walk(tree: ProposalTree, following: Sequence[int]) -> list[int]:
    """Returns the nodes of the tree's path that the text follows, the root first."""
    path, children = [0], tree.children
    for token in following:
        node = children.get((path[-1], token))
        if node is None:
            break
        path.append(node)
    return path


def _observe(proposer: Proposer, seen: Observation) -> None:
    for memory in proposer.memories:
        memory.observe(seen)


def replayed(bench: Bench, method: str, answers: Iterable[RecordedAnswer]) -> list[Replayed]:
    """Replays the answers of one suite one after the other, as one session."""
    if method == ORACLE:
        return [bench.oracle(answer) for answer in answers]
    proposer, budget = bench.proposer(method)
    return [bench.replay(proposer, budget, answer) for answer in answers]


def geometric(speedups: Sequence[float]) -> Mean:
    """Returns the geometric mean and its interval over prompts."""
    mean, low, high = bootstrap([log(speedup) for speedup in speedups])
    return Mean(exp(mean), (exp(low), exp(high)) if len(speedups) >= 5 else None, len(speedups))


def chosen(answers: Sequence[RecordedAnswer], suites: str, prompts: int, half: str) -> dict[str, list[RecordedAnswer]]:
    """Returns the answers by suite; half: even or odd, by a hash of the row; all: both."""
    found: dict[str, list[RecordedAnswer]] = {}
    for answer in answers:
        own = "odd" if int(digest(answer.row)[:8], 16) % 2 else "even"
        wanted = not suites or any(part in answer.suite for part in suites.split(","))
        if wanted and half in ("all", own) and len(answer.answer) >= SHORTEST:
            found.setdefault(answer.suite, []).append(answer)
    return {suite: own[:prompts] for suite, own in found.items()}


def table_of(results: dict[str, dict[str, list[Replayed]]], title: str) -> Table:
    """Returns the table of one machine: a line per suite, a column per method."""
    methods = list(next(iter(results.values())))
    table = Table(title=title)
    table.add_column("suite")
    table.add_column("n")
    for method in methods:
        table.add_column(method)
    for suite, by_method in results.items():
        table.add_row(
            suite,
            str(len(by_method[methods[0]])),
            *(f"{geometric([one.speedup for one in by_method[method]]):.2f}" for method in methods),
        )
    whole = {method: [one for own in results.values() for one in own[method]] for method in methods}
    lines = {
        "all": lambda own: f"{geometric([one.speedup for one in own]):.3f}",
        "worst prompt": lambda own: f"{min(one.speedup for one in own):.2f}",
        "prompts below 0.97": lambda own: str(sum(one.speedup < 0.97 for one in own)),
        "tokens per step": lambda own: f"{sum(len(a.answer.answer) - 1 for a in own) / sum(a.steps for a in own):.2f}",
        "rows per step": lambda own: f"{sum(one.rows for one in own) / sum(one.steps for one in own):.2f}",
        "host, ms": lambda own: f"{1e3 * sum(one.host for one in own) / sum(one.steps for one in own):.2f}",
    }
    table.add_section()
    for name, value in lines.items():
        table.add_row(
            name,
            str(len(whole[methods[0]])),
            *(
                "" if method == ORACLE and name not in ("all", "worst prompt") else value(whole[method])
                for method in methods
            ),
        )
    return table


@app.command()
def replay(
    answers: Path,
    methods: str = f"{ORACLE},pld,suffix,graft-x-text",
    machines: str = "zen5,xeon,gpu",
    suites: Annotated[str, typer.Option(help="Parts of suites' names; comma-separated. Default: all.")] = "",
    prompts: Annotated[int, typer.Option(help="Answers of a suite, at most.")] = 16,
    half: Annotated[
        str, typer.Option(help="even, odd or all: half of the prompts, to choose by one and to report the other.")
    ] = "all",
    noise: Annotated[
        float, typer.Option(help="Noise of the costs that the method measures, as a share; 0: it knows them.")
    ] = 0.0,
) -> None:
    """Print the speed of methods over plain decoding, by suite, on machines of which only the costs are needed."""
    unknown = [name for name in machines.split(",") if name not in MACHINES]
    if unknown:
        raise typer.BadParameter(f"No machine is named {', '.join(unknown)}. Known: {', '.join(MACHINES)}.")
    if half not in ("even", "odd", "all"):
        raise typer.BadParameter(f"--half is {half!r}. Give even, odd or all.")
    known = chosen(RecordedAnswer.load(answers), suites, prompts, half)
    console = Console(width=160)
    for machine in machines.split(","):
        bench = Bench(
            MACHINES[machine],
            noise,
            lambda answer: RecordedRows.load(answer.beside(answers, "rows")),
            lambda answer: RecordedDrafts.load(answer.beside(answers, "drafts")),
        )
        results = {
            suite: {method: replayed(bench, method, own) for method in methods.split(",")}
            for suite, own in known.items()
        }
        console.print(table_of(results, f"{machine}: {bench.costs.source}; times plain decoding, geometric means"))


@app.command()
def explain(
    answers: Path,
    number: Annotated[int, typer.Option(help="The answer, counted from 0.")] = 0,
    machine: str = "zen3",
    method: str = "graft-x-text",
) -> None:
    """Print what decided each step of one answer: the text's probability, a node's price, and the credit."""
    known = RecordedAnswer.load(answers)
    if not 0 <= number < len(known):
        raise typer.BadParameter(f"{answers} has {len(known)} answers, and --number is {number}; the first one is 0.")
    if machine not in MACHINES:
        raise typer.BadParameter(f"No machine is named {machine}. Known: {', '.join(MACHINES)}.")
    answer = known[number]
    bench = Bench(MACHINES[machine], rows=lambda answer: RecordedRows.load(answer.beside(answers, "rows")))
    proposer, budget = bench.proposer(method)
    if not isinstance(proposer, Controller):
        raise typer.BadParameter(f"{method} decides nothing by costs. Give graft-x-text.")
    table = Table(title=f"{answer.suite} {answer.id}, {method} on {machine}; time in plain passes")
    for column in ("token", "nodes", "decoded", "likeliest next", "its least", "tokens per pass", "credit"):
        table.add_column(column)

    def told(done: int, tree: ProposalTree, decoded: int) -> None:
        plan = proposer.latest
        assert plan is not None and proposer.ranked.text is not None
        known = proposer.ranked.text.known().after(())[0]
        likeliest = max((one.probability for one in known), default=0.0)
        least = plan.rate * plan.prices.floors(2)[1]
        figures = (likeliest, least, plan.rate * plan.prices.token, plan.credit / plan.prices.token)
        table.add_row(str(done), str(len(tree) - 1), str(decoded), *(f"{figure:.2f}" for figure in figures))

    bench.replay(proposer, budget, answer, told)
    Console(width=160).print(table)


@app.command()
def build(
    out: Path,
    data: Annotated[Path, typer.Option(help="Folder of the suites' rows and recordings.")],
    rows: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(help="Rows of sweeps of this model."),
    ] = None,
    edits: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Edits that `benchmarks.agents build` found."),
    ] = None,
    model: str = "qwen2.5-coder-0.5b",
    lengths: str = "4096,16384",
    prompts: int = 16,
) -> None:
    """Write the file that `replay` reads: recorded answers in the tokens of a model, whose weights are not needed."""
    from transformers import AutoTokenizer

    from longgraft.models.places import place_of

    tokenizer = AutoTokenizer.from_pretrained(place_of(model).path)
    found = list(of_other_models(data, tokenizer, [int(length) for length in lengths.split(",")], prompts))
    for path in rows or []:
        found += of_result_rows(path, data, tokenizer, model)
    if edits is not None:
        found += of_edits(edits, tokenizer)
    RecordedAnswer.save(distinct(found), out)
    print(f"{out}: {len(found)} answers of {len({one.suite for one in found})} suites")


if __name__ == "__main__":
    app()

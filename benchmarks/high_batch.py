"""Graft with several requests at once, in the layout of the paper's Table 13 (arXiv 2605.20104).

    python -m benchmarks.high_batch smollm2 --data ROWS --out FOLDER

Runs the sweep of docs/results/high_batch/NAME/sweep.toml, or goes on with it, and writes FOLDER/table13.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Optional

import typer

from longgraft.config.method_roles import DENSE, PLAIN
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.report import write
from longgraft.eval.runs.batches import Batch, read_batches
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.rows import rows_file
from longgraft.eval.runs.sweep import sweep

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
GRAFTS = ("graft", "graft-hb")
CONFIGS = Path(__file__).parents[1] / "docs/results/high_batch"
PAPER = "The paper's Table 13 has +0.11 to +0.14 and +3.1 to +5.5 % (Qwen3-8B, SGLang, 1 to 16 requests)."
# Tables: their heading, and the text of a method's batches in one cell.
FIGURES = {
    "accepted length (tokens per step)": lambda cell: f"{mean(one.mat for one in cell) + 1:.2f}",
    "tokens/s of all requests": lambda cell: f"{_rate(cell):.1f}",
    "tokens/s of a request": lambda cell: f"{median(_all(one.tokens_per_second for one in cell)):.1f}",
    "time to the first token, s": lambda cell: f"{mean(_all(one.first_token_seconds for one in cell)):.2f}",
    "answers with the ids of the request alone": lambda cell: (
        f"{sum(one.compared - one.different for one in cell)}/{sum(one.compared for one in cell)}"
    ),
}
# The same, for batches whose passes were counted.  The first token of an answer comes from its prefill.
COUNTS = {
    "tokens per pass, of all requests": lambda cell: _per_pass(cell, lambda one: one.new_tokens - one.prompts),
    "nodes per pass, of all requests": lambda cell: _per_pass(cell, lambda one: one.nodes),
    "draft forwards per pass, of all requests": lambda cell: _per_pass(cell, lambda one: one.drafts),
}
Found = Mapping[str, Sequence[Batch]]  # method -> repeats
Cells = Mapping[tuple[str, int], Found]  # (suite, requests at once) -> methods


def cells_of(batches: Iterable[Batch]) -> Cells:
    """Returns the batches without errors by suite, number of requests and method, in the order of the run."""
    cells: dict[tuple[str, int], dict[str, list[Batch]]] = {}
    for one in batches:
        if not one.error:
            cells.setdefault((one.key.suite, one.key.running), {}).setdefault(one.key.method, []).append(one)
    return cells


def lines(batches: Sequence[Batch]) -> Iterator[str]:
    """Yields the tables: one per figure, then methods beside each other, then failures."""
    cells = cells_of(batches)
    methods = list(dict.fromkeys(one.key.method for one in batches))
    short = {
        method: _bare(method) if list(map(_bare, methods)).count(_bare(method)) == 1 else method for method in methods
    }
    yield from (f"{name} is {method}.  " for method, name in short.items() if name != method)
    counted = any(one.passes for one in batches)
    for name, shown in {**FIGURES, **(COUNTS if counted else {})}.items():
        yield from _table(name, short.values(), cells, [partial(_shown, shown, method) for method in methods])
    dense = next((method for method in methods if _bare(method) == DENSE), "")
    grafts = [method for method in methods if _bare(method) in GRAFTS]
    if dense and grafts:
        yield from _table(
            f"accepted length and tokens/s over {DENSE}\n\n{PAPER}",
            [short[name] for name in grafts],
            cells,
            [partial(_over, dense, method) for method in grafts],
        )
    rest = [method for method in methods if method != PLAIN]
    yield from _table(
        f"tokens/s over {PLAIN}",
        [short[name] for name in rest],
        cells,
        [partial(_times, PLAIN, method) for method in rest],
    )
    yield from (
        f"\n{one.key.method}, {one.key.running} at once, {suite_name(one.key.suite)}: {one.error}"
        for one in batches
        if one.error
    )


def _table(
    heading: str, columns: Iterable[str], cells: Cells, shown: Sequence[Callable[[Found], str]]
) -> Iterator[str]:
    yield f"\n### {heading[0].upper()}{heading[1:]}\n"
    yield f"| suite | at once | {' | '.join(columns)} |"
    yield f"|{'---|' * (2 + len(shown))}"
    for (suite, running), found in cells.items():
        yield f"| {suite_name(suite)} | {running} | {' | '.join(one(found) for one in shown)} |"


def _bare(method: str) -> str:
    """Returns the method's name without its settings."""
    return method.split("+")[0]


def _shown(shown: Callable[[Sequence[Batch]], str], method: str, found: Found) -> str:
    return shown(found[method]) if method in found else "-"


def _over(base: str, method: str, found: Found) -> str:
    """Returns the difference in accepted length and the gain in tokens per second."""
    if not {base, method} <= found.keys():
        return "-"
    mine, theirs = (mean(one.mat for one in found[name]) for name in (method, base))
    return f"{mine - theirs:+.2f}, {100 * (_rate(found[method]) / _rate(found[base]) - 1):+.1f} %"


def _times(base: str, method: str, found: Found) -> str:
    return f"{_rate(found[method]) / _rate(found[base]):.2f}" if {base, method} <= found.keys() else "-"


def _per_pass(cell: Sequence[Batch], count: Callable[[Batch], int]) -> str:
    passes = sum(one.passes for one in cell)
    return f"{sum(map(count, cell)) / passes:.2f}" if passes else "-"


def _rate(cell: Sequence[Batch]) -> float:
    return median(one.new_tokens / one.seconds for one in cell)


def _all(values: Iterable[Sequence[float]]) -> list[float]:
    return [value for some in values for value in some]


@app.command()
def main(
    name: Annotated[str, typer.Argument(help="Folder in docs/results/high_batch, or a TOML file.")],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    data: Annotated[Optional[str], typer.Option(help="Folder of JSONL rows; none: the hub.")] = None,  # noqa: UP045
    prompts: Optional[int] = None,  # noqa: UP045
    repeats: Optional[int] = None,  # noqa: UP045
    tokens: Optional[int] = None,  # noqa: UP045
    at_once: Annotated[Optional[str], typer.Option(help="As 1,4.")] = None,  # noqa: UP045
) -> None:
    """Measure, or go on with a run, and write its tables; prompts, repeats, tokens and at-once replace the file's."""
    path = Path(name) if name.endswith(".toml") else CONFIGS / name / "sweep.toml"
    config = SweepConfig.load(
        path,
        data=data,
        prompts=prompts,
        repeats=repeats,
        max_new_tokens=tokens,
        concurrency=at_once and tuple(map(int, at_once.split(","))),
    )
    sweep(config, out, resume=rows_file(out) is not None)
    write(out)
    text = "\n".join(lines(read_batches(out))).strip() + "\n"
    (out / "table13.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    app()

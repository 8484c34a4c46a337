"""The report of `longgraft estimate`: tables, sentences, one object for programs, and a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from longgraft.eval.replay.estimate import SHORTEST, Estimate, Estimated
from longgraft.eval.reports.panels import pyplot, side_by_side, style_of
from longgraft.eval.reports.tables import length_name, number, section
from longgraft.eval.statistics import Mean
from longgraft.files.whole_files import written_whole

LENGTHS = (2048, 4096, 8192, 16384, 32768, 65536)  # upper ends of the groups of prompts, in tokens
NAMED = 3  # answers that are named as the best, and as the worst
ORACLE = "oracle"
ABOUT_ORACLE = (
    "The oracle knows the answer, and proposes as much of it as the text had. Copied are tokens that go on as the "
    "text did after the same four tokens or more."
)


def groups(estimate: Estimate) -> Iterator[tuple[str, list[int]]]:
    """Yields the name of each group of prompts, and its answers by place; the last one has all."""
    begin = 0
    for end in (*LENGTHS, None):
        places = [
            place
            for place, one in enumerate(estimate.answers)
            if len(one.answer.prompt) >= begin and (end is None or len(one.answer.prompt) < end)
        ]
        if places:
            name = f"from {length_name(begin)}"
            if end:
                name = f"{length_name(begin) if begin else '0'} to {length_name(end)}"
            yield name, places
        begin = end or begin
    yield "all", list(range(len(estimate.answers)))


def tables(estimate: Estimate) -> list[str]:
    """Returns the table of tokens per step, and one of speeds for each table of costs."""
    first = next(iter(estimate.prices))
    lines = []
    for name, places in groups(estimate):
        chosen = [estimate.answers[place] for place in places]
        figures = [f"{_tokens_per_step(chosen, method, first):.2f}" for method in estimate.methods]
        lines.append([name, str(len(chosen)), f"{_copied(chosen):.0%}", *figures])
    head = ["prompt tokens", "answers", "copied", *estimate.methods]
    parts = section(f"Tokens per step (budgets by the costs of {first}).\n", head, lines)
    for costs, prices in estimate.prices.items():
        speeds = {method: estimate.speedups(method, costs) for method in estimate.methods}
        speeds[ORACLE] = estimate.best(costs)
        lines = [
            [name, *(number(Mean.geometric([own[place] for place in places])) for own in speeds.values())]
            for name, places in groups(estimate)
        ]
        title = f"\nTimes plain decoding on {costs}: {prices.costs.source}.\n"
        parts += section(title, ["prompt tokens", *speeds], lines)
    if estimate.short:
        parts.append(f"\n{estimate.short:,} more answers have fewer than {SHORTEST} tokens and do not count.")
    return [*parts, f"\n{ABOUT_ORACLE}"]


def _copied(chosen: Sequence[Estimated]) -> float:
    return sum(sum(one.known.copied) for one in chosen) / sum(len(one.known.copied) for one in chosen)


def _tokens_per_step(chosen: Sequence[Estimated], method: str, costs: str) -> float:
    replays = [one.steps[method, costs] for one in chosen]
    return sum(one.tokens for one in replays) / sum(len(one.steps) for one in replays)


def sentences(estimate: Estimate) -> list[str]:
    """Returns what the first method would bring, and the answers that gain most and least."""
    method = estimate.methods[0]
    count = len(estimate.answers)
    gains = []
    nothing = []
    for costs in estimate.prices:
        speeds = estimate.speedups(method, costs)
        gains.append(f"{number(Mean.geometric(speeds))} times as fast on {costs}")
        nothing.append(f"{sum(speed <= 1.0 for speed in speeds)} on {costs}")
    found = [
        f"On {_these(estimate)} {method} would decode {', '.join(gains)}; "
        f"answers that gain nothing: {', '.join(nothing)}."
    ]
    costs = next(iter(estimate.prices))
    order = sorted(zip(estimate.speedups(method, costs), estimate.answers, strict=True), key=lambda pair: -pair[0])
    if count > 2 * NAMED:
        for word, chosen in (("most", order[:NAMED]), ("least", order[: -NAMED - 1 : -1])):
            named = ", ".join(f"{one.answer.id} ({speed:.2f})" for speed, one in chosen)
            found.append(f"On {costs}, these gain {word}: {named}.")
    return found


def _these(estimate: Estimate) -> str:
    count = len(estimate.answers)
    if count < estimate.of:
        return f"a sample of {count} of {estimate.of:,} answers"
    return f"these {count} answers" if count > 1 else "this answer"


def as_dict(estimate: Estimate) -> dict[str, Any]:
    """Returns the estimate for programs: no texts, only the ids of rows."""
    rows = []
    speeds = {
        (method, costs): estimate.speedups(method, costs) for method in estimate.methods for costs in estimate.prices
    }
    bests = {costs: estimate.best(costs) for costs in estimate.prices}
    for place, one in enumerate(estimate.answers):
        methods = {
            method: {
                costs: {
                    "steps": len(one.steps[method, costs].steps),
                    "tokens_per_step": one.steps[method, costs].tokens_per_step,
                    "rows": sum(step.rows for step in one.steps[method, costs].steps),
                    "speedup": speeds[method, costs][place],
                }
                for costs in estimate.prices
            }
            for method in estimate.methods
        }
        rows.append(
            {
                "id": one.answer.id,
                "prompt_tokens": len(one.answer.prompt),
                "answer_tokens": len(one.answer.answer),
                "copied": one.copied,
                "methods": methods,
                ORACLE: {costs: best[place] for costs, best in bests.items()},
            }
        )
    return {
        "answers": rows,
        "long_enough": estimate.of,
        "too_short": estimate.short,
        "costs": {name: prices.costs.source for name, prices in estimate.prices.items()},
    }


def draw(estimate: Estimate, path: Path) -> None:
    """Draws the first method's speed of each answer by the length of its prompt, a panel for each table of costs."""
    plt = pyplot()
    figure, axes = side_by_side(plt, [f"on {costs}" for costs in estimate.prices])
    for axis, costs in zip(axes, estimate.prices, strict=True):
        lengths = [len(one.answer.prompt) for one in estimate.answers]
        for place, method in enumerate(estimate.methods):
            style = style_of(place)
            axis.plot(lengths, estimate.speedups(method, costs), linestyle="none", alpha=0.5, label=method, **style)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.xaxis.set_major_formatter(lambda value, _: length_name(round(value)))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_xlabel("prompt tokens")
    axes[0].set_ylabel("times plain decoding")
    axes[0].legend()
    figure.tight_layout()
    with written_whole(path) as part:
        figure.savefig(part, format=path.suffix[1:])
    plt.close(figure)

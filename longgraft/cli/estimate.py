"""`longgraft estimate`: what a log of prompts and answers would gain, without a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from annotated_types import Ge, Le, MinLen

from longgraft.cli.commands import command
from longgraft.cli.opening import say
from longgraft.config.method_roles import ESTIMATED, HEADLESS
from longgraft.config.options import Checked, option
from longgraft.files.new_paths import new_file

if TYPE_CHECKING:
    from longgraft.budget.cost_model import Costs
    from longgraft.engine.encoder import Encoder
    from longgraft.eval.replay.logs import LoggedAnswer
    from longgraft.eval.replay.replay import Replay

estimating = typer.Typer()

PANEL = "Measure"
BAD_LINES = 5  # bad lines that are named


@dataclass(frozen=True)
class EstimateOptions(Checked):
    """Options of an estimate."""

    tokenizer: str | None = option(
        None,
        "Model whose tokenizer counts: a name, folder, hub id or GGUF file",
        none="the embedded model's, about three characters a token",
        metavar="MODEL",
    )
    costs: Annotated[tuple[str, ...], MinLen(1)] = option(
        ("zen5", "h100"),
        "Costs: zen5, zen4, zen3, xeon, h100, or files of the command costs",
        note="at least one",
    )
    methods: tuple[str, ...] = option(ESTIMATED, "Methods; the sentences are about the first")
    answers: Annotated[int, Ge(1), Le(10**6)] = option(200, "Answers that are replayed; of more, a sample")
    max_new_tokens: Annotated[int, Ge(8), Le(10**6)] = option(1024, "Tokens of an answer that count", unit="tokens")
    explain: str | None = option(
        None, "Answer whose steps are explained, by its id, for the first method and costs", none="none", metavar="ID"
    )
    plot: str | None = option(None, "New picture, such as .png or .svg", none="no picture", metavar="FILE")
    as_json: bool = option(False, "One object on stdout: each answer's figures, by id", flag="--json")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.explain is not None and self.plot is not None:
            raise ValueError("--explain prints the steps of one answer and draws nothing. Leave --plot out.")


@command(
    estimating,
    "estimate",
    "longgraft estimate requests.jsonl --tokenizer qwen2.5-coder-0.5b --costs zen5,costs.json --plot gains.png",
    PANEL,
)
def estimate(
    log: Annotated[
        Path,
        typer.Argument(help="JSONL: pairs of prompt and answer, chats, requests with responses, sessions of agents."),
    ],
    options: EstimateOptions,
) -> None:
    """Tell what your own prompts and answers would gain, from a log of them: no model and no GPU is needed.

    The text's methods are replayed on the answers. Their times come from tables of costs. Texts stay here.
    """
    from longgraft.eval.replay.estimate import Sampling, Sessions, estimate
    from longgraft.eval.replay.logs import read_log
    from longgraft.eval.replay.machines import costs_of
    from longgraft.eval.reports.log_estimate import as_dict, draw, sentences, tables

    _check_methods(options.methods, log)
    picture = None if options.plot is None else new_file(options.plot)
    costs = {name: costs_of(name) for name in options.costs}
    read = read_log(log)
    _say_problems(read.problems)
    if read.without:
        say(f"{read.without:,} lines hold no answer")
    encoder = _encoder(options.tokenizer)
    if options.explain is not None:
        return _explain(read.answers, encoder, options, next(iter(costs.values())), log)
    sessions = Sessions(options.methods, costs, lambda table: _recorded(table, log))
    sampling = Sampling(options.answers, options.max_new_tokens)
    found = estimate(read.answers, encoder, sampling, sessions, _bar)
    _say_problems(found.problems)
    if picture is not None:
        draw(found, picture)
    if options.as_json:
        left_out = len(read.problems) + len(found.problems)
        print(json.dumps(as_dict(found) | {"left_out": left_out, "without_answer": read.without}))
        return
    print("\n".join([*tables(found), "", *sentences(found)]))


def _check_methods(methods: Sequence[str], log: Path) -> None:
    """Raises ValueError for a method that needs a head, unless a drafter's proposals lie beside the log."""
    from longgraft.config.method_syntax import split
    from longgraft.methods.find import find

    if not methods:
        raise ValueError(f"No method was given. Give --methods {HEADLESS}.")
    for method in methods:
        name = split(method)[0]
        if find(name).needs and not log.with_suffix(".drafts").is_dir():
            raise ValueError(
                f"{name} needs a head, whose drafts are not known to a log. Leave it out, or record drafts beside the "
                "log (python -m benchmarks recorded rows)."
            )


def _say_problems(problems: Sequence[str]) -> None:
    for problem in problems[:BAD_LINES]:
        say(f"left out: {problem}")
    if len(problems) > BAD_LINES:
        say(f"left out: {len(problems) - BAD_LINES:,} more lines")


def _explain(
    logged: Sequence[LoggedAnswer], encoder: Encoder, options: EstimateOptions, costs: Costs, log: Path
) -> None:
    """Prints what decided each step of one answer, replayed as the first of its session."""
    from longgraft.budget.controller import Controller, Decision
    from longgraft.budget.step_explanations import explained, explanation_table
    from longgraft.eval.replay.estimate import LogEncoder

    one = next((one for one in logged if one.id == options.explain), None)
    if one is None:
        raise ValueError(f"No answer of {log} is named {options.explain!r}. --json lists their names.")
    replay = _recorded(costs, log)
    proposer, budget = replay.proposer(options.methods[0])
    if not isinstance(proposer, Controller):
        raise ValueError(f"--explain: {options.methods[0]} decides nothing by costs. Give --methods {HEADLESS}.")
    encoding = LogEncoder(encoder)
    answer = encoding.recorded(one, encoding.answer(one, options.max_new_tokens))
    if answer is None or len(answer.answer) < 2:
        raise ValueError(f"{options.explain} has no step. {' '.join(encoding.problems)}".rstrip())
    decisions: list[Decision] = []
    proposer.explain = decisions.append
    steps = replay.decoded(proposer, budget, answer).steps
    rows = explained(decisions, [step.tokens - 1 for step in steps])
    print(json.dumps(rows) if options.as_json else explanation_table(rows))


def _encoder(model: str | None) -> Encoder:
    from longgraft.engine.encoder import Encoder
    from longgraft.models.files import files_of

    files = files_of(model)
    return Encoder(files.tokenizer, len(files.tokenizer), files.name)


def _recorded(costs: Costs, log: Path) -> Replay:
    """Returns the replay of some costs, with the rows and drafts that benchmarks recorded beside the log."""
    from longgraft.eval.replay.recorded_drafts import RecordedDrafts
    from longgraft.eval.replay.recorded_rows import RecordedRows
    from longgraft.eval.replay.replay import Replay

    return Replay(
        costs,
        lambda answer: RecordedRows.load(answer.beside(log, "rows")),
        lambda answer: RecordedDrafts.load(answer.beside(log, "drafts")),
    )


def _bar(answers: Sequence[Any]) -> Iterable[Any]:
    from tqdm import tqdm

    return tqdm(answers, unit=" answers", disable=not sys.stderr.isatty())

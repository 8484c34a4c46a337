"""Constrained answers: JSON by a schema and required tool calls, beside plain decoding under the same constraint.

    python -m benchmarks constrained schemas --model smollm2
    python -m benchmarks constrained tools --model smollm2

`schemas.json` has 50 shapes of public APIs in a short form: a string names a kind, an array has the choices, {"*": ...}
is a list of one or two items; all fields are required.  `tool_schemas.json` has 30 tools of agents and public services,
with a request for each.  Each request offers three tools: its own and the two after it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import jsonschema
import typer

import longgraft
from benchmarks.options import RESULTS, Method, Minutes, Out
from benchmarks.report import Report, Row
from longgraft.comparison.with_plain import plain_session
from longgraft.config.method_roles import HEADLESS
from longgraft.engine.session import Session
from longgraft.serve.tools.families import family_of
from longgraft.serve.tools.grammar import Tool, grammar
from longgraft.serve.tools.reader import CallReader
from longgraft.serve.tools.rendering import rendered

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
HERE = Path(__file__).parent
OFFERED = 3  # tools of a request
KINDS: dict[str, dict[str, Any]] = {
    "text": {"type": "string", "maxLength": 40},
    "email": {"type": "string", "pattern": r"^[a-z.]{3,15}@[a-z]{3,10}\.com$"},
    "integer": {"type": "integer", "minimum": 0, "maximum": 100000},
    "number": {"type": "number", "minimum": 0, "maximum": 1000, "multipleOf": 0.01},
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "phone": {"type": "string", "pattern": r"^\+[0-9]{10,12}$"},
    "country": {"type": "string", "pattern": "^[A-Z]{2}$"},
    "airport": {"type": "string", "pattern": "^[A-Z]{3}$"},
    "version": {"type": "string", "pattern": r"^[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{1,2}$"},
}
Tokens = Annotated[int, typer.Option(help="Most tokens of an answer.")]
First = Annotated[int, typer.Option(help="Number of the first row, from 0.")]
Count = Annotated[int, typer.Option(help="Most rows.")]


@dataclass(frozen=True)
class Task:
    """A prompt with a constraint.

    Attributes:
        name: Its name in the table.
        prompt: Token ids, or messages of a chat.
        constraint: The arguments of `Session.generate` that constrain the answer.
        valid: True for the text of a complete answer that keeps to the constraint.
    """

    name: str
    prompt: Any
    constraint: Mapping[str, Any]
    valid: Callable[[str], bool]


@app.command()
def schemas(
    model: str = "smollm2",
    method: Method = HEADLESS,
    tokens: Tokens = 100,
    first: First = 0,
    count: Count = 50,
    out: Out = RESULTS,
    minutes: Minutes = 12.0,
) -> None:
    """Answer with JSON by a schema, a row each."""
    session = longgraft.load(model, method=method, tell=False)
    report = Report("schemas", out, minutes, session.target.device, model=model, method=method, tokens=tokens)
    measure(report, session, islice(schema_tasks(), first, first + count), tokens)


def schema_tasks() -> Iterator[Task]:
    for name, shape in json.loads((HERE / "schemas.json").read_text(encoding="utf-8")).items():
        schema = schema_of(shape)
        prompt = [{"role": "user", "content": f"Write one example of a {name} as JSON."}]
        yield Task(name, prompt, {"json_schema": schema}, partial(follows, schema))


def schema_of(shape: Any) -> dict[str, Any]:
    """Returns the JSON schema of a short form."""
    match shape:
        case str():
            return KINDS[shape]
        case list():
            return {"enum": shape}
        case {"*": item}:
            return {"type": "array", "items": schema_of(item), "minItems": 1, "maxItems": 2}
    return {
        "type": "object",
        "properties": {name: schema_of(one) for name, one in shape.items()},
        "required": list(shape),
        "additionalProperties": False,
    }


def follows(schema: Mapping[str, Any], text: str) -> bool:
    """Tells if a text is JSON that follows a schema.  Decimals are needed: as a float, 1.15 is no multiple of 0.01."""
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    try:
        jsonschema.validate(json.loads(text, parse_float=Decimal), exact)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


@app.command()
def tools(
    model: str = "smollm2",
    method: Method = HEADLESS,
    tokens: Tokens = 150,
    first: First = 0,
    count: Count = 30,
    out: Out = RESULTS,
    minutes: Minutes = 12.0,
) -> None:
    """Answer with a required tool call, a row each."""
    session = longgraft.load(model, method=method, tell=False)
    report = Report("tools", out, minutes, session.target.device, model=model, method=method, tokens=tokens)
    measure(report, session, islice(tool_tasks(session), first, first + count), tokens)


def tool_tasks(session: Session) -> Iterator[Task]:
    known = json.loads((HERE / "tool_schemas.json").read_text(encoding="utf-8"))
    for number in range(len(known)):
        yield tool_task(session, [*known[number:], *known[:number]][:OFFERED])


def tool_task(session: Session, offered: Sequence[Mapping[str, Any]]) -> Task:
    """Returns the task of the first tool's request."""
    tokenizer = session.tokenizer
    shown = []
    for one in offered:
        function = {name: one[name] for name in ("name", "description", "parameters")}
        shown.append({"type": "function", "function": function})
    family = family_of(tokenizer.get_chat_template(tools=shown))
    messages, more = rendered(family, [{"role": "user", "content": offered[0]["asked"]}], shown)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **more)
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    parameters = {one["name"]: one["parameters"] for one in offered}
    required = [Tool(name, schema, True) for name, schema in parameters.items()]
    rules = grammar(family, required, tokenizer.get_added_vocab(), text=False, many=False)

    def valid(text: str) -> bool:
        turn = CallReader(family, required).whole(text)
        if turn.text or len(turn.calls) != 1:
            return False
        (call,) = turn.calls
        return follows(parameters[call.name], call.arguments)

    return Task(offered[0]["name"], ids, {"tool_calls": rules}, valid)


def measure(report: Report, session: Session, tasks: Iterable[Task], tokens: int) -> None:
    """Adds a row for each task and one for all of them, and ends the program with the report's status."""
    plain = plain_session(session, recorded=True)
    for task in tasks:
        report.take(task.name, task_rows(session, plain, task, tokens))
    found = [row.figures for row in report.rows]
    if found:
        ok = all(row.ok for row in report.rows)
        report.add(Row("all", report.about["method"], ok=ok, note=summary(found)))
    raise typer.Exit(report.finish())


def task_rows(session: Session, plain: Session, task: Task, tokens: int) -> Iterator[Row]:
    """Yields one row: answers with the constraint, by plain decoding with it, and without it."""
    ours = session.generate(task.prompt, tokens, **task.constraint)
    theirs = plain.generate(task.prompt, tokens, **task.constraint)
    free = session.generate(task.prompt, tokens)
    stats = ours.stats
    complete = ours.finish_reason == "eos"
    valid = complete and task.valid(ours.text)
    same_ids = ours.token_ids == theirs.token_ids
    figures = {
        "same_ids": same_ids,
        "valid": valid,
        "complete": complete,
        "tokens": stats.new_tokens,
        "steps": stats.steps,
        "seconds": stats.decode_seconds,
        "plain_seconds": theirs.stats.decode_seconds,
        "free_tokens": free.stats.new_tokens,
        "free_steps": free.stats.steps,
        "free_seconds": free.stats.decode_seconds,
        "ratio": stats.tokens_per_step / free.stats.tokens_per_step,
        "forced": stats.accepted_by_origin.get("forced", 0),
        "text": ours.text,
    }
    yield Row(
        task.name,
        "complete" if complete else "cut",
        stats.decode_seconds / max(1, stats.steps),
        ok=same_ids and (valid or not complete),
        note=f"{stats.tokens_per_step:.2f} tokens per step, {free.stats.tokens_per_step:.2f} without the constraint",
        figures=figures,
    )


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Describes the figures of all rows."""
    counts = {name: sum(row[name] for row in rows) for name in ("complete", "valid", "same_ids")}
    return (
        f"{len(rows)} answers, {counts['complete']} complete, {counts['valid']} valid, {counts['same_ids']} with the "
        f"ids of plain decoding; {_per_step(rows, '')} tokens per step, {_per_step(rows, 'free_')} without the "
        f"constraint; median of the ratios {median(row['ratio'] for row in rows):.2f}"
    )


def _per_step(rows: Sequence[Mapping[str, Any]], kind: str) -> str:
    """Returns the tokens per step; the first token of an answer comes from its prompt."""
    tokens = sum(row[f"{kind}tokens"] - 1 for row in rows)
    steps = sum(row[f"{kind}steps"] for row in rows)
    return f"{tokens / max(1, steps):.2f}"

"""Required tool calls: are they valid, and have they the ids of plain decoding under the same constraint?

    python -m benchmarks.tool_calls --model smollm2

`tool_schemas.json` has 30 tools of agents and public services, with a request for each. Each request offers three
tools: its own and the two after it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import typer

import longgraft
from benchmarks.report import Report, Row
from longgraft.comparison.with_plain import plain_session
from longgraft.engine.session import Session
from longgraft.serve.tools.families import family_of
from longgraft.serve.tools.grammar import Tool, grammar
from longgraft.serve.tools.reader import Call, CallReader
from longgraft.serve.tools.rendering import rendered

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
TOOLS = Path(__file__).with_name("tool_schemas.json")
OFFERED = 3


@app.command()
def main(
    model: str = "smollm2",
    method: Annotated[str, typer.Option(help="Name in `longgraft methods`.")] = "graft-x-text",
    tokens: int = 150,
    tools: int = 30,
    out: Path = Path("results"),
    minutes: float = 12.0,
) -> None:
    """Measure one row per tool, and print one row for all of them."""
    session = longgraft.load(model=model, method=method)
    plain, known = plain_session(session, recorded=True), json.loads(TOOLS.read_text())
    report = Report(f"tool-calls-{model}", out, minutes, session.target.device)
    report.about |= {"model": model, "method": method, "tokens": tokens}
    for n in range(tools):
        offered = [known[(n + k) % len(known)] for k in range(OFFERED)]
        report.take(offered[0]["name"], (_row(session, plain, each, tokens) for each in [offered]))
    found = [row.figures for row in report.rows]
    steps = sum(row["steps"] for row in found)
    report.add(
        Row(
            "all",
            method,
            ok=all(row.ok for row in report.rows),
            note=(
                f"{sum(row['valid'] for row in found)} of {len(found)} valid, "
                f"{sum(row['complete'] for row in found)} complete within {tokens} tokens, "
                f"{sum(row['same_ids'] for row in found)} with the ids of plain decoding; "
                f"{sum(row['tokens'] - 1 for row in found) / max(1, steps):.2f} tokens per step"
            ),
        )
    )
    raise typer.Exit(report.finish())


def _row(session: Session, plain: Session, offered: Sequence[Mapping[str, Any]], tokens: int) -> Row:
    """Measures the call that the first tool's request is answered with."""
    tokenizer = session.tokenizer
    shown = [
        {"type": "function", "function": {name: one[name] for name in ("name", "description", "parameters")}}
        for one in offered
    ]
    family = family_of(tokenizer.get_chat_template(tools=shown))
    messages, more = rendered(family, [{"role": "user", "content": offered[0]["asked"]}], shown)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **more)
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    schemas = {one["name"]: one["parameters"] for one in offered}
    rules = grammar(
        family,
        [Tool(name, schema, True) for name, schema in schemas.items()],
        tokenizer.get_added_vocab(),
        text=False,
        many=False,
    )
    ours, theirs = (one.generate(ids, tokens, tool_calls=rules) for one in (session, plain))
    turn = CallReader(family, schemas).whole(ours.text)
    complete, same = ours.finish_reason == "eos", ours.token_ids == theirs.token_ids
    valid = complete and len(turn.calls) == 1 and not turn.text and _valid(turn.calls[0], schemas)
    a, b = ours.stats, theirs.stats
    return Row(
        offered[0]["name"],
        "complete" if complete else "cut",
        a.decode_seconds / max(1, a.steps),
        ok=same and (valid or not complete),
        note=f"{a.tokens_per_step:.2f} tokens per step",
        figures={
            "same_ids": same,
            "valid": valid,
            "complete": complete,
            "tokens": a.new_tokens,
            "steps": a.steps,
            "forced": a.accepted_by_origin.get("forced", 0),
            "seconds": a.decode_seconds,
            "plain_seconds": b.decode_seconds,
            "right_tool": bool(turn.calls) and turn.calls[0].name == offered[0]["name"],
            "text": ours.text,
        },
    )


def _valid(call: Call, schemas: Mapping[str, Any]) -> bool:
    """Tells if the arguments follow the schema.  Decimals are needed: as a float, 0.3 is no multiple of 0.1."""
    try:
        jsonschema.validate(
            json.loads(call.arguments, parse_float=Decimal),
            json.loads(json.dumps(schemas[call.name]), parse_float=Decimal),
        )
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


if __name__ == "__main__":
    app()

"""Answers that follow a JSON schema: tokens per step with and without it, and ids compared with plain decoding's.

    python -m benchmarks.structured --model smollm2

`schemas.json` has 50 shapes of public APIs in a short form: a string names a kind, an array has the choices, {"*": ...}
is a list of one or two items; all fields are required.
"""

from __future__ import annotations

import json
import statistics
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import typer

import longgraft
from benchmarks.report import Report, Row
from longgraft.comparison.with_plain import plain_session

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
SHAPES = Path(__file__).with_name("schemas.json")
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


def schema_of(shape: Any) -> dict[str, Any]:
    """Returns the JSON schema of a short form."""
    if isinstance(shape, str):
        return KINDS[shape]
    if isinstance(shape, list):
        return {"enum": shape}
    if "*" in shape:
        return {"type": "array", "items": schema_of(shape["*"]), "minItems": 1, "maxItems": 2}
    return {
        "type": "object",
        "properties": {name: schema_of(one) for name, one in shape.items()},
        "required": list(shape),
        "additionalProperties": False,
    }


@app.command()
def main(
    model: str = "smollm2",
    method: Annotated[str, typer.Option(help="Name in `longgraft methods`.")] = "graft-x-text",
    tokens: int = 100,
    first: int = 0,
    shapes: int = 50,
    out: Path = Path("results"),
    minutes: float = 12.0,
) -> None:
    """Measure one row per schema, in the order of the file, and print one row for all of them."""
    session = longgraft.load(model, method=method, tell=False)
    plain = plain_session(session, recorded=True)
    report = Report("structured", out, minutes, session.target.device, model=model, method=method, tokens=tokens)
    for name, shape in list(json.loads(SHAPES.read_text(encoding="utf-8")).items())[first : first + shapes]:
        report.take(name, (_row(session, plain, *one, tokens) for one in [(name, schema_of(shape))]))
    found = [row.figures for row in report.rows]
    ratio = _per_step(found, "") / _per_step(found, "free_")
    complete = sum(row["complete"] for row in found)
    report.add(
        Row(
            "all",
            method,
            ok=all(row.ok for row in report.rows),
            note=(
                f"{len(found)} schemas, {complete} complete within {tokens} tokens; {_per_step(found, ''):.2f} tokens "
                f"per step, {_per_step(found, 'free_'):.2f} without a schema, {ratio:.2f} times; median of the ratios "
                f"{statistics.median(row['ratio'] for row in found):.2f}"
            ),
        )
    )
    raise typer.Exit(report.finish())


def _row(session: Any, plain: Any, name: str, schema: dict[str, Any], tokens: int) -> Row:
    prompt = [{"role": "user", "content": f"Write one example of a {name} as JSON."}]
    ours = session.generate(prompt, tokens, json_schema=schema)
    theirs = plain.generate(prompt, tokens, json_schema=schema)
    free = session.generate(prompt, tokens)
    complete, valid = ours.finish_reason == "eos", True
    if complete:
        try:
            # Decimals are needed: as a float, 1.15 is no multiple of 0.01.
            jsonschema.validate(
                json.loads(ours.text, parse_float=Decimal), json.loads(json.dumps(schema), parse_float=Decimal)
            )
        except (ValueError, jsonschema.ValidationError):
            valid = False
    same, a, b = ours.token_ids == theirs.token_ids, ours.stats, free.stats
    return Row(
        name,
        "complete" if complete else "cut",
        a.decode_seconds / a.steps,
        ok=same and valid,
        note=(f"{a.tokens_per_step:.2f} tokens per step, {b.tokens_per_step:.2f} without a schema"),
        figures={
            "same_ids": same,
            "valid": valid,
            "complete": complete,
            "tokens": a.new_tokens,
            "steps": a.steps,
            "seconds": a.decode_seconds,
            "plain_seconds": theirs.stats.decode_seconds,
            "free_tokens": b.new_tokens,
            "free_steps": b.steps,
            "free_seconds": b.decode_seconds,
            "ratio": a.tokens_per_step / b.tokens_per_step,
            "forced": a.accepted_by_origin.get("forced", 0),
            "text": ours.text,
        },
    )


def _per_step(rows: list[Any], kind: str) -> float:
    return sum(row[f"{kind}tokens"] - 1 for row in rows) / sum(row[f"{kind}steps"] for row in rows)


if __name__ == "__main__":
    app()

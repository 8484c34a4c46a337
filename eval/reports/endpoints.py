"""The comparison of two servers as a table and sentences, to read or to paste into an issue."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from longgraft.config.answer_settings import SamplingSettings
from longgraft.config.endpoint_options import EndpointOptions
from longgraft.eval.checks.endpoints import (
    DIFFERS,
    EQUAL,
    OTHER_PROMPT,
    SEEDED_TEMPERATURE,
    SERVERS,
    TIE,
    UNSTEADY,
    VARIES,
    Asked,
    check,
    servers_of,
)
from longgraft.eval.prompts.example import Example
from longgraft.eval.reports.tables import markdown, number
from longgraft.files.new_paths import new_file
from longgraft.files.whole_files import write_whole

HEAD = [
    "prompt",
    "tokens",
    "greedy A = B",
    "first difference",
    "margin A",
    "margin B",
    "A = A",
    "B = B",
    "seeded A = B",
]
YES = {True: "yes", False: "no", None: "-"}
# What each verdict means, for as many prompts.
MEANING = {
    EQUAL: "equal",
    TIE: "differ where the top-2 margin is at most {tie:g}, which counts as rounding",
    UNSTEADY: "say nothing, because neither server answered twice the same",
    OTHER_PROMPT: "say nothing, because the servers counted other prompt tokens",
    VARIES: "vary on one server alone, so its setting changed an answer",
    DIFFERS: "differ although each server equals itself, so a setting changed the answer",
}


def report_of(
    options: EndpointOptions,
    examples: Sequence[Example],
    max_tokens: int,
    draw: SamplingSettings,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Compares two servers, and writes the rows to the file that the options name.

    Prompts are sent as they are, without a chat template, which only the servers have.
    """
    out = None if options.out is None else new_file(options.out)
    asked = Asked(max_tokens, draw.temperature or SEEDED_TEMPERATURE, draw.seed)
    prompts = [example.prompt() for example in examples]
    report = check(servers_of(options), prompts, asked, options.tie, tell)
    if out is not None:
        write_whole(out, "".join(json.dumps(row) + "\n" for row in report["rows"]))
    return report


def lines(report: dict[str, Any]) -> list[str]:
    """Returns the report as lines for people."""
    rows = report["rows"]
    out = [
        f"A: {report['a']}",
        f"B: {report['b']}",
        f"at most {report['max_tokens']} tokens; seeded: temperature {report['temperature']:g}, seed {report['seed']}",
        "",
        markdown(HEAD, [cells(row) for row in rows]),
        "",
    ]
    for verdict, meaning in MEANING.items():
        count = report["verdicts"].get(verdict, 0)
        if count or verdict == EQUAL:
            out.append(f"greedy: {count} of {len(rows)} {meaning.format(**report)}")
    seeded = [row["seeded_equal"] for row in rows if row["seeded_equal"] is not None]
    if seeded:
        out.append(f"seeded: {sum(seeded)} of {len(seeded)} equal")
    for place, name in enumerate(SERVERS):
        greedy = sum(row["own_differences"][place] is None for row in rows)
        twice = [row["seeded_steady"][place] for row in rows if row["seeded_steady"][place] is not None]
        out.append(f"{name} equals itself: {greedy} of {len(rows)} greedy, {sum(twice)} of {len(twice)} seeded")
    return [*out, *report["notes"]]


def cells(row: dict[str, Any]) -> list[str]:
    """Returns the cells of one prompt."""
    counts = [number(count, "d") for count in dict.fromkeys(row["prompt_tokens"])]
    where = "-"
    margins = ["-", "-"]
    found = row["first_difference"]
    if found is not None:
        where = parting(found)
        margins = [number(margin, ".4f") for margin in found["margins"]]
    greedy = {EQUAL: "yes", DIFFERS: "no"}.get(row["verdict"], row["verdict"])
    own = [itself(found) for found in row["own_differences"]]
    return [str(row["prompt"]), "/".join(counts), greedy, where, *margins, *own, YES[row["seeded_equal"]]]


def itself(found: dict[str, Any] | None) -> str:
    """Returns whether a server's two answers are equal, or else the margin where they part."""
    if found is None:
        return "yes"
    known = [f"margin {margin:.4f}" for margin in found["margins"] if margin is not None]
    return ", ".join(["no", *known[:1]])


def parting(found: dict[str, Any]) -> str:
    """Returns where two answers part, and how each goes on."""
    at = f"character {found['character']}"
    if found["token"] is not None:
        at = f"token {found['token']}, {at}"
    shown = [f"`{text!r}`".replace("|", "\\|") if text else "its end" for text in found["shown"]]
    return f"{at}: {' and '.join(shown)}"

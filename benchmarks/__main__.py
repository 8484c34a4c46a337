"""python -m benchmarks CASE: runs one benchmark.

A case is imported when it is asked for, because each has needs of its own: the parts of a step need torch and few other
packages, and another engine needs nothing of longgraft's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

COMMAND = "python -m benchmarks"
# Commands of benchmarks.part_commands.
PARTS = (
    "rows",
    "draft",
    "step",
    "acceptance",
    "retrieval",
    "merge",
    "seeding",
    "peer",
    "reading",
    "requests",
    "launches",
    "attention",
    "plans",
    "parts",
    "products",
    "check",
    "pair",
    "baseline",
)
# Modules of this package, each with an `app`.
PROGRAMS = {
    "at_once": "several requests at once beside plain batched decoding, in interleaved rounds",
    "completion": "held-out lines of a repository: accuracy and speed by what the prompt shows",
    "constrained": "answers by a JSON schema and required tool calls beside plain constrained decoding",
    "edits": "makes rows of whole-file edits from releases of packages, for a sweep",
    "editors": "suggestions as editors ask for them: the time that a running server takes",
    "engines": "longgraft beside other engines on one GGUF file",
    "recorded": "records answers, predictions and drafts for `longgraft estimate`",
}


def main(words: Sequence[str]) -> None:
    """Runs the case that the first word names with the other words as its options."""
    case, *options = words or ["--help"]
    if case in PROGRAMS:
        import_module(f"benchmarks.{case}").app(options, prog_name=f"{COMMAND} {case}")
    elif case in PARTS:
        import_module("benchmarks.part_commands").app(words, prog_name=COMMAND)
    elif case in ("-h", "--help"):
        print(usage())
    else:
        sys.exit(f"There is no benchmark {case}.\n{usage()}")


def usage() -> str:
    """Returns the list of cases."""
    lines = [f"Usage: {COMMAND} CASE [options]; `{COMMAND} CASE --help` explains a case.", ""]
    for name, summary in PROGRAMS.items():
        lines.append(f"  {name:12} {summary}")
    lines.append(f"\nSingle parts of a step, and checks of a machine: {', '.join(PARTS)}.")
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Plants small errors one at a time in a copy of the sources, and prints which of them no test notices.

    python tests/mutations.py [--part K/N] [NAME ...]
    python tests/mutations.py --changed [BASE] [--within PATH ...] [--tests test_x.py ...] [--minutes 10] [--seed 0]

The first plants the errors of the list in `planted/`; --part 1/20 the first, 21st, 41st and so on.

The second makes errors in the Python lines that changed since a commit (default: HEAD~1), as many as the minutes allow,
and runs the tests that execute these lines, the fastest first.  Which these are is recorded once, in `.mutants`.  That
takes as long as the tests do, the slow ones too: name the test files that matter.  Processes that a test starts are not
recorded.  C++ and other files that are not Python are left out.

Prints the seconds of each error and how many were noticed; exits with status 1 if one survives.  The copy is laid out
as the package is installed, and has neither `../shared` nor anything of the checkout but the tests.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

# tests/conftest.py does the same; the next import loads Triton.
os.environ.setdefault("TRITON_INTERPRET", str(int(not torch.cuda.is_available())))

import transformers.models.llama.modeling_llama  # noqa: F401 - the slowest import of the tests
from mutants.copy import ROOT, Copy
from planted import MUTATIONS, Mutation


def before_forks() -> None:
    """Prepares this process for forks that import changed files."""
    torch.set_num_threads(1)  # a forked process has none of its parent's threads
    # Files change within a second and may keep their length: compiled ones would go stale.
    sys.dont_write_bytecode = True


def survivors(mutations: Sequence[Mutation]) -> list[str]:
    """Returns the names of those that no test notices; raises ValueError if a test fails without any error."""
    before_forks()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        if not copy.passes({test for mutation in mutations for test in mutation.noticed.split()}):
            raise ValueError(f"A test fails without any error:\n{copy.output.read_text()}")
        for mutation in mutations:
            began = time.monotonic()
            with copy.planted(mutation):
                survived = copy.passes(mutation.noticed.split())
            seconds = time.monotonic() - began
            print(f"{'SURVIVES' if survived else 'noticed '}  {seconds:5.1f} s  {mutation.name}", flush=True)
            found += [mutation.name] * survived
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--part", default="1/1", metavar="K/N")
    parser.add_argument("--changed", nargs="?", const="HEAD~1", metavar="BASE")
    parser.add_argument("--within", nargs="+", default=(), metavar="PATH")
    parser.add_argument("--tests", nargs="+", default=(), metavar="FILE")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.changed is None:
        return planted(given, parser)
    from mutants.changed import Choice, hunt  # needs coverage.py

    before_forks()
    choice = Choice(given.changed, tuple(given.within), tuple(given.tests), given.minutes, given.seed)
    with tempfile.TemporaryDirectory() as folder:
        return 1 if hunt(ROOT, Path(folder), choice) else 0


def planted(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Plants errors of the list; returns the exit status."""
    part, _, parts = given.part.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        parser.error(f"--part is {given.part!r}. Give K/N with K from 1 to N, such as 1/20.")
    known = {mutation.name: mutation for mutation in MUTATIONS}
    if unknown := [name for name in given.names if name not in known]:
        near = [close for name in unknown for close in difflib.get_close_matches(name, known, cutoff=0.4)]
        print(f"No planted error is named {', '.join(unknown)}.\nNear: {', '.join(near) or 'none'}.", file=sys.stderr)
        return 2
    chosen, began = [known[name] for name in given.names or known][int(part) - 1 :: int(parts)], time.monotonic()
    alive = survivors(chosen)
    seconds = time.monotonic() - began
    print(
        f"{len(chosen) - len(alive)} of {len(chosen)} planted errors were noticed, in {seconds:.0f} s"
        + "".join(f"\n  survives: {name}" for name in alive)
    )
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

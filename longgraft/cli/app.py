"""The entry point.  It catches Ctrl-C, also while modules are loaded, so it imports nothing heavy at its top."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130  # a shell's exit status for a command that Ctrl-C ended
# Turns that a waiting OpenMP thread spins before it sleeps.  libgomp's default of 300,000 takes longer than
# a time slice: with another program on one of two cores, it made decoding nine times slower.
SPINS = "10000"


def main() -> None:
    """Runs the command line.  Ctrl-C gives one line on stderr and exit status 130."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read once, when torch is loaded
    try:
        from longgraft.cli.root import run

        code = run()
        if code == INTERRUPTED:  # typer catches Ctrl-C within a command, and prints nothing
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        print("longgraft: interrupted", file=sys.stderr)
        code = INTERRUPTED
    raise SystemExit(code)

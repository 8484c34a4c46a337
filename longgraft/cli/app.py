"""The entry point.  Catches Ctrl-C, also while modules are loaded; so it imports nothing heavy at its top."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130       # a shell's exit status of a command that Ctrl-C ended
# Turns that a waiting OpenMP thread spins before it sleeps.  libgomp's own 300,000 outlast a time slice: where another
# program has one of two cores, decoding was nine times slower by them.
SPINS = "10000"


def main() -> None:
    """Entry point.  Ctrl-C is one line on stderr and exit status 130."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)      # read once, when torch is loaded
    try:
        from longgraft.cli.root import run

        code = run()
        if code == INTERRUPTED:     # typer catches Ctrl-C within a command, and prints nothing
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        print("longgraft: interrupted", file=sys.stderr)
        code = INTERRUPTED
    raise SystemExit(code)


if __name__ == "__main__":
    main()

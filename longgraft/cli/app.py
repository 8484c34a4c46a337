"""The entry point.  Catches Ctrl-C, also while modules are loaded; so it imports nothing heavy at its top."""

from __future__ import annotations

import sys

INTERRUPTED = 130       # a shell's exit status of a command that Ctrl-C ended


def main() -> None:
    """Entry point.  Ctrl-C is one line on stderr and exit status 130."""
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

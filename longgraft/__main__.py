"""Runs the command line as `python -m longgraft`, for an environment whose scripts are not on the PATH."""

from longgraft.cli.app import main

if __name__ == "__main__":
    main()

"""A process that has imported the sources and their tests, and plants errors in the functions it holds.

Importing takes longer than most tests. So each error is planted in a fork of this process, by new code for the
functions that it changes. The file is changed, too: for modules that are imported later, and for other processes.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import CodeType, FunctionType

import pytest

from mutants.copy import OPTIONS, Copy

NOT_PLANTED = 78  # exit status: no function has this code, or its closure does not fit


class WarmCopy:
    """Runs pytest on a copy in forks of a process that has imported it."""

    def __init__(self, copy: Copy, test_files: Sequence[str]) -> None:
        self._pipe, other = get_context("fork").Pipe()
        self._process = get_context("fork").Process(target=serve, args=(copy, test_files, other))
        self._process.start()

    def run(self, arguments: Sequence[str], plugins: Sequence[object], seconds: float, path: str) -> int:
        """Like `Copy.run`, with the functions of a changed file; NOT_PLANTED if that needs an import."""
        self._pipe.send((arguments, plugins, seconds, path))
        return self._pipe.recv()

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join()


def serve(copy: Copy, test_files: Sequence[str], pipe: Connection) -> None:
    """Imports the copy and the tests; answers requests until there is None."""
    copy.enter()
    pytest.main([*OPTIONS, "--collect-only", *map(copy.test, test_files)])
    functions: defaultdict[str, list[FunctionType]] = defaultdict(list)
    gc.unfreeze()  # tests/conftest.py has frozen what it collected, which hides it
    for function in gc.get_objects():
        if isinstance(function, FunctionType):
            functions[function.__code__.co_filename].append(function)
    gc.freeze()  # collections in the forks would copy all memory
    while request := pipe.recv():
        arguments, plugins, seconds, path = request
        file = str(copy.root / path)
        pipe.send(copy.run(arguments, plugins, seconds, partial(plant, file, functions[file])))


def plant(file: str, functions: Sequence[FunctionType]) -> None:
    """Gives functions of a file the code that it has now; ends the process with NOT_PLANTED if that is impossible."""
    if all(getattr(module, "__file__", None) != file for module in list(sys.modules.values())):
        return  # imported later
    with open(file, encoding="utf-8") as source:
        codes = functions_of(compile(source.read(), file, "exec"))
    changed = 0
    for function in functions:
        code = codes.get((function.__code__.co_qualname, function.__code__.co_firstlineno), function.__code__)
        if code == function.__code__:
            continue
        if code.co_freevars != function.__code__.co_freevars:
            os._exit(NOT_PLANTED)
        function.__code__ = code
        changed += 1
    if not changed:
        os._exit(NOT_PLANTED)


def functions_of(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """Returns all code objects inside of one by qualified name and first line."""
    found = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found[constant.co_qualname, constant.co_firstlineno] = constant
            found.update(functions_of(constant))
    return found

"""Definitions and imports of a Python file, by Python's own parser.

At a cursor few files parse, so lines with syntax errors are removed until the rest is valid Python.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import deque
from collections.abc import Iterator, Sequence

from longgraft.completion.repository.symbols import LINE_END, Definition, Import

REPAIRS = 16            # most lines that are changed to make a file parse
REPARSED = 1_000_000    # most characters that are parsed again for that
# An import statement, for files that cannot be parsed.
IMPORT = re.compile(r"^[ \t]*(from[ \t]+[.\w]+[ \t]+import[ \t]+(?:\([^)]*\)|[^\n(]+)|import[ \t]+[^\n]+)",
                    re.MULTILINE)


def repaired(text: str) -> ast.Module | None:
    """Returns the tree of a Python file without its lines with syntax errors; None if they are too many."""
    lines = LINE_END.split(text)
    for _ in range(min(REPAIRS, 1 + REPARSED // (len(text) + 1))):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse("\n".join(lines) + "\n")
        except SyntaxError as error:
            _repair(lines, min(error.lineno or 1, len(lines)) - 1, str(error.msg))
        except (ValueError, RecursionError, MemoryError):      # the last two: nested too deeply
            return None
    return None


def _repair(lines: list[str], at: int, error: str) -> None:
    """Gives a header without a block a block; otherwise removes the reported line, or the nearest non-blank
    one above."""
    header = re.search(r"expected an indented block after .* on line (\d+)", error)
    if header:
        place = int(header[1]) - 1
        colon = re.fullmatch(r"(.*:)\s*(?:#.*)?", lines[place])
        if colon:
            lines[place] = colon[1] + " pass"
            return
    while at > 0 and not lines[at].strip():
        at -= 1
    line = lines[at]
    lines[at] = "" if line.strip() == "pass" else line[:_indent(line)] + "pass"


def definitions(body: Sequence[ast.stmt], owner: str = "") -> Iterator[Definition]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
            inner = node.body[0]
            documented = isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant) and isinstance(
                inner.value.value, str)
            head = max(inner.lineno - 1, node.lineno)
            if documented:
                head = inner.end_lineno or inner.lineno
            last = node.end_lineno or node.lineno
            if not isinstance(node, ast.ClassDef):
                yield Definition(node.name, first, last, min(head, last), "function", owner)
                continue
            # The lines before the first method hold the class's fields.
            methods = [inner for inner in node.body
                       if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef))]
            if methods:
                head = max(head, min([methods[0].lineno, *(m.lineno for m in methods[0].decorator_list)]) - 1)
            else:
                head = last
            bases = tuple(ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases)
            yield Definition(node.name, first, last, head, "class", owner, bases)
            if not owner:
                yield from definitions(node.body, node.name)
        elif isinstance(node, (ast.If, ast.Try, ast.With)) and not owner:
            for part in ("body", "orelse", "finalbody"):
                yield from definitions(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from definitions(handler.body)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and not owner:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        last = node.end_lineno or node.lineno
                        yield Definition(name.id, node.lineno, last, last, "value")


def imports(tree: ast.Module) -> Iterator[Import]:
    """Yields all imports, also those within functions, outer ones first."""
    pending: deque[ast.AST] = deque([tree])
    while pending:      # statements only: ast.walk would visit every expression, too
        node = pending.popleft()
        for block in ("body", "handlers", "orelse", "finalbody", "cases"):
            pending.extend(getattr(node, block, ()))
        if isinstance(node, ast.Import):
            for alias in node.names:
                line = f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
                yield Import(alias.name, 0, (), line, alias.asname or alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                yield Import(node.module or "", node.level, ((alias.name, alias.asname or alias.name),),
                             f"from {module} import {alias.name}")


def imports_by_statement(text: str) -> Iterator[Import]:
    """Yields the imports of a file that cannot be repaired; each statement is parsed by itself."""
    for statement in IMPORT.findall(text):
        tree = repaired(statement)
        if tree is not None:
            yield from imports(tree)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())

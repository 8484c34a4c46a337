"""Checks docstrings, test names and guides against patterns of language that made them hard to read."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
KNOWS = re.compile(r"\bKnows\b|\bknows (no|nothing|neither)\b")
OPENING = re.compile(r"(Of|What|Where|How|Whether|As)\b")
SENTENCE = re.compile(r"(?:^|[.:!?] )(Of|What|Where|Whether)\b (?!.*\?)")
TEST_NAME = re.compile(r"test_(of|what|where)_")


def python_violations(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            line, text = getattr(node, "lineno", 1), ast.get_docstring(node) or ""
            if OPENING.match(text):
                yield line, f"the docstring begins with {text.split()[0]!r}; begin it with a noun or a verb"
            if KNOWS.search(text):
                yield line, "the docstring says what the code knows; tests/whole/test_layout.py checks the imports"
            if TEST_NAME.match(getattr(node, "name", "")):
                yield line, f"the name {node.name} does not say the unit and its behaviour"


def markdown_violations(path: Path) -> Iterator[tuple[int, str]]:
    prose = re.sub(r"^```.*?^```$", lambda code: "\n" * code[0].count("\n"), path.read_text(), flags=re.M | re.S)
    for number, line in enumerate(prose.splitlines(), 1):
        if not line.startswith(("#", "|")) and (found := SENTENCE.search(line.lstrip("-* "))):
            yield number, f"a sentence begins with {found[1]!r}; use the ordinary word order"


def violations() -> Iterator[str]:
    """Yields "file:line: complaint" for the Python files and guides of this checkout."""
    folders = "longgraft", "yarn_drafters", "prefill", "eval", "benchmarks", "tests", "docs"
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.[pm][yd]")]
    for path in sorted([*files, *ROOT.glob("*.md")]):
        check = python_violations if path.suffix == ".py" else markdown_violations
        yield from (f"{path.relative_to(ROOT)}:{line}: {complaint}" for line, complaint in check(path))


def test_docstrings_test_names_and_guides_are_plain_english():
    assert not (found := list(violations())), "\n".join(found)

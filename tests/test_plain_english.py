"""Checks docstrings, test names and guides against patterns of language that made them hard to read.

`plain_english.json` has the violations left per package, which may only go down. Run this file as a script to print
all violations and to lower the counts to those found."""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT, LEFT = Path(__file__).parents[1], Path(__file__).with_name("plain_english.json")
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
                yield line, "the docstring says what the code knows; tests/test_layout.py checks the imports"
            if TEST_NAME.match(getattr(node, "name", "")):
                yield line, f"the name {node.name} does not say the unit and its behaviour"


def markdown_violations(path: Path) -> Iterator[tuple[int, str]]:
    prose = re.sub(r"^```.*?^```$", lambda code: "\n" * code[0].count("\n"), path.read_text(), flags=re.M | re.S)
    for number, line in enumerate(prose.splitlines(), 1):
        if not line.startswith(("#", "|")) and (found := SENTENCE.search(line.lstrip("-* "))):
            yield number, f"a sentence begins with {found[1]!r}; use the ordinary word order"


def violations() -> Iterator[tuple[str, str]]:
    """Yields (package, "file:line: complaint") for the Python files and guides of this checkout."""
    folders = "longgraft", "yarn_drafters", "prefill", "eval", "benchmarks", "tests", "docs"
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.[pm][yd]")]
    for path in sorted([*files, *ROOT.glob("*.md")]):
        check = python_violations if path.suffix == ".py" else markdown_violations
        name = path.relative_to(ROOT)
        package = "/".join(name.parts[:-1][:1 + (name.parts[0] == "longgraft")]) or "README and others"
        yield from ((package, f"{name}:{line}: {complaint}") for line, complaint in check(path))


def test_no_package_has_more_violations_than_its_count():
    left, found = json.loads(LEFT.read_text()), list(violations())
    over = {name for name, count in Counter(name for name, _ in found).items() if count > left.get(name, 0)}
    assert not over, "\n".join(["Too many violations:", *(place for name, place in found if name in over)])


if __name__ == "__main__":
    left, found = json.loads(LEFT.read_text()), list(violations())
    print("\n".join(place for _, place in found))
    counts = Counter(name for name, _ in found)
    LEFT.write_text(json.dumps({name: min(left[name], counts[name]) for name in left if counts[name]}, indent=1) + "\n")

"""The files of the package, and the code in its documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAPPED = {"yarn_drafters": "longgraft.yarn_drafters", "prefill": "longgraft.prefill", "eval": "longgraft.eval"}

# Of docs/adding-a-method.md: (language, text) of each block of code, and the Python ones by what they are.
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs/adding-a-method.md").read_text(), re.DOTALL)
METHOD_FILE, IN_PYTHON, TEST_FILE, CHOICES_FILE = (text for language, text in BLOCKS if language == "python")


def modules() -> Iterator[tuple[str, Path]]:
    """(dotted name, path) of every file of the package."""
    for folder, name in [("longgraft", "longgraft"), *MAPPED.items(), ("benchmarks", "benchmarks")]:
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join([name, *parts]).removesuffix(".__init__"), path

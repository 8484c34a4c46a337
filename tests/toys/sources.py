"""The files of the package, and the code in its documents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAPPED = {"yarn_drafters": "longgraft.yarn_drafters", "prefill": "longgraft.prefill", "eval": "longgraft.eval"}
# Compares, measures and trains; `import longgraft`, `load`, `generate` and `serve` need none of it.
LABORATORY = ("longgraft.zoo", "longgraft.eval", "longgraft.yarn_drafters.training", "benchmarks")

# The code blocks of docs/adding-a-method.md as (language, text), and its four Python blocks by name.
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs/adding-a-method.md").read_text(), re.DOTALL)
METHOD_FILE, IN_PYTHON, TEST_FILE, CHOICES_FILE = (text for language, text in BLOCKS if language == "python")


def own_rows(path: Path) -> Path:
    """Writes rows with this repository's sources as prompts and their next characters as recorded continuations."""
    names = ("engine/session", "trees/tree", "methods/combinators", "methods/find")
    texts = {name: (ROOT / f"longgraft/{name}.py").read_text() for name in names}
    path.write_text(
        "".join(
            json.dumps({"_id": name, "text": text[:2200], "continuation": text[2200:2300]}) + "\n"
            for name, text in texts.items()
        )
    )
    return path


def modules() -> Iterator[tuple[str, Path]]:
    """Yields (dotted name, path) of every file of the package."""
    for folder, name in [("longgraft", "longgraft"), *MAPPED.items(), ("benchmarks", "benchmarks")]:
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join([name, *parts]).removesuffix(".__init__"), path

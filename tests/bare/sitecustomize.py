"""Hides packages that a lent GPU machine does not have; in a folder of PYTHONPATH, Python imports it at its start."""

from __future__ import annotations

import re
import sys
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

# Of the machine's packages, those that longgraft or its tests may import; and what `benchmarks/gpu/pack.sh` carries.
THERE = (
    "accelerate",
    "filelock",
    "hypothesis",
    "jinja2",
    "matplotlib",
    "numpy",
    "pathspec",
    "prometheus-client",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "rich",
    "setuptools",
    "torch",
    "tqdm",
    "transformers",
    "triton",
)
CARRIED = ("gguf", "greenlet", "pydantic", "typer")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _with_needs(names: tuple[str, ...]) -> set[str]:
    """Returns these distributions and all that they need."""
    found, rest = set[str](), list(names)
    while rest:
        name = _normal(rest.pop())
        if name in found:
            continue
        found.add(name)
        try:
            needs = requires(name) or []
        except PackageNotFoundError:
            continue
        rest += [re.match(r"[\w.-]+", need)[0] for need in needs if "extra ==" not in need]
    return found


KNOWN = _with_needs(THERE + CARRIED) | {"longgraft"}
HIDDEN = {module for module, owners in packages_distributions().items() if KNOWN.isdisjoint(map(_normal, owners))}


class _WithoutHidden:
    """A finder of modules and distributions that does not find the hidden ones."""

    def __init__(self, finder) -> None:
        self.finder = finder

    def __getattr__(self, name: str):
        return getattr(self.finder, name)

    def find_spec(self, name: str, path=None, target=None):
        return None if name in HIDDEN else self.finder.find_spec(name, path, target)

    def find_distributions(self, *args):
        for one in self.finder.find_distributions(*args):
            if _normal(one.metadata["Name"]) in KNOWN:
                yield one


sys.meta_path[:] = [_WithoutHidden(finder) if finder is PathFinder else finder for finder in sys.meta_path]

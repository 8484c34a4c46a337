"""The examples in docstrings of public names run, and show what they say."""

from __future__ import annotations

import doctest

import pytest
import torch

from longgraft import loading, transformers_generate
from longgraft.completion import completer
from longgraft.engine import generation_request, request, session
from longgraft.methods import method
from longgraft.prefill import prefixes
from longgraft.protocol import memory
from longgraft.trees import tree

MODULES = (
    loading,
    transformers_generate,
    completer,
    generation_request,
    request,
    session,
    method,
    prefixes,
    memory,
    tree,
)
PUBLIC = (
    "load",
    "generate",
    "custom_generate",
    "complete",
    "GenerationRequest",
    "Request",
    "Session.generate",
    "Session.stream",
    "Method",
    "Prefixes",
    "Memory",
    "ProposalTree",
)


def examples() -> dict[str, doctest.DocTest]:
    """Returns the docstrings that have examples, by the name of their class or function."""
    by_name = {}
    for module in MODULES:
        for docstring in doctest.DocTestFinder().find(module):
            if docstring.examples:
                by_name[docstring.name.removeprefix(f"{module.__name__}.")] = docstring
    return by_name


EXAMPLES = examples()


def test_every_public_name_has_an_example():
    assert sorted(EXAMPLES) == sorted(PUBLIC)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_in_a_docstring_shows_what_it_says(name, tmp_path, monkeypatch):
    """The embedded pair answers; files are written in an empty folder."""
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    report: list[str] = []
    failures = doctest.DocTestRunner().run(EXAMPLES[name], out=report.append).failed
    assert not failures, "".join(report)

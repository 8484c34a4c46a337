"""Outlines a file: its definitions and imports, by the best parser for its language."""

from __future__ import annotations

from posixpath import splitext

from longgraft.completion.repository.languages import family, grammar
from longgraft.completion.repository.python_outline import definitions, imports, imports_by_statement, repaired
from longgraft.completion.repository.symbols import Outline
from longgraft.completion.repository.tree_sitter_outline import by_grammar, by_words


def outline(path: str, text: str) -> Outline:
    """Outlines a text, which need not parse; imports are found only for Python (`other_imports` finds the others')."""
    if family(path) == "python":
        tree = repaired(text)
        if tree is not None:
            return Outline(tuple(definitions(tree.body)), tuple(imports(tree)))
        return Outline(tuple(by_words(path, text)), tuple(imports_by_statement(text)))
    parser = grammar(splitext(path)[1].lower())
    return Outline(tuple(by_words(path, text) if parser is None else by_grammar(text.encode(), *parser)))

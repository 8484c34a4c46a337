"""Definitions and imports of a file's text, by the best parser that its language has."""

from __future__ import annotations

from posixpath import splitext

from longgraft.completion.repository.languages import family, grammar
from longgraft.completion.repository.python_outline import definitions, imports, imports_by_statement, repaired
from longgraft.completion.repository.symbols import Outline
from longgraft.completion.repository.tree_sitter_outline import by_grammar, by_words


def outline(path: str, text: str) -> Outline:
    """Of a text that need not parse; imports of Python files alone (`other_imports` finds the others')."""
    if family(path) == "python":
        if (tree := repaired(text)) is not None:
            return Outline(tuple(definitions(tree.body)), tuple(imports(tree)))
        return Outline(tuple(by_words(path, text)), tuple(imports_by_statement(text)))
    known = grammar(splitext(path)[1].lower())
    return Outline(tuple(by_words(path, text) if known is None else by_grammar(text.encode(), *known)))

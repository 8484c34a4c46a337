"""Definitions in languages other than Python: by the tree-sitter grammar if installed, else by keywords and
indentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from longgraft.completion.repository.languages import heads
from longgraft.completion.repository.symbols import Definition

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Query

COMMENTS = ("//", "/*", "*", "#[", "@", "///")
# Types of nodes around a tagged node that belong to the same definition.
_WRAPPERS = frozenset((
    "export_statement", "function_definition", "declaration", "pointer_declarator", "reference_declarator",
    "parenthesized_declarator", "function_declarator", "template_declaration", "type_declaration",
    "lexical_declaration", "variable_declaration", "variable_declarator", "const_declaration",
    "var_declaration", "expression_statement",
    "assignment_expression", "type_definition", "field_declaration", "ambient_declaration"))
_CLASSES = frozenset(("class", "interface", "implementation"))


def by_grammar(text: bytes, language: Language, tags: Query) -> Iterator[Definition]:
    """Yields the definitions that a grammar's tags name, each with the comment above it."""
    from tree_sitter import Parser, QueryCursor

    root = Parser(language).parse(text).root_node
    lines = text.split(b"\n")
    definitions: dict[tuple[int, int, str], Definition] = {}
    for _, captured in QueryCursor(tags).matches(root):
        kind = next((key.split(".")[1] for key in captured if key.startswith("definition.")), "")
        if not kind or "name" not in captured:
            continue
        name = captured["name"][0]
        node = captured[f"definition.{kind}"][0]
        while node.parent is not None and node.parent.type in _WRAPPERS:
            node = node.parent
        owner = _owner(node)
        if _within_function(node):
            continue
        first = node.start_point[0] + 1
        last = node.end_point[0] + (node.end_point[1] > 0)
        body = _body(node)
        head = last
        if body is not None:
            head = min(last, max(first, body.start_point[0] + 1))
        while first > 1 and lines[first - 2].strip().decode(errors="replace").startswith(COMMENTS):
            first -= 1
        if kind in _CLASSES:
            sort = "class"
        elif kind in ("function", "method", "macro"):
            sort = "function"
        else:
            sort = "value"
        called = _text(name)
        definitions.setdefault((first, last, called), Definition(called, first, last, head, sort, owner))
    for place in sorted(definitions):       # (first line, last line, name)
        yield definitions[place]


def _body(node: Node) -> Node | None:
    """Returns the body of a definition, also within a declarator."""
    for _ in range(4):
        body = node.child_by_field_name("body")
        if body is not None:
            return body
        inner = [child for child in node.named_children if child.type in _WRAPPERS
                 or child.child_by_field_name("body")
                 or child.child_by_field_name("value")]
        if not inner:
            value = node.child_by_field_name("value")
            if value is None:
                return None
            return value.child_by_field_name("body")
        node = inner[-1]
    return None


_OWNERS = frozenset(("class_declaration", "class", "abstract_class_declaration", "interface_declaration",
                     "impl_item", "trait_item", "class_specifier", "struct_specifier", "enum_declaration",
                     "record_declaration"))
_BLOCKS = frozenset(("statement_block", "block", "compound_statement"))


def _owner(node: Node) -> str:
    """Returns the name of the class around a node, or ""."""
    while (node := node.parent) is not None:    # type: ignore[assignment]
        if node.type in _OWNERS:
            name = node.child_by_field_name("name") or node.child_by_field_name("type")
            if name is None:
                return ""
            return _text(name)
    return ""


def _text(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")


def _within_function(node: Node) -> bool:
    """True if a node is local to a function; a definition in a namespace or module is not."""
    while (node := node.parent) is not None:    # type: ignore[assignment]
        if node.type in _BLOCKS and node.parent is not None and node.parent.type not in (
                "internal_module", "module", "mod_item", "namespace_definition"):
            return True
    return False


def by_words(path: str, text: str) -> Iterator[Definition]:
    """Yields definitions found by keywords; each ends before a line that is not indented more, or at its
    closing bracket.
    """
    lines = text.split("\n")
    for name, start in heads(path, text):
        first = text.count("\n", 0, start) + 1
        if first > len(lines):
            continue
        indent = _indent(lines[first - 1])
        last = first
        for number in range(first, min(len(lines), first + 200)):
            line = lines[number]
            if line.strip() and _indent(line) <= indent:
                if re.match(r"\s*(?:[\])}]|end\b)", line):
                    last = number + 1
                break
            if line.strip():
                last = number + 1
        kind = "function"
        if last - first > 40:
            kind = "class"
        yield Definition(name, first, last, first, kind)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())

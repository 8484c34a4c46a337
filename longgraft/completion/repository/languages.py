"""Languages by file suffix: they tell which files can import one another, and which grammar parses them.

An unlisted suffix is its own language; its definitions are found only by keywords and indentation.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from posixpath import splitext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Language, Query

FAMILIES = {suffix: family for family, suffixes in {
    "python": ".py .pyi .pyx .pxd", "javascript": ".js .jsx .mjs .cjs .ts .tsx .mts .cts .vue .svelte",
    "c": ".c .h .cc .cpp .cxx .c++ .hh .hpp .hxx .h++ .inl .ipp .cu .cuh .m .mm", "go": ".go", "rust": ".rs",
    "java": ".java .kt .kts .scala .groovy", "yaml": ".yaml .yml", "html": ".html .htm .jinja .j2 .jinja2",
    "markdown": ".md .mdx .markdown", "shell": ".sh .bash .zsh", "ruby": ".rb .rake .gemspec",
    "css": ".css .scss .sass .less", "csharp": ".cs", "elixir": ".ex .exs", "perl": ".pl .pm"}.items()
    for suffix in suffixes.split()}

# (package, its function, other packages with tags for this grammar)
GRAMMARS = {suffix: grammar for suffixes, grammar in (
    (".js .jsx .mjs .cjs", ("tree_sitter_javascript", "language", ())),
    (".ts .mts .cts", ("tree_sitter_typescript", "language_typescript", ("tree_sitter_javascript",))),
    (".tsx", ("tree_sitter_typescript", "language_tsx", ("tree_sitter_javascript",))),
    (".go", ("tree_sitter_go", "language", ())), (".rs", ("tree_sitter_rust", "language", ())),
    (".java", ("tree_sitter_java", "language", ())), (".c", ("tree_sitter_c", "language", ())),
    (".h .cc .cpp .cxx .hh .hpp .hxx .inl .cu .cuh", ("tree_sitter_cpp", "language", ())))
    for suffix in suffixes.split()}
# Queries for definitions that the packages' own tags lack.
MORE_TAGS = {
    "tree_sitter_typescript": """(type_alias_declaration name: (type_identifier) @name) @definition.type
                                 (enum_declaration name: (identifier) @name) @definition.class""",
    "tree_sitter_javascript": "(variable_declarator name: (identifier) @name) @definition.constant",
    "tree_sitter_go": """(const_spec name: (identifier) @name) @definition.constant
                         (var_spec name: (identifier) @name) @definition.constant""",
    "tree_sitter_rust": """(const_item name: (identifier) @name) @definition.constant
                           (static_item name: (identifier) @name) @definition.constant""",
    "tree_sitter_java": """(enum_declaration name: (identifier) @name) @definition.class
                           (record_declaration name: (identifier) @name) @definition.class
                           (constructor_declaration name: (identifier) @name) @definition.method""",
    "tree_sitter_c": "(preproc_function_def name: (identifier) @name) @definition.macro",
    "tree_sitter_cpp": "(preproc_function_def name: (identifier) @name) @definition.macro"}

_MODIFIERS = (r"export|default|pub(?:\([\w:]+\))?|public|private|protected|internal|static|final|abstract|async|sealed|"
              r"open|override|declare|inline|unsafe|extern|data|partial|readonly|virtual")
# With one anchor and without an optional group, which Python's engine searches faster.
_PYTHON = re.compile(r"^(?:[ \t]*(?:async[ \t]+|)(?:def|class)[ \t]+(\w+)|([A-Za-z_]\w*)[ \t]*(?::[^=\n]+)?=(?!=))",
                     re.MULTILINE)
# Names that a line seems to define: after a keyword, as a C function or a Java method, or by assignment.
_ANY = re.compile("|".join((
    rf"^[ \t]*(?:(?:{_MODIFIERS})[ \t]+)*"
    r"(?:def|class|function\*?|func|fn|fun|struct|enum|union|trait|interface|type|typedef|object|record|protocol|module|"
    r"namespace|const|let|var|val|static|macro|defp|defmodule|defmacro|sub|#define)[ \t]+"
    r"(?:\([^()\n]*\)[ \t]*|mut[ \t]+)?(?:self\.)?(\w+)",
    rf"^[ \t]*(?:(?:{_MODIFIERS})[ \t]+)+[\w<>\[\],.?]{{1,80}}[ \t]+(\w+)[ \t]*\(",
    r"^[A-Za-z_][\w<>:,]{0,80}(?:[ \t*&]+[\w<>:,]{1,80}){0,4}?[ \t*&]+(?:\w+::)?(\w+)[ \t]*\(",
    r"^([A-Za-z_]\w*)[ \t]*(?::[^=\n]+)?=(?!=)")), re.MULTILINE)


@lru_cache(maxsize=1 << 16)
def family(path: str) -> str:
    """Returns the family of languages of a file; files of one family can import one another."""
    stem, suffix = splitext(path.lower())
    return FAMILIES.get(suffix, suffix or stem.rsplit("/", 1)[-1])


def heads(path: str, text: str) -> Iterator[tuple[str, int]]:
    """Yields (name, offset in the text) of what seems to be defined: faster than parsing, and sometimes wrong."""
    for match in (_PYTHON if family(path) == "python" else _ANY).finditer(text):
        yield match[match.lastindex or 0], match.start()


@cache
def grammar(suffix: str) -> tuple[Language, Query] | None:
    """Returns (grammar, tags) for a suffix; None if no grammar is known or installed."""
    if suffix not in GRAMMARS:
        return None
    package, function, more_tags = GRAMMARS[suffix]
    try:
        import tree_sitter
        modules = [importlib.import_module(name) for name in (package, *more_tags)]
    except ImportError:
        return None
    language = tree_sitter.Language(getattr(modules[0], function)())
    tags = "\n".join(module.TAGS_QUERY + MORE_TAGS.get(module.__name__, "") for module in modules)
    return language, tree_sitter.Query(language, tags)

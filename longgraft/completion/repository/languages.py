"""Families of languages by file suffix: files of one family are shown to one another.

An unlisted suffix is its own language.
"""

from __future__ import annotations

from functools import lru_cache
from posixpath import splitext

FAMILIES = {
    suffix: family
    for family, suffixes in {
        "python": ".py .pyi .pyx .pxd",
        "javascript": ".js .jsx .mjs .cjs .ts .tsx .mts .cts .vue .svelte",
        "c": ".c .h .cc .cpp .cxx .c++ .hh .hpp .hxx .h++ .inl .ipp .cu .cuh .m .mm",
        "go": ".go",
        "rust": ".rs",
        "java": ".java .kt .kts .scala .groovy",
        "yaml": ".yaml .yml",
        "html": ".html .htm .jinja .j2 .jinja2",
        "markdown": ".md .mdx .markdown",
        "shell": ".sh .bash .zsh",
        "ruby": ".rb .rake .gemspec",
        "css": ".css .scss .sass .less",
        "csharp": ".cs",
        "elixir": ".ex .exs",
        "perl": ".pl .pm",
    }.items()
    for suffix in suffixes.split()
}


@lru_cache(maxsize=1 << 16)
def family(path: str) -> str:
    """Returns the family of languages of a file."""
    stem, suffix = splitext(path.lower())
    return FAMILIES.get(suffix, suffix or stem.rsplit("/", 1)[-1])

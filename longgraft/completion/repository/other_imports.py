"""Files of a repository that a file imports in JavaScript, TypeScript, C, C++, Go, Rust or Java.

Regular expressions find the import lines; a bundler's path aliases are guessed from the ends of paths.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from posixpath import commonpath, dirname, join, normpath, splitext

from longgraft.completion.repository.languages import FAMILIES, family

_SUFFIXES = (".ts", ".tsx", ".js", ".jsx", ".mjs", ".cjs", ".d.ts", ".vue", ".svelte", "/index.ts",
             "/index.tsx", "/index.js", "/index.mjs")
_JAVASCRIPT = re.compile(r"""(?:\b(?:import|export)\s+(?:type\s+)?([\w*{},\s$]*?)\s*from\s*|\bimport\s*\(?\s*"""
                         r"""|(?:\b(?:const|let|var)\s+([\w{},\s:$]+?)\s*=\s*)?\brequire\s*\(\s*)['"]([^'"\n]+)['"]""")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_GO = re.compile(r'^(?:import)?[ \t]*(?:import[ \t]+)?(?:[\w.]+[ \t]+)?"([\w./-]+)"[ \t]*$', re.MULTILINE)
_RUST = re.compile(r"^[ \t]*(?:pub(?:\(\w+\))?[ \t]+)?"
                   r"(?:use[ \t]+((?:crate|super|self|\w+)::[^;]{1,2000}+)|mod[ \t]+(\w+))[ \t]*;",
                   re.MULTILINE)
_JAVA = re.compile(r"^[ \t]*import[ \t]+(?:static[ \t]+)?([\w.]+)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_$][\w$]*")


def linked(path: str, text: str, paths: Collection[str]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yields (imported file, imported names or () if it may be all, the import line)."""
    find = {"javascript": _javascript, "c": _c, "go": _go, "rust": _rust, "java": _java}.get(family(path))
    if find is None:
        return
    for line, names, files in find(path, text, paths):
        for file in files:
            if file != path:
                yield file, tuple(names), " ".join(line.split()) + ")" * (line.count("(") - line.count(")"))


_Found = Iterator[tuple[str, list[str], list[str]]]


def _javascript(path: str, text: str, paths: Collection[str]) -> _Found:
    for match in _JAVASCRIPT.finditer(text):
        names = [name for name in _NAME.findall(match[1] or match[2] or "")
                 if name not in ("as", "type", "default")]
        module = match[3]
        if module.startswith("."):
            target = normpath(join(dirname(path), module))
            stem, suffix = splitext(target)
            stems = [target]
            if suffix in (".js", ".mjs", ".cjs", ".jsx"):
                stems.append(stem)
            tries = (target, *(stem + end for stem in stems for end in _SUFFIXES))
            yield match[0], names, [file for file in tries if file in paths][:1]
        elif re.match(r"[@~#]?/|src/|#", module):
            yield match[0], names, _nearest(re.sub(r"^[@~#]?/", "", module), _SUFFIXES, path, paths)


def _c(path: str, text: str, paths: Collection[str]) -> _Found:
    for match in _INCLUDE.finditer(text):
        relative = match[1]
        if dirname(path):
            relative = normpath(f"{dirname(path)}/{match[1]}")
        files = [relative]
        if relative not in paths:
            files = _nearest(match[1], ("",), path, paths)
        yield match[0], [], files
    stem = splitext(path)[0]
    same = [stem + suffix for suffix in FAMILIES if FAMILIES[suffix] == "c" and stem + suffix in paths]
    yield "the other half of " + path.rsplit("/", 1)[-1], [], same


def _go(path: str, text: str, paths: Collection[str]) -> _Found:
    folders = {dirname(file) for file in paths}
    for match in _GO.finditer(text):
        matches = [folder for folder in folders if folder and f"/{match[1]}".endswith(f"/{folder}")]
        folder = max(matches, key=len, default=None)
        files = [file for file in sorted(paths) if dirname(file) == folder and not file.endswith("_test.go")]
        yield match[0], [], files
    yield "of the same package", [], [file for file in sorted(paths) if dirname(file) == dirname(path)]


def _rust(path: str, text: str, paths: Collection[str]) -> _Found:
    root = path[:path.rindex("src/") + 4] if "src/" in path else dirname(path) + "/"
    stem = path.removesuffix("/mod.rs").removesuffix(".rs")
    folder = stem
    if path.endswith(("/lib.rs", "/main.rs")):
        folder = dirname(path)
    for match in _RUST.finditer(text):
        if match[2]:
            tries = [f"{folder}/{match[2]}.rs", f"{folder}/{match[2]}/mod.rs"]
            yield match[0], [], [name for name in tries if name in paths][:1]
            continue
        parts, _, group = match[1].partition("{")
        modules = [part for part in parts.replace(" ", "").split("::") if part]
        base = {"self": folder, "super": dirname(folder)}.get(modules[0], root.rstrip("/"))
        for end in range(len(modules), 0, -1):
            file = "/".join([base, *modules[1:end]])
            files = [name for name in (f"{file}.rs", f"{file}/mod.rs") if name in paths]
            if files:
                yield match[0], [*modules[end:], *_NAME.findall(group)], files[:1]
                break


def _java(path: str, text: str, paths: Collection[str]) -> _Found:
    for match in _JAVA.finditer(text):
        name = match[1].strip(".").replace(".", "/")
        for target in (name, dirname(name)):        # a static import names a member of a class
            files = list[str]()
            if "/" in target:
                files = _nearest(target, (".java", ".kt", ".scala", ".groovy"), path, paths)
            if files:
                yield match[0], [target.rsplit("/", 1)[-1]], files
                break
    yield "of the same package", [], [file for file in sorted(paths) if dirname(file) == dirname(path)]


def _nearest(target: str, suffixes: tuple[str, ...], path: str, paths: Collection[str]) -> list[str]:
    """Returns the file nearest to the importing one, among those whose path ends in the target and a suffix."""
    ends = tuple("/" + target + suffix for suffix in suffixes)
    matches = [file for file in paths if f"/{file}".endswith(ends)]
    return sorted(matches, key=lambda file: (-len(commonpath((file, path))), len(file), file))[:1]

"""Definitions and imports of source files, also of files that are being written."""

from __future__ import annotations

import time
import timeit
import warnings

import pytest

import longgraft.completion.repository.outline as outlines
from longgraft.completion.repository.languages import GRAMMARS, grammar
from longgraft.completion.repository.other_imports import linked
from longgraft.completion.repository.outline import outline
from longgraft.completion.repository.python_imports import Modules

PYTHON = '''import os
from .near import (one,
                   two as second)

LIMIT: int = 3

@mark
class Cache(Base[int], other.More):
    """Of things."""
    size = 1

    def keep(self, path):
        """Commits."""
        return path

try:
    import fast
except ImportError:
    def fallback(): pass
'''


def named(text, path="a.py"):
    return {f"{found.owner}.{found.name}".strip("."): (found.first, found.head, found.last)
            for found in outline(path, text).definitions}


def test_the_outline_of_a_python_file_has_decorators_docstrings_and_owners():
    assert named(PYTHON) == {"LIMIT": (5, 5, 5), "Cache": (7, 11, 14), "Cache.keep": (12, 13, 14),
                             "fallback": (19, 19, 19)}
    found = outline("a.py", PYTHON)
    assert found.named("Cache")[0].bases == ("Base", "More")
    assert [(one.module, one.level, one.names) for one in found.imports] == [
        ("os", 0, ()), ("near", 1, (("one", "one"),)), ("near", 1, (("two", "second"),)), ("fast", 0, ())]


def test_an_imported_module_has_the_name_that_the_file_gives_it():
    found = outline("a.py", "import numpy as np\nimport os.path\n").imports
    assert [(one.module, one.alias, one.line) for one in found] == [
        ("numpy", "np", "import numpy as np"), ("os.path", "os.path", "import os.path")]


@pytest.mark.parametrize("line, broken", [(14, "        return path.keep("), (14, "        if path:"),
                                          (12, "    def keep(self,"),
                                          (10, "    size ="), (10, "    size = [1, {")])
def test_a_broken_line_loses_little_of_a_python_files_outline(line, broken):
    lines = PYTHON.split("\n")
    lines[line - 1] = broken
    whole, found = outline("a.py", PYTHON), outline("a.py", "\n".join(lines))
    assert len(found.imports) == len(whole.imports) and {"LIMIT", "Cache"} <= {one.name for one in found.definitions}


def test_a_definition_without_a_body_is_found():
    assert named("def f(a):\n\ndef g(): pass\n") == {"f": (1, 1, 1), "g": (3, 3, 3)}


@pytest.mark.parametrize("behind", ["  ", "  # why: it is new", "#"])
def test_an_unfinished_definition_is_found_whatever_stands_behind_its_colon(behind):
    assert named(f"def f(a):{behind}\n\ndef g(): pass\n") == {"f": (1, 1, 1), "g": (3, 3, 3)}


def test_a_warning_of_the_parser_is_not_passed_on():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert named("pattern = '\\d'\n") == {"pattern": (1, 1, 1)}


def test_text_that_the_parser_gives_up_on_is_parsed_once(monkeypatch):
    tried = []

    def gives_up(text):
        tried.append(text)
        raise RecursionError
    with monkeypatch.context() as patched:
        patched.setattr("ast.parse", gives_up)
        found = outline("a.py", "def f(): pass\n").definitions
    assert [one.name for one in found] == ["f"] and len(tried) == 1


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_a_file_with_any_line_ends_and_an_unfinished_block_has_an_outline(line_end):
    lines = ("def f(x):", "    return x", "", "class A:", "    def g(self):", "        if x:", "")
    assert named(line_end.join(lines)) == {"f": (1, 1, 2), "A": (4, 4, 6), "A.g": (5, 5, 6)}


@pytest.mark.parametrize("deep", ["-" * 7000 + "1", "+".join("a" * 20_000)])
def test_definitions_are_found_in_text_that_is_nested_too_deeply(deep):
    assert "f" in {one.name for one in outline("a.py", f"def f():\n    pass\n\nx = {deep}\n").definitions}


def test_imports_are_found_in_text_that_cannot_be_parsed():
    found = outline("a.py", "from a.b import (c,\n    d)\nimport e\ndef f(:\n    (]\n" + "x = (]\ny)\n" * 40)
    assert [one.line for one in found.imports] == ["from a.b import c", "from a.b import d", "import e"]
    assert "f" in {one.name for one in found.definitions}


SOURCES = {
    ".js": ("// Adds.\nfunction add(a, b) {\n  return a + b;\n}\nclass Box {\n  open() {\n    const inner = 1;\n"
            "  }\n}\n"
            "export const make = () => {\n  return 1;\n};\n",
            {"add": (1, 2, 4), "Box": (5, 5, 9), "Box.open": (6, 6, 8), "make": (10, 10, 12)}),
    ".ts": ("export interface Shape {\n  area(): number;\n}\nexport type Id = string;\nexport class Box {\n"
            "  open(): void {\n  }\n}\n",
            {"Shape": (1, 1, 3), "Shape.area": (2, 2, 2), "Id": (4, 4, 4), "Box": (5, 5, 8), "Box.open": (6, 6, 7)}),
    ".go": ("package a\n// Add adds.\nfunc Add(a int) int {\n\treturn a\n}\ntype Box struct {\n\tsize int\n}\n",
            {"Add": (2, 3, 5), "Box": (6, 8, 8)}),
    ".rs": ("/// Of things.\n#[derive(Debug)]\npub struct Box {\n  size: i32,\n}\nimpl Box {\n"
            "  fn open(&self) {\n    let x = 1;\n  }\n}\n",
            {"Box": (1, 3, 5), "Box.open": (7, 7, 9)}),
    ".java": ("class Box {\n  /** Opens. */\n  @Override\n  public int open(int x) {\n    return x;\n  }\n}\n",
              {"Box": (1, 1, 7), "Box.open": (2, 4, 6)}),
    ".c": ("#ifndef A_H\nstatic int\nadd(int a)\n{\n  return a;\n}\nstruct box { int size; };\n#endif\n",
           {"add": (2, 4, 6), "box": (7, 7, 7)}),
    ".cpp": ("namespace n {\ntemplate <class T>\nT add(T a) {\n  return a;\n}\nclass Box {\n"
             "  int open() { return 1; }\n};\n}\n",
             {"add": (2, 3, 5), "Box": (6, 6, 8), "Box.open": (7, 7, 7)})}


@pytest.mark.parametrize("suffix", SOURCES)
def test_grammars_find_definitions_with_the_comments_above_them(suffix):
    text, expected = SOURCES[suffix]
    assert named(text, "a" + suffix) == expected


def test_every_grammar_reads_its_tags():
    assert all(grammar(suffix) for suffix in GRAMMARS)


@pytest.mark.parametrize("suffix", [".js", ".go", ".rs", ".java"])
def test_definitions_are_found_by_words_and_indentation_without_a_grammar(monkeypatch, suffix):
    monkeypatch.setattr(outlines, "grammar", lambda suffix: None)
    text, expected = SOURCES[suffix]
    first, _, last = expected["Box"]
    found = named(text, "a" + suffix)["Box"]
    assert first <= found[0] <= found[2] == last


def test_a_definition_that_is_found_by_indentation_may_have_blank_lines(monkeypatch):
    monkeypatch.setattr(outlines, "grammar", lambda suffix: None)
    assert named("class Box {\n  a() {}\n\n  b() {}\n}\n\nlet c;\n", "a.js")["Box"][::2] == (1, 5)


MODULES = ("src/shop/__init__.py", "src/shop/cart.py", "src/shop/logging.py", "src/shop/deep/__init__.py",
           "src/shop/deep/item.py",
           "tests/helpers.py", "tests/test_cart.py", "eval/scores.py", "eval/__init__.py", "scripts/run.py")


@pytest.mark.parametrize("module, level, importer, found", [
    ("shop.cart", 0, "tests/test_cart.py", "src/shop/cart.py"), ("shop", 0, "scripts/run.py", "src/shop/__init__.py"),
    ("cart", 1, "src/shop/logging.py", "src/shop/cart.py"), ("", 1, "src/shop/cart.py", "src/shop/__init__.py"),
    ("cart", 2, "src/shop/deep/item.py", "src/shop/cart.py"),
    ("deep.item", 1, "src/shop/__init__.py", "src/shop/deep/item.py"),
    ("helpers", 0, "tests/test_cart.py", "tests/helpers.py"), ("helpers", 0, "src/shop/cart.py", None),
    ("logging", 0, "src/shop/cart.py", None), ("json", 0, "src/shop/cart.py", None), ("x", 9, "src/shop/cart.py", None),
    ("long.eval.scores", 0, "src/shop/cart.py", "eval/scores.py"),
    ("long.eval", 0, "src/shop/cart.py", "eval/__init__.py")])
def test_an_import_finds_the_file_that_python_would(module, level, importer, found):
    assert Modules(MODULES, {"long.eval": "eval"}).find(module, level, importer) == found


@pytest.mark.parametrize("path, text, paths, expected", [
    ("src/a.ts", "import { Box, type Shape as S } from './box.js';\nimport fs from 'fs'", ["src/box.ts", "box.js"],
     [("src/box.ts", ("Box", "Shape", "S"))]),
    ("src/a.ts", "export * from '../lib'", ["lib/index.ts"], [("lib/index.ts", ())]),
    ("src/deep/a.vue", "import X from '@/parts/x'", ["src/parts/x.js", "parts/y.js"], [("src/parts/x.js", ("X",))]),
    ("a.js", "const { go } = require('./b')", ["b.js"], [("b.js", ("go",))]),
    ("src/a.c", '#include "a.h"\n#include <stdio.h>\n#include <lib/b.h>\n', ["src/a.h", "include/lib/b.h"],
     [("src/a.h", ()), ("include/lib/b.h", ()), ("src/a.h", ())]),
    ("a.c", '#include "a.h"\n#include "b.h"\n', ["a.h", "x/b.h", "x/y/b.h"],
     [("a.h", ()), ("x/b.h", ()), ("a.h", ())]),
    ("src/net/a.rs", "use crate::wire::Frame;\n", ["src/wire.rs"], [("src/wire.rs", ("Frame",))]),
    ("src/a/B.java", "import c.D;\n", ["src/c/D.java", "test/c/D.java", "src/a/E.java", "src/f/E.java"],
     [("src/c/D.java", ("D",)), ("src/a/E.java", ())]),
    ("cmd/main.go", 'import (\n\t"fmt"\n\t"host/mod/pkg/store"\n)\n',
     ["pkg/store/a.go", "pkg/store/a_test.go", "pkg/b.go"],
     [("pkg/store/a.go", ())]),
    ("src/main.rs", "use crate::net::wire::{Frame, Kind};\nmod cli;\nuse std::io;\n",
     ["src/net/wire.rs", "src/cli/mod.rs"],
     [("src/net/wire.rs", ("Frame", "Kind")), ("src/cli/mod.rs", ())]),
    ("src/main/java/a/B.java", "import c.d.E;\nimport static c.d.F.go;\n", ["src/main/java/c/d/E.java", "x/c/d/F.java"],
     [("src/main/java/c/d/E.java", ("E",)), ("x/c/d/F.java", ("F",))])])
def test_imports_of_other_languages_find_their_files(path, text, paths, expected):
    assert [(file, names) for file, names, _ in linked(path, text, paths)] == expected


def test_imports_that_do_not_end_are_read_once():
    """The scan does not begin again at each of them."""
    texts = ("use crate::a\n" * count for count in (2000, 8000))
    short, long = (min(timeit.repeat(lambda text=text: list(linked("a.rs", text, ())), number=1, repeat=5,
                                     timer=time.process_time))
                   for text in texts)
    assert long < 9 * short

"""Where a completion ends: after its line, its block, or nowhere; and what of it is certain before that."""

from __future__ import annotations

import pytest

from longgraft.completion.snippets import Cursor
from longgraft.completion.stopping import Ending

CASES = {       # until, path, before, after, what the model says, what is kept of it
    "a line": ("line", "a.py", "x = ", "\n", "1\ny = 2\n", "1"),
    "a line with something in it": ("line", "a.py", "def f():", "\n", "\n\n    return 1  \n    x", "\n\n    return 1"),
    "a line that meets its rest": ("line", "a.py", "f(", ", b)\n", "a, b)\n", "a"),
    "the body of a function": (
        "block", "a.py", "def f(x):\n    ", "\n\ndef g(): ...",
        "y = x\n    if y:\n        return 2\n    return y\n\n\ndef g():",
        "y = x\n    if y:\n        return 2\n    return y"),
    "a body behind its colon": ("block", "a.py", "def f(x):", "\n", "\n    return 1\n\n\ndef g", "\n    return 1"),
    "a method that was begun": (
        "block", "a.py", "class A:\n    def f(self", "\n",
        ",\n          x,\n    ):\n        return 1\n\n    def g(self):\n",
        ",\n          x,\n    ):\n        return 1"),
    "a comment behind the colon": (
        "block", "a.py", "    if x", "\n",
        ":  # or else\n        y()\n    z()\n",
        ":  # or else\n        y()"),
    "its other branches": (
        "block", "a.py", "    if a", "\n",
        ":\n        b()\n    else:\n        c()\n    elsewhere = 1\n",
        ":\n        b()\n    else:\n        c()"),
    "siblings on the cursor's level": (
        "block", "a.py", "def f():\n    x = ", "",
        "1\n    y = 2\n\n    return y\nz",
        "1\n    y = 2\n\n    return y"),
    "a paragraph of a module": ("block", "a.py", "", "", "import a\nimport b\n\nx = 1\n", "import a\nimport b"),
    "a function of a module": (
        "block", "a.py", "", "",
        "@d\ndef f():\n    return 1\nx = 1\n",
        "@d\ndef f():\n    return 1"),
    "an indented line on an empty one": (
        "block", "a.py", "def f():\n", "",
        "    a()\n    b()\nc()\n",
        "    a()\n    b()"),
    "brackets over lines": ("block", "a.py", "x = f(", "", "\n    a,\n)\ny = 1\n\nz", "\n    a,\n)\ny = 1"),
    "brackets whose lines are indented less": (
        "block", "a.py", "def f():\n    ", "",
        "x = [\n1,\n]\n    y = 1\nz = 1",
        "x = [\n1,\n]\n    y = 1"),
    "a quoted text with lines": (
        "block", "a.py", "def f():\n    ", "",
        "'''One (\n\nline'''\n    return 1\nx",
        "'''One (\n\nline'''\n    return 1"),
    "what the file goes on with": (
        "block", "a.py", "    ", "\n    return x\n",
        "y = 1\n    return x\n    z = 1\n",
        "y = 1"),
    "a block within a line is its line": ("block", "a.py", "    f(", ")\n", "a)\n    g()\n", "a"),
    "deeper than was typed": ("block", "a.py", "def f():\n    ", "", "    a()\n    b()\nc()\n", "    a()\n    b()"),
    "tabs": ("block", "a.py", "def f():\n\t", "", "a()\n\tb()\nc()\n", "a()\n\tb()"),
    "a tab as wide as eight spaces": ("block", "a.py", "def f():\n        ", "", "a()\n\tb()\nc()\n", "a()\n\tb()"),
    "a brace that the file has": (
        "block", "a.js", "function f() {\n  ", "\n}\n",
        "let a = {};\n  return '}';\n}\nf()",
        "let a = {};\n  return '}';"),
    "a brace that it lacks": (
        "block", "a.ts", "function f() {\n  ", "",
        "return `}`; // }\n}\nf()",
        "return `}`; // }\n}"),
    "a function of its own": ("block", "a.go", "func f(", "", ") {\n\treturn\n}\nfunc g() {}", ") {\n\treturn\n}"),
    "a branch and its other": (
        "block", "a.c", "int f() {\n  if (x)", "\n}\n",
        " {\n    f();\n  } else {\n    g();\n  }\n  h();\n",
        " {\n    f();\n  } else {\n    g();\n  }"),
    "siblings between braces": (
        "block", "a.rs", "fn f() {\n    ", "\n}\n",
        "a();\n\n    if b { c(); }\n    d();\n}\n",
        "a();\n\n    if b { c(); }\n    d();"),
    "imports above braces": ("block", "a.java", "", "", "import a;\nimport b;\n\nclass A {}", "import a;\nimport b;"),
    "no end": ("stop", "a.py", "def f():\n    ", "", "a()\nb()\n\n", None),
    "a block without an end yet": ("block", "a.py", "def f():\n    ", "", "a()\n\n    b()", None),
}


@pytest.mark.parametrize("name", CASES)
def test_a_completion_ends(name):
    until, path, before, after, said, kept = CASES[name]
    ending = Ending(until, Cursor(path, before, after))
    ends = [ending.of(said[:n]) for n in range(len(said) + 1)]
    found = next(((said[:n], end) for n, end in enumerate(ends) if end is not None), None)
    assert (None if found is None else found[0][:found[1]]) == kept
    assert ending.cut(said) == (said if kept is None else kept)


@pytest.mark.parametrize("name", CASES)
def test_what_is_certain_is_kept(name):
    until, path, before, after, said, kept = CASES[name]
    ending, told = Ending(until, Cursor(path, before, after)), 0
    for n in range(len(said) + 1):
        if ending.of(said[:n]) is not None:
            break
        certain = ending.certain(said[:n])
        assert (said if kept is None else kept).startswith(said[:certain])
        assert certain <= n
        told = max(told, certain)
    assert told > 0 or after.partition("\n")[0]       # and text comes before the end is reached


def test_a_line_that_was_shown_is_not_expected_again():
    cursor = Cursor("a.py", "f(", ")\n")
    assert Ending("line", cursor, seen=True).cut("g(x)\n") == "g(x)"
    assert Ending("line", cursor).cut("g(x)\n") == "g(x"
    assert Ending("block", cursor, seen=True).cut("\n    a,\n    b,\n") == "\n    a,\n    b,\n"


def test_what_was_cut_short_ends_all_the_same():
    assert Ending("block", Cursor("a.py", "def f():\n    ", "")).cut("a()\n\ndef") == "a()"
    assert Ending("line", Cursor("a.py", "x", "")).cut(" = 1 ") == " = 1"
    assert Ending("line", Cursor("a.py", "x", "")).cut("") == ""

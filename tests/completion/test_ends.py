"""The end of a completion, after its line, its block or nowhere, and the text that is certain before the end."""

from __future__ import annotations

import pytest

from longgraft.completion.snippets import Cursor
from longgraft.completion.stopping import Ending

CASES = {  # until, path, before, after, the model's text, which is kept up to the bar
    "a line": ("line", "a.py", "x = ", "\n", "1|\ny = 2\n"),
    "a line with something in it": ("line", "a.py", "def f():", "\n", "\n\n    return 1|  \n    x"),
    "a line that meets its rest": ("line", "a.py", "f(", ", b)\n", "a|, b)\n"),
    "the body of a function": (
        "block",
        "a.py",
        "def f(x):\n    ",
        "\n\ndef g(): ...",
        "y = x\n    if y:\n        return 2\n    return y|\n\n\ndef g():",
    ),
    "a body behind its colon": ("block", "a.py", "def f(x):", "\n", "\n    return 1|\n\n\ndef g"),
    "a method that was begun": (
        "block",
        "a.py",
        "class A:\n    def f(self",
        "\n",
        ",\n          x,\n    ):\n        return 1|\n\n    def g(self):\n",
    ),
    "a comment behind the colon": ("block", "a.py", "    if x", "\n", ":  # or else\n        y()|\n    z()\n"),
    "its other branches": (
        "block",
        "a.py",
        "    if a",
        "\n",
        ":\n        b()\n    else:\n        c()|\n    elsewhere = 1\n",
    ),
    "siblings on the cursor's level": ("block", "a.py", "def f():\n    x = ", "", "1\n    y = 2\n\n    return y|\nz"),
    "a paragraph of a module": ("block", "a.py", "", "", "import a\nimport b|\n\nx = 1\n"),
    "a function of a module": ("block", "a.py", "", "", "@d\ndef f():\n    return 1|\nx = 1\n"),
    "an indented line on an empty one": ("block", "a.py", "def f():\n", "", "    a()\n    b()|\nc()\n"),
    "brackets over lines": ("block", "a.py", "x = f(", "", "\n    a,\n)\ny = 1|\n\nz"),
    "brackets whose lines are indented less": (
        "block",
        "a.py",
        "def f():\n    ",
        "",
        "x = [\n1,\n]\n    y = 1|\nz = 1",
    ),
    "a quoted text with lines": ("block", "a.py", "def f():\n    ", "", "'''One (\n\nline'''\n    return 1|\nx"),
    "what the file goes on with": ("block", "a.py", "    ", "\n    return x\n", "y = 1|\n    return x\n    z = 1\n"),
    "a block within a line is its line": ("block", "a.py", "    f(", ")\n", "a|)\n    g()\n"),
    "deeper than was typed": ("block", "a.py", "def f():\n    ", "", "    a()\n    b()|\nc()\n"),
    "tabs": ("block", "a.py", "def f():\n\t", "", "a()\n\tb()|\nc()\n"),
    "a tab as wide as eight spaces": ("block", "a.py", "def f():\n        ", "", "a()\n\tb()|\nc()\n"),
    "a brace that the file has": (
        "block",
        "a.js",
        "function f() {\n  ",
        "\n}\n",
        "let a = {};\n  return '}';|\n}\nf()",
    ),
    "a brace that it lacks": ("block", "a.ts", "function f() {\n  ", "", "return `}`; // }\n}|\nf()"),
    "a function of its own": ("block", "a.go", "func f(", "", ") {\n\treturn\n}|\nfunc g() {}"),
    "a branch and its other": (
        "block",
        "a.c",
        "int f() {\n  if (x)",
        "\n}\n",
        " {\n    f();\n  } else {\n    g();\n  }|\n  h();\n",
    ),
    "siblings between braces": (
        "block",
        "a.rs",
        "fn f() {\n    ",
        "\n}\n",
        "a();\n\n    if b { c(); }\n    d();|\n}\n",
    ),
    "imports above braces": ("block", "a.java", "", "", "import a;\nimport b;|\n\nclass A {}"),
    # The prompt has the text after the cursor ("seen"): only a statement is missing.
    "seen: a statement": ("block", "a.py", "def f():\n    ", "\n    return x\n", "x = 1|\n    y = 2\n"),
    "seen: the rest of a statement": ("block", "a.py", "    x = ", "\n\n    return x\n", "f(\n1)|\n    y = 2\n"),
    "seen: a block of its own": (
        "block",
        "a.py",
        "def f():\n    ",
        "\n    return x\n",
        "if x:\n        a()\n        b()\n    else:\n        c()|\n    y",
    ),
    "seen: a decorated function": ("block", "a.py", "", "\nx = 1\n", "@d\ndef f():\n    a()\n    return 1|\ny = 1\n"),
    "seen: a comment above a statement": (
        "block",
        "a.py",
        "    ",
        "\n    return x\n",
        "# An x.\n    x = 1|\n    y = 2\n",
    ),
    "seen: a quoted text": ("block", "a.py", "    ", "\n    return x\n", '"""An x."""|\n    y = 2\n'),
    "seen: a constant of several": ("block", "a.py", "", "\nB = 2\n", "A = 1|\nB = 2\nC"),
    "seen: the block's last line": ("block", "a.py", "def f():\n    ", "\nx = 1\n", "a()\n    return b()|\n\n\ndef g"),
    "seen: a branch before another": (
        "block",
        "a.py",
        "if a:\n    ",
        "\nelse:\n    c()\n",
        "a()\n    b()|\nelse:\n    d()",
    ),
    "seen: a semicolon": ("block", "a.java", "void f() {\n  ", "\n  g();\n}\n", "int x = h(\n    1);|\n  int y;\n"),
    "seen: braces of its own": (
        "block",
        "a.js",
        "function f() {\n  ",
        "\n  g();\n}\n",
        "if (x) {\n    h();\n  }\n  else {\n    i();\n  }|\n  j",
    ),
    "seen: the last statement between braces": (
        "block",
        "a.js",
        "function f() {\n  ",
        "\n}\n",
        "let a = {};\n  return a;|\n}\nf()",
    ),
    "seen: blocks that words close": ("block", "a.rb", "  ", "\n  g\n", "f do\n    h\n  end\n"),
    "a character at which text, but no code, has lines": (
        "block",
        "a.py",
        "def f():\n    ",
        "",
        "x = 1\x0c + 2\n    return x|\nz",
    ),
    "the same in the next line": ("block", "a.py", "    ", "\n    x\u2028 = long\n", "y = 1|\n    x\u2028 = long\n"),
    "what the file goes on with, in four characters": (
        "block",
        "a.py",
        "    ",
        "\n    pass\n",
        "y = 1|\n    pass\n    z = 1\n",
    ),
    "a next line too short to be recognised": ("block", "a.py", "    ", "\n    a()\n", "y = 1\n    a()\n    z = 1"),
    "a suffix in capitals": (
        "block",
        "A.C",
        "int f() {\n  if (x)",
        "\n}\n",
        " {\n    f();\n  } else {\n    g();\n  }|\n  h();\n",
    ),
    "seen: a brace that closes the block around": (
        "block",
        "a.js",
        "function f() {\n  ",
        "\n  g();\n}\n",
        "h()|\n}\nk()\n",
    ),
    "seen: a branch that is only begun": (
        "block",
        "a.js",
        "function f() {\n  ",
        "\n  g();\n}\n",
        "if (x) {\n  }\n  elsewhere",
    ),
    "no end": ("stop", "a.py", "def f():\n    ", "", "a()\nb()\n\n"),
    "a block without an end yet": ("block", "a.py", "def f():\n    ", "", "a()\n\n    b()"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_completion_ends_where_its_line_or_block_does(name):
    """Text that is certain before the end is part of the kept text."""
    until, path, before, after, marked = CASES[name]
    (kept, bar, rest), told = marked.partition("|"), 0
    ending, said = Ending(until, Cursor(path, before, after), name.startswith("seen")), kept + rest
    for n in range(len(said) + 1):
        if (end := ending.of(said[:n])) is not None:
            assert bar and said[:end] == kept
            break
        certain = ending.certain(said[:n])
        assert certain <= n and kept.startswith(said[:certain])
        told = max(told, certain)
    else:
        assert not bar
    assert ending.cut(said) == kept
    assert told > 0 or after.partition("\n")[0]  # text comes before the end is reached


def test_blanks_are_passed_on_at_once_where_only_the_model_ends():
    assert Ending("stop", Cursor("a.py", "x", "")).certain(" \n\n") == 3
    assert Ending("block", Cursor("a.py", "x", "")).certain(" \n\n") == 0


def test_the_rest_of_a_line_that_was_shown_is_not_expected_again():
    cursor = Cursor("a.py", "f(", ")\n")
    assert Ending("line", cursor, seen=True).cut("g(x)\n") == "g(x)"
    assert Ending("line", cursor).cut("g(x)\n") == "g(x"
    assert Ending("block", cursor, seen=True).cut("\n    a,\n    b,\n") == "\n    a,\n    b,\n"


def test_a_completion_that_was_cut_short_still_ends():
    assert Ending("block", Cursor("a.py", "def f():\n    ", "")).cut("a()\n\ndef") == "a()"
    assert Ending("line", Cursor("a.py", "x", "")).cut(" = 1 ") == " = 1"
    assert Ending("line", Cursor("a.py", "x", "")).cut("") == ""

"""Recent changes are read from a unified diff."""

from __future__ import annotations

import pytest

from longgraft.completion.changes import before_last_change, changes_of
from longgraft.completion.snippets import Change


def test_changes_are_read_from_a_diff_and_secrets_are_left_out():
    diff = "--- a/main.py\n+++ b/main.py\n@@ -2,3 +2,3 @@\n \n-def greet():\n+def greet(name):\n     print(1)\n"
    two = diff + "--- a/old.py\n+++ /dev/null\n@@ -3,2 +2,0 @@\n-x\n-y\n\\ No newline at end of file\n"
    key = diff.replace("main.py", "key.py").replace("1", "AKIA" + "A1B2" * 4)
    first, second = changes_of(two + diff.replace("main.py", ".env") + key)
    assert (first.path, first.line, first.new_lines) == ("main.py", 2, ("def greet(name):",))
    assert (second.path, second.before, second.after, second.line) == ("old.py", ("x", "y"), (), 3)
    assert changes_of(" \n") == ()


@pytest.mark.parametrize(
    ("diff", "said"),
    [("x = 1", "have no hunk"), ("@@ -1,3 +1,3 @@\n a\n", "not complete"), ("@@ -1 +1 @@\n?a\n", "not complete")],
)
def test_a_text_that_is_no_diff_is_refused(diff, said):
    with pytest.raises(ValueError, match=said):
        changes_of(diff)


def hunk(*names: str) -> str:
    """Returns a diff with these names in its headers."""
    return f"--- {names[0]}\n+++ {names[1]}\n@@ -1 +1 @@\n-x\n+y\n"


@pytest.mark.parametrize(
    ("diff", "path"),
    [
        (hunk("a/x.py", "b/x.py"), "x.py"),
        (hunk("i/x.py", "w/x.py"), "x.py"),
        (hunk("a/x.py", "a/x.py"), "a/x.py"),
        (hunk("x.py", "x.py"), "x.py"),
        (hunk("/dev/null", "b/x.py"), "x.py"),
        (hunk("a/x.py", "/dev/null"), "x.py"),
        ("diff --git i/x.py w/x.py\n" + hunk("/dev/null", "w/x.py"), "x.py"),
        ("diff --git x.py x.py\n" + hunk("x.py", "/dev/null"), "x.py"),
        (hunk("a/x y.py\t", "b/x y.py\t"), "x y.py"),
        (hunk(r'"a/\303\274\".py"', r'"b/\303\274\".py"'), '\u00fc".py'),
        (hunk("a/x.py\r", "b/x.py\r"), "x.py"),
        (hunk(r'"\x"', r'"\x"'), r'"\x"'),
        (hunk("a/old.py", "b/x.py"), "x.py"),
    ],
)
def test_a_changes_path_is_that_of_the_file_without_gits_prefixes_and_quotes(diff, path):
    assert [change.path for change in changes_of(diff)] == [path]


@pytest.mark.parametrize(
    ("diff", "before", "after"),
    [
        ("@@ -1 +1 @@\n-a\rb\r\n+a\rc\r\n", ("a", "b"), ("a", "c")),
        ("@@ -1,2 +1,1 @@\r\n\r\n-a\r\n", ("", "a"), ("",)),
        ("@@@ -1,2 -1,2 +1,2 @@@\n- a\n -b\n++c\n +d\n", ("a", "d"), ("c", "d")),
    ],
)
def test_a_hunk_is_read_with_any_line_ends_and_of_a_merge_for_its_first_parent(diff, before, after):
    changes = changes_of(f"+++ b/a.py\n{diff}" + hunk("a/b.py", "b/b.py"))
    assert (changes[0].before, changes[0].after) == (before, after) and changes[1].path == "b.py"


@pytest.mark.parametrize(
    "diff",
    [
        "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n",
        "diff --git a/x b/y\nrename from x\nrename to y\n",
        "diff --git a/x b/x\nindex 1..2 100644\nBinary files a/x and b/x differ\n",
    ],
)
def test_a_diff_without_text_is_no_change(diff):
    assert changes_of(diff) == ()


def test_no_hunk_of_a_file_is_shown_that_holds_secrets_by_either_name_or_in_another_hunk():
    key = "@@ -9,0 +9 @@\n+AKIA" + "A1B2" * 4 + "\n"
    assert changes_of(hunk("a/.env", "b/env.txt") + hunk("a/x.py", "b/x.py") + key + hunk("a/id_rsa", "b/y.py")) == ()


@pytest.mark.parametrize(
    ("first", "lines", "old", "new", "before"),
    [
        (1, "abXYcd", "PQR", "XY", "abPQRcd"),
        (4, "Ycd", "PQR", "XY", "QRcd"),
        (1, "abX", "PQR", "XY", "abP"),
        (4, "Y", "PQ", "XY", "Q"),
        (4, "Ycd", "P", "XY", "cd"),
        (5, "cd", "P", "XY", "cd"),
        (1, "ab", "P", "XY", "ab"),
        (1, "abcd", "PQ", "", "abPQcd"),
        (1, "ab", "PQ", "", "abPQ"),
        (4, "d", "PQ", "", "d"),
        (4, "Zcd", "P", "XY", "Zcd"),
        (1, "abXYcd", "", "XY", "abcd"),
    ],
)
def test_lines_before_a_change_have_its_old_lines_as_far_as_it_touches_them(first, lines, old, new, before):
    changes = [Change("a.py", tuple(old), tuple(new), 3)]  # "ab", then the new lines, then "cd"
    assert "".join(before_last_change("a.py", first, tuple(lines), changes)) == before

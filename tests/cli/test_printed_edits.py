"""A next edit is printed as a diff that git and patch apply to its file."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import replace

import pytest
from toys.completing import completing

import longgraft
from longgraft.cli.complete import shown
from longgraft.completion.cursor import locate
from longgraft.completion.snippets import LINE_END, Cursor
from longgraft.completion.window import Edit, Window, without_empty

FILES = {
    "windows": "a\r\nb\r\nc\r\n",
    "old-mac": "a\rb\rc\r",
    "unended": "a\nb\nc",
    "indented": "a\r\nb\r\n    ",
    "marked": "\ufeffa\nb\nc\n",
    "empty": "",
    "blank": "\n\n",
    "blank-end": "a\nb\nc\n\n\n",
    "two words": "a\nb\nc\n",
    "\u00fc": "\u00e9\n\U0001f600\nc \t\n",
}


@pytest.fixture(scope="module")
def completion(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completed")
    (folder / "main.py").write_text("x = 1\n")
    return longgraft.complete(folder, "main.py", 1, session=completing(fim=True), layout="next-edit", max_new_tokens=1)


@pytest.mark.skipif(None in map(shutil.which, ("git", "patch")), reason="git or patch is not installed")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "rewrite",
    [
        lambda lines: [*lines, "new", "newer"],
        lambda lines: ["new", *lines],
        lambda lines: without_empty(lines)[:-1] or ["new"],
        lambda lines: [*lines[:1], "new", *lines[2:]],
        lambda lines: [*map(str.rstrip, lines), "x"],
    ],
)
def test_the_printed_diff_gives_the_file_the_rewritten_lines_and_keeps_its_line_ends(
    name, rewrite, tmp_path, completion
):
    file = tmp_path / f"{name}.py"
    before = FILES[name].encode()
    file.write_bytes(before)
    cursor = locate(tmp_path, file.name, 1)
    wanted = rewrite(LINE_END.sub("\n", cursor.text).removesuffix("\n").split("\n"))
    window = Window.around(replace(cursor, before="", after=LINE_END.sub("\n", cursor.text)))
    edit = window.edit("\n".join(wanted)).in_file(cursor.text)
    diff = shown(replace(completion, cursor=cursor, edit=edit)) + "\n"
    for command in (["git", "apply", "-"], ["patch", "-p1", "-s"]):
        file.write_bytes(before)
        subprocess.run(command, cwd=tmp_path, check=True, input=diff.encode())
        after = file.read_bytes().decode()
        assert without_empty(LINE_END.split(after.removeprefix("\ufeff"))) == without_empty(wanted)
        assert set(LINE_END.findall(after)) <= set(LINE_END.findall(FILES[name]) or ["\n"])
        assert after == cursor.bom + edit.applied(cursor.text)


@pytest.mark.parametrize(
    ("text", "edit", "wanted"),
    [
        ("a\r\nb", (3, 2, "c\n"), (2, 2, "b\r\nc")),
        ("a\r\nb", (2, 2, "c\n"), (2, 2, "c")),
        ("a\r\nb", (1, 1, "c\n"), (1, 1, "c\r\n")),
        ("a\nb\r\nc\n", (2, 2, "x\ny\n"), (2, 2, "x\r\ny\r\n")),
        ("a\nb", (2, 2, ""), (2, 2, "")),
        ("", (1, 0, "x\n"), (1, 0, "x\n")),
        ("a\n", (2, 1, "x\n"), (2, 1, "x\n")),
    ],
)
def test_an_edit_has_the_line_ends_of_the_lines_that_it_replaces(text, edit, wanted):
    assert Edit("a.py", *edit).in_file(text) == Edit("a.py", *wanted)


@pytest.mark.parametrize("seed", range(20))
def test_an_applied_edit_gives_the_file_the_rewritten_lines(seed):
    draw = random.Random(seed)
    for _ in range(20):
        lines = draw.choices(("", "    ", "a", "b", "}", "\u00e9 "), k=draw.randint(0, 9))
        text = "".join(line + draw.choice(("\n", "\r\n")) for line in lines) + draw.choice(("", "", "end"))
        shown_lines = LINE_END.sub("\n", text).split("\n")
        window = Window.around(Cursor("a.py", "", "\n".join(shown_lines)))
        at = draw.randint(0, len(shown_lines))
        new = [*shown_lines[:at], *draw.choices("abX", k=draw.randint(0, 3)), *shown_lines[at + draw.randint(0, 3) :]]
        edit = window.edit("\n".join(new))
        after = text if edit is None else edit.in_file(text).applied(text)
        wanted = new if without_empty(new) else shown_lines  # an empty answer changes nothing
        assert without_empty(LINE_END.split(after)) == without_empty(wanted)

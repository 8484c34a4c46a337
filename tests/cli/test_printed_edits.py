"""A next edit is printed as a diff that git and patch apply to its file."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import replace

import pytest
from toys.completing import completing

import longgraft
from longgraft.cli.complete import CursorOptions, shown
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
    edit = Window.around(replace(cursor, before="", after=cursor.text)).edit("\n".join(wanted))
    diff = shown(replace(completion, cursor=cursor, edit=edit)) + "\n"
    for command in (["git", "apply", "-"], ["patch", "-p1", "-s"]):
        file.write_bytes(before)
        subprocess.run(command, cwd=tmp_path, check=True, input=diff.encode())
        after = file.read_bytes().decode()
        assert without_empty(LINE_END.split(after.removeprefix("\ufeff"))) == without_empty(wanted)
        assert set(LINE_END.findall(after)) <= set(LINE_END.findall(FILES[name]) or ["\n"])
        assert after == cursor.bom + edit.applied(cursor.text)


@pytest.mark.parametrize(
    ("text", "answer", "wanted"),
    [
        ("a\r\nb", "a\nb\nc\n", (2, 2, "b\r\nc")),
        ("a\r\nb", "a\nc\n", (2, 2, "c")),
        ("a\r\nb", "c\nb", (1, 1, "c\r\n")),
        ("a\nb\r\nc\n", "a\nx\ny\nc\n", (2, 2, "x\r\ny\r\n")),
        ("a\nb\r\nc\rd\n", "x\nb\nc\ny\n", (1, 4, "x\nb\r\nc\ry\n")),
        ("a\rb\rc", "a\nx\nc", (2, 2, "x\r")),
        ("a\nb", "a\n", (2, 2, "")),
        ("a\nb", "x\nb\ny", (1, 2, "x\nb\ny")),
        ("a", "a\nb", (1, 1, "a\nb")),
        ("", "x", (1, 0, "x\n")),
        ("a\n", "a\nx\n", (2, 1, "x\n")),
        ("a\r\nb\r\n", "a\r\nx\r\n", (2, 2, "x\r\n")),
    ],
)
def test_lines_that_stay_keep_their_ends_and_new_ones_get_that_of_the_edits_first_line(text, answer, wanted):
    for before in ("", text):
        cursor = Cursor("a.py", before, text.removeprefix(before))
        assert Window.around(cursor).edit(answer) == Edit("a.py", *wanted)


@pytest.mark.parametrize("saved", [True, False])
def test_a_file_and_its_unsaved_text_keep_a_byte_order_mark(saved, tmp_path, completion):
    (tmp_path / "main.py").write_bytes(FILES["marked"].encode())
    text = None if saved else str(tmp_path / "main.py")
    cursor = CursorOptions(repo=str(tmp_path), file="main.py", line=1, text=text).cursor()
    edit = Window.around(cursor).edit("x\nb\nc\n")
    assert "-\ufeffa\n+\ufeffx\n" in shown(replace(completion, cursor=cursor, edit=edit))


@pytest.mark.parametrize("seed", range(20))
def test_an_applied_edit_gives_the_file_the_rewritten_lines(seed):
    draw = random.Random(seed)
    for _ in range(20):
        lines = draw.choices(("", "    ", "a", "b", "}", "\u00e9 "), k=draw.randint(0, 9))
        text = "".join(line + draw.choice(("\n", "\r\n")) for line in lines) + draw.choice(("", "", "end"))
        shown_lines = LINE_END.sub("\n", text).split("\n")
        window = Window.around(Cursor("a.py", "", text))
        at = draw.randint(0, len(shown_lines))
        new = [*shown_lines[:at], *draw.choices("abX", k=draw.randint(0, 3)), *shown_lines[at + draw.randint(0, 3) :]]
        edit = window.edit("\n".join(new))
        after = text if edit is None else edit.applied(text)
        wanted = new if without_empty(new) else shown_lines  # an empty answer changes nothing
        assert without_empty(LINE_END.split(after)) == without_empty(wanted)

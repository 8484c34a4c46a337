"""Lines held out of a repository: the choice of lines and the summary of the answers."""

from __future__ import annotations

import json
from dataclasses import replace

from toys.completing import toy

from benchmarks.completion import Row, report, run, summary
from benchmarks.held_lines import held_out

TEXT = (
    '"""About\nthis: it is long."""\nimport helpers_of_mine\nfrom other import (one_thing,\n    other_thing)\n'
    "# a comment, long enough\nshort = 1\n"
    + "\n" * 8
    + "def compute(argument):\n    value_of = one_thing(argument)\n    return elsewhere(value_of)\n"
)
ROW = Row("a.py", 3, "file", "graft-x", "greedy", "x = 1", "x = 2", False, 0.8, 1, 0, 100, 0, 5, 2, 3, 1.0, 1.0)


def test_only_lines_of_code_are_held_out_and_the_seed_alone_draws_them(tmp_path):
    (tmp_path / "a.py").write_text(TEXT)
    (tmp_path / "b.py").write_text("def elsewhere(a): return a\n")
    found = held_out(tmp_path, "*.py", 0, 10)
    assert sorted(one.line for one in found) == [16, 17, 18] and found == held_out(tmp_path, "*.py", 0, 10)
    last = next(one for one in found if one.line == 18)
    assert last.truth == "return elsewhere(value_of)" and last.rest == last.truth + "\n"
    assert last.cursor.before.endswith("(argument)\n    ") and not last.cursor.after
    assert last.asks == ("elsewhere",) and [one.asks for one in found if one.line == 17] == [()]


def test_quality_is_of_greedy_answers_and_speed_of_two_replays_of_a_line():
    rows = [ROW, replace(ROW, line=4, exact=True, similarity=1.0, asks=0)]
    for line, seconds in ((3, 4.0), (4, 2.0)):
        timed = replace(ROW, line=line, asks=int(line == 3), mode="replay", new_tokens=11, steps=4, accepted=6)
        rows += [timed, replace(timed, method="ar", decode_seconds=seconds)]
    rows += [replace(row, context="repository", exact=True) for row in rows if row.mode == "greedy"]
    rows.append(replace(ROW, line=5, similarity=0.0))  # not yet completed with the repository
    everything, other, asking, *_ = summary(rows)
    assert (other["prompt"], other["n"], other["exact"], other["timed"]) == ("repository", 2, "1.000", 0)
    assert (everything["n"], everything["exact"], everything["edit similarity"]) == (2, "0.500", "0.900")
    assert (everything["accepted per step"], everything["tok/s"], everything["times"]) == ("1.50", "10.0", "3.00")
    assert (asking["n"], asking["names shown"], asking["timed"]) == (1, "0/1", 1)


def test_a_cursor_has_the_text_of_its_context(tmp_path):
    (tmp_path / "a.py").write_text(TEXT)
    found = next(one for one in held_out(tmp_path, "*.py", 0, 10) if one.line == 17)
    file, none = (found.cursor_for(context, below=False) for context in ("file", "none"))
    assert file == found.cursor == found.cursor_for("repository", below=False)
    assert file.before.endswith(none.before) and len(none.before.split("\n")) == 11 and none.after == ""
    assert found.cursor_for("file", below=True).after == "\n    return elsewhere(value_of)\n"


def test_every_line_is_completed_in_every_context_with_a_given_model(tmp_path, capsys):
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "a.py").write_text(TEXT)
    (repo / "b.py").write_text("def elsewhere(a): return a\n")
    for part in toy(True):
        part.save_pretrained(tmp_path / "model")
    run(repo, tmp_path / "out", lines=2, tokens=512, new=4, timed=0, method="pld", model=str(tmp_path / "model"))
    capsys.readouterr()
    report(tmp_path / "out")
    table = capsys.readouterr().out
    assert all(f"| all | {context} | 2 |" in table for context in ("none", "file", "repository"))
    assert json.loads((tmp_path / "out" / "about.json").read_text())["method"] == "pld"

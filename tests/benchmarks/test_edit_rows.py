"""Rows of whole-file edits are made of two releases of a package, and are a suite of the sweep."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import typer

from benchmarks import edits
from longgraft.eval.prompts.suites import load_suite

OLD = "def area(side):\n    return side * side\n\n\ndef last():\n    return area(3)\n"
NEW = OLD.replace("side * side", "side ** 2")


def wheel(folder: Path, version: str, text: str, licence: str = "MIT") -> Path:
    """Writes a wheel of one file."""
    path = folder / f"shapes-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("shapes.py", text)
        archive.writestr(
            f"shapes-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: shapes\nVersion: {version}\nLicense: {licence}\n",
        )
    return path


def test_two_releases_give_rows_with_their_licence_that_the_sweep_reads(tmp_path, capsys):
    wheels = [wheel(tmp_path, "1.0", OLD), wheel(tmp_path, "1.1", NEW)]
    edits.main(wheels, tmp_path / "rows.jsonl", shortest=1)
    (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert row == {
        "_id": "shapes 1.1: shapes.py",
        "instruction": "Change `area` as in shapes 1.1.",
        "before": OLD,
        "after": NEW,
        "release": "shapes 1.1",
        "path": "shapes.py",
        "licence": "MIT",
    }
    (example,) = load_suite(str(tmp_path / "rows.jsonl"))
    assert (example.id, example.prediction, example.recording) == (row["_id"], OLD, NEW)


def test_a_release_under_another_licence_is_refused(tmp_path):
    with pytest.raises(typer.BadParameter, match="has the licence 'GPL'"):
        edits.main([wheel(tmp_path, "1.0", OLD, "GPL")], tmp_path / "rows.jsonl")

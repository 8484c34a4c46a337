"""Tests of the README: its examples run with the embedded pair, and the first command without its download."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from toys.commands import run
from toys.sessions import METHODS

import longgraft
from longgraft.models.catalogue import CATALOGUE

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_example_runs(capsys):
    torch.set_num_threads(1)
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    exec(code, {})
    assert "tokens accepted per step" in capsys.readouterr().out


def test_the_methods_page_names_every_method_and_no_other():
    page = (Path(__file__).parents[1] / "docs/methods.md").read_text()
    rows = [cell for line in page.splitlines() if line.startswith("| `") for cell in line.split("|")[1:2]]
    assert {name for cell in rows for name in re.findall(r"`([a-z0-9+-]+)`", cell)} == set(METHODS)


def test_files_named_in_the_readme_exist():
    for path in re.findall(r"`((?:longgraft|yarn_drafters|prefill|eval|tests)/[^`]*)`", README):
        assert (Path(__file__).parents[1] / path).exists(), path


def test_first_command_installs_what_its_model_needs_and_its_options_are_valid(monkeypatch, capsys):
    monkeypatch.chdir(Path(__file__).parents[1])
    install, _, words = re.search(r"```bash\n(.*?)\n```", README)[1].partition(" && longgraft ")
    assert ".[gguf]" in install
    code, out, err = run(capsys, monkeypatch, *shlex.split(words), "--dry-run")
    model = re.search(r'^model = "(.*)"', out, re.MULTILINE)[1]
    assert (code, err) == (0, "") and f"{CATALOGUE[model].megabytes} MB" in README


def test_first_command_edits_the_file_that_it_reads():
    words = shlex.split(re.search(r"```bash\n(.*?)\n```", README)[1])
    source = (Path(__file__).parents[1] / words[words.index("--prompt-file") + 1]).read_text()
    request = words[words.index("--prompt") + 1]
    assert "ValueError" in request and source.count("ValueError") == 5


@pytest.mark.slow
def test_embedded_pair_is_exact_and_accepts_drafted_and_retrieved_tokens():
    """Uses this repository's own source, which the training corpus does not contain."""
    torch.set_num_threads(1)
    source = (Path(__file__).parents[1] / "yarn_drafters/layouts.py").read_text()[:4000]
    grafted = longgraft.generate(source, method="graft", budget=60, max_new_tokens=32)
    plain = longgraft.generate(source, method="ar", max_new_tokens=32)
    assert grafted.token_ids == plain.token_ids
    recording = (Path(__file__).parents[1] / "yarn_drafters/layouts.py").read_text()[4000:4400]
    session = longgraft.load(budget=60, tell=False)
    replay = session.tokenizer(recording)["input_ids"]
    stats = session.generate(source, max_new_tokens=len(replay), replay=replay).stats
    origin = stats.accepted_by_origin
    assert origin["draft"] > 0 and origin["retrieved"] > 0 and stats.mat > 0.8

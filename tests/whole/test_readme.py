"""Tests of the README: its examples run with the embedded pair, and the first command without its download."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import torch
from toys.commands import run
from toys.sessions import METHODS
from typer.main import get_command

import longgraft
from longgraft.cli.root import app
from longgraft.models.catalogue import catalogue

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = re.search(r"```bash\n(.*?)\n```", README, re.DOTALL)[1].replace("\\\n", "").splitlines()
GUIDES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"]


def test_the_python_example_runs(capsys):
    torch.set_num_threads(1)
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    exec(code, {})
    assert "tokens accepted per step" in capsys.readouterr().out


def test_the_methods_page_names_every_method_and_no_other():
    page = (ROOT / "docs/methods.md").read_text()
    rows = [cell for line in page.splitlines() if line.startswith("| `") for cell in line.split("|")[1:2]]
    assert {name for cell in rows for name in re.findall(r"`([a-z0-9+-]+)`", cell)} == set(METHODS)


def test_files_named_in_the_readme_exist():
    for path in re.findall(r"`((?:longgraft|yarn_drafters|prefill|eval|tests)/[^`]*)`", README):
        assert (ROOT / path).exists(), path


def test_first_commands_install_what_their_model_needs_and_their_options_are_valid(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    install, generate, serve = COMMANDS
    assert shlex.split(install)[-1] == ".[gguf,serve]"
    code, out, err = run(capsys, monkeypatch, *shlex.split(generate)[1:], "--dry-run")
    model = re.search(r'^model = "(.*)"', out, re.MULTILINE)[1]
    assert (code, err) == (0, "") and f"{catalogue()[model].megabytes} MB" in README
    words = shlex.split(serve)
    get_command(app).commands[words[1]].make_context(words[1], words[2:])  # raises the command line's errors
    assert model in words


def test_install_lines_are_quoted_and_name_extras_that_exist():
    """A shell such as zsh takes [ ] in an unquoted word for a pattern, and runs nothing."""
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    guides = [*map(ROOT.joinpath, GUIDES), *(ROOT / "docs").glob("*.md")]
    sources = [
        path for part in ("longgraft", "eval", "prefill", "yarn_drafters") for path in (ROOT / part).rglob("*.py")
    ]
    found = 0
    for path in (*guides, *sources):
        for line in re.findall(r"pip install [^\n]*?\[[^\n]*", path.read_text()):
            quoted = re.search(r"""(["'])(?:\.|longgraft|lm-eval|\$\(ls \S+\))\[([\w,{}]+)\]\1""", line)
            assert quoted, f"{path}: {line}"
            assert "lm-eval" in quoted[0] or "{" in quoted[2] or set(quoted[2].split(",")) <= extras, f"{path}: {line}"
            found += 1
    assert found > 15


def test_first_command_edits_the_file_that_it_reads():
    words = shlex.split(COMMANDS[1])
    source = (ROOT / words[words.index("--prompt-file") + 1]).read_text()
    request = words[words.index("--prompt") + 1]
    assert "ValueError" in request and source.count("ValueError") == 5


@pytest.mark.slow
def test_embedded_pair_is_exact_and_accepts_drafted_and_retrieved_tokens():
    """Uses this repository's own source, which the training corpus does not contain."""
    torch.set_num_threads(1)
    source = (ROOT / "yarn_drafters/layouts.py").read_text()[:4000]
    grafted = longgraft.generate(source, method="graft", budget=60, max_new_tokens=32)
    plain = longgraft.generate(source, method="ar", max_new_tokens=32)
    assert grafted.token_ids == plain.token_ids
    recording = (ROOT / "yarn_drafters/layouts.py").read_text()[4000:4400]
    session = longgraft.load(budget=60, tell=False)
    replay = session.tokenizer(recording)["input_ids"]
    stats = session.generate(source, max_new_tokens=len(replay), replay=replay).stats
    origin = stats.accepted_by_origin
    assert origin["draft"] > 0 and origin["retrieved"] > 0 and stats.mat > 0.8

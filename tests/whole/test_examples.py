"""The programs of docs/examples run, and show what they say."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs/examples"


def run(*command: str) -> str:
    """Returns what a command writes; it fails with its status, and finds this environment's `longgraft` first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=EXAMPLES.parents[1], env=os.environ | {"PATH": path}, check=True, text=True, capture_output=True
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_long_prompt_takes_fewer_steps_and_has_the_same_answer(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["long_prompt.py"])
    runpy.run_path(str(EXAMPLES / "long_prompt.py"))
    shown = capsys.readouterr().out
    steps, plain = re.search(r"in (\d+) steps, plainly in (\d+)", shown).groups()
    assert int(steps) < int(plain) / 4
    lines = [line for line in shown.splitlines() if line.strip()]
    assert len(set(lines)) == len(lines) >= 4  # the answer is no loop
    assert "identical answers: True" in shown


def test_an_own_method_is_accepted_and_exact(capsys):
    runpy.run_path(str(EXAMPLES / "own_method.py"))
    shown = capsys.readouterr().out
    assert float(re.search(r"(\S+) guesses accepted per step", shown)[1]) > 1
    assert "identical answers: True" in shown


@pytest.mark.slow
def test_a_server_answers_a_client():
    pytest.importorskip("fastapi")
    assert "'completion_tokens': 16" in run(sys.executable, "docs/examples/server_and_client.py")


@pytest.mark.slow
def test_a_sweep_is_drawn():
    assert "speedup_by_length.svg" in run("sh", "docs/examples/sweep_and_plot.sh")


@pytest.mark.slow
def test_a_head_is_trained_and_used():
    assert "guesses accepted per step" in run("sh", "docs/examples/train_a_head.sh")

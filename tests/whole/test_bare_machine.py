"""The scripts of benchmarks/gpu need only what a lent GPU machine has, and what `pack.sh` carries there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BARE = ROOT / "tests" / "bare"
SCRIPTS = ROOT / "benchmarks" / "gpu"


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(BARE), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **more}


def finished(command: list[str], cwd: Path = ROOT, **more: str) -> str:
    """Runs a command that must succeed without the hidden packages, and returns its output."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment(**more))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_packages_that_the_machine_lacks_are_hidden():
    script = "import pydantic, torch\ntry:\n    import fastapi\nexcept ModuleNotFoundError:\n    print('hidden')"
    assert finished([sys.executable, "-c", script]) == "hidden\n"


@pytest.mark.slow
def test_the_first_script_runs_from_a_bare_checkout(tmp_path):
    finished(["bash", str(SCRIPTS / "first.sh"), "-k", "split-float32-tree"], OUT=str(tmp_path))
    found = json.loads((tmp_path / "check.json").read_text())
    assert not found["failures"] and not found["left_out"]
    assert "every backend equals float64" in {row["part"] for row in found["rows"]}
    packages = {row["case"]: row["note"] for row in found["rows"] if row["part"] == "package"}
    assert packages["datasets"] == "missing" and packages["pydantic"] != "missing"


@pytest.mark.slow
def test_the_commands_of_the_other_scripts_run_without_further_packages(pair, tmp_path):
    """Runs them in one process, on the toy pair: what a command imports, it imports when it runs."""
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": "the cat sat on the mat . " * 60}) + "\n" for _ in range(40)))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        "tokens_per_step = 64\ntotal_tokens = 128\nvalid_rows = 1\nvalid_length = 32\ndraft_vocab = 16\n"
        "mat_prompts = 0\n[[stages]]\nlength = 32\n"
    )
    target, head = str(pair / "target"), str(pair / "head")
    texts_of = ["--data", str(texts), "--valid", str(texts)]
    commands = [
        [
            "generate",
            "--model",
            target,
            "--drafter",
            head,
            "--prompt",
            "the cat sat",
            "--max-new-tokens",
            "4",
            "--compare",
        ],
        ["verify", "--model", target, "--drafter", head, "--method", "graft-x", "--prompts", str(texts)],
        ["train", "drafter", "--model", target, *texts_of, "--recipe", str(recipe), "--out", str(tmp_path / "run")],
        [
            "train",
            "regenerate",
            "--model",
            target,
            "--continue",
            str(texts),
            "--tokens",
            "16",
            "--max-new-tokens",
            "8",
            "--out",
            str(tmp_path / "own.jsonl"),
        ],
    ]
    script = (
        "import json, sys\nfrom longgraft.cli.app import main\nfor words in json.loads(sys.argv[1]):\n"
        "    sys.argv = ['longgraft', *words]\n    assert main() in (None, 0), words"
    )
    finished([sys.executable, "-c", script, json.dumps(commands)], tmp_path)


def checkout(folder: Path) -> Path:
    """Makes a repository with two heads, other weights and the script, and returns its root."""
    sizes = {
        "yarn_drafters/heads/a/model.safetensors": 3,
        "yarn_drafters/embedded/model.safetensors": 2,
        "README.md": 1,
        "constraints.txt": 0,
    }  # MiB
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size << 20))
    script = folder / "benchmarks" / "gpu" / "pack.sh"
    script.parent.mkdir(parents=True)
    script.write_text((SCRIPTS / "pack.sh").read_text())
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "exclude").write_text("/pack/\n")
    (folder / "pack" / "wheels").mkdir(parents=True)  # nothing is downloaded
    return folder


def packed(root: Path, *words: str, **limits: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "benchmarks/gpu/pack.sh", *words],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, **limits},
    )


def test_pack_sets_weights_aside_and_brings_them_back(tmp_path):
    root = checkout(tmp_path)
    head, other = root / "yarn_drafters/heads/a/model.safetensors", root / "yarn_drafters/embedded/model.safetensors"
    before = head.read_bytes()
    done = packed(root, "pack")
    assert done.returncode == 0, done.stderr
    assert not head.exists() and other.exists() and "checkout 3.0 MiB" in done.stdout
    file = tmp_path / "model.gguf"
    (root / ".git" / "info" / "exclude").write_text("/pack/\n/model.gguf\n")
    file.write_bytes(os.urandom(5 << 20))
    done = packed(root, "pack", str(file), PIECE="2")
    assert done.returncode == 0, done.stderr
    assert not head.exists() and not other.exists() and "3.0 MiB with the largest piece" in done.stdout
    assert b"".join(path.read_bytes() for path in sorted((root / "pack" / "pieces").iterdir())) == file.read_bytes()
    assert packed(root, "back").returncode == 0
    assert head.read_bytes() == before and other.exists()


def test_pack_fails_above_the_limit_of_a_transfer(tmp_path):
    done = packed(checkout(tmp_path), "pack", LIMIT="2")
    assert done.returncode == 1 and "a transfer takes 3.0 MiB, and 2 MiB are allowed" in done.stderr


def test_pack_needs_a_folder_that_is_ignored(tmp_path):
    done = packed(checkout(tmp_path), "other")
    assert done.returncode == 2 and "is not ignored. Run: echo '/other/' >>" in done.stderr

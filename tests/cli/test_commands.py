"""The command line without a model: its help, and one clear sentence for each mistake."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import version

import pytest
from toys.commands import assert_before_loading
from toys.sources import ROOT
from typer import Exit
from typer.main import get_command

from longgraft.cli.root import app


def commands(command, path=("longgraft",)):
    """Yields (words, command) for every command."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))
    yield path, command


def test_every_example_of_the_help_can_be_typed():
    seen, known = 0, list(commands(get_command(app)))
    for path, command in known:
        for example in (command.epilog or "").removeprefix("Example: ").split("; then "):
            if not example:
                continue
            words = shlex.split(example)
            found = next(
                inner
                for start, inner in sorted(known, key=lambda pair: -len(pair[0]))
                if tuple(words[: len(start)]) == start
            )
            start = next(start for start, inner in known if inner.name == found.name)
            found.make_context(found.name, words[len(start) :])  # raises the command line's errors
            seen += 1
        assert command.epilog or path == ("longgraft",) or getattr(command, "commands", None), path
    assert seen >= 17


def test_help_begins_with_the_most_used_commands():
    assert list(get_command(app).commands)[:5] == ["generate", "chat", "complete", "prefill", "methods"]
    assert list(get_command(app).commands)[-1] == "train"


def test_the_bare_command_prints_help(cli):
    code, out, err = cli()
    assert (code, err) == (0, "") and "generate" in out and out == cli("--help")[1]


@pytest.mark.parametrize(
    "typed, offered",
    [
        ("gen", ["generate"]),
        ("generate --max-n", ["--max-new-tokens"]),
        ("models g", ["get"]),
        ("--ver", ["--version"]),
    ],
)
def test_a_shell_completes_commands_and_options(cli, monkeypatch, typed, offered):
    # As if the command itself ran: its name would be that of the test runner.
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)
    monkeypatch.setenv("_LONGGRAFT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"longgraft {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    assert cli()[1].split() == offered


def test_completion_installs_itself_for_a_shell(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)
    monkeypatch.setattr("sys.argv", ["longgraft"])
    code, out, _ = cli("--install-completion", "bash")
    (script,) = (tmp_path / ".bash_completions").iterdir()
    assert code == 0 and str(script) in out and "_LONGGRAFT_COMPLETE=complete_bash" in script.read_text()


def test_short_forms_set_what_their_long_forms_do(cli, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    short = cli("generate", "-m", "smollm2", "-p", "x", "-n", 5, "-t", 3, "--dry-run")[1]
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert (
        short
        == cli("generate", "--model", "smollm2", "--prompt", "x", "--max-new-tokens", 5, "--threads", 3, "--dry-run")[1]
    )
    assert all(
        line in short.splitlines() for line in ('model = "smollm2"', "max_new_tokens = 5   # tokens", "threads = 3")
    )


@pytest.mark.parametrize(
    "path, command", [pytest.param(path, command, id=" ".join(path)) for path, command in commands(get_command(app))]
)
def test_help_shows_whole_titles_in_80_columns(monkeypatch, capsys, path, command):
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    with pytest.raises(Exit):
        command.make_context(" ".join(path), ["--help"])
    shown = capsys.readouterr().out
    titles = {param.rich_help_panel for param in command.params if param.rich_help_panel}
    assert "--help" in shown and [title for title in titles if f"─ {title} ─" not in shown] == []


def test_serve_and_generate_show_the_unit_of_a_cache_with_and_without_a_default(monkeypatch, capsys):
    for name, text in ("generate", "--prefixes GiB"), ("serve", "default: 4 GiB."):
        with pytest.raises(Exit):
            get_command(app).commands[name].make_context(name, ["--help"])
        assert text in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_the_version_is_the_packages(cli):
    assert cli("--version")[:2] == (0, f"longgraft {version('longgraft')}\n")


def test_help_and_missing_files_need_no_torch(tmp_path):
    shown = ["--help", "sweep --help", "methods"]
    commands = [
        "generate --prompt-file absent",
        "generate --prompt x --replay absent",
        "generate --prompts p --out p",
        "complete --file absent --line 1",
        "prefill absent --save x",
        "verify --prompts absent",
        "calibrate --prompts absent",
        "generate --prompt x --config absent",
        "generate -p x --method nosuch",
        "generate -p x -m smollm",
        "serve smollm",
        "chat smollm2 --model other",
        "methods nosuch",
    ]
    (tmp_path / "p").write_text('{"prompt": "x"}')
    code = (
        "import sys, longgraft.cli.app as a\n"
        "for words in sys.argv[1:]:\n    sys.argv = ['longgraft', *words.split()]\n"
        "    try: a.main()\n    except SystemExit as end: print(end.code)\n"
        "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *shown, *commands], capture_output=True, text=True, cwd=tmp_path)
    assert all(text in done.stdout for text in ("Drafters", "--buckets", "graft-x", "triforce"))
    assert done.stderr.count("\n") == len(commands), done.stderr
    assert done.stdout.splitlines()[-len(commands) - 1 :] == ["2"] * len(commands) + ["[]"]


@pytest.mark.parametrize("module", ["typer", "longgraft.cli.prompts", "longgraft.acceptance.sampling"])
def test_ctrl_c_while_modules_are_loaded_prints_no_traceback(module):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entry = project["scripts"]["longgraft"].replace(":", " import ")
    code = (
        "import sys\nclass Interrupts:\n    def find_spec(name, *_):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        f"sys.meta_path.insert(0, Interrupts)\nsys.argv = ['longgraft', 'generate', '--prompt', 'x']\n"
        f"from {entry}\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = done.stderr.splitlines()
    assert (done.returncode, done.stdout, said[-1]) == (130, "", "longgraft: interrupted")
    assert all(line.startswith("longgraft: ") for line in said)


@pytest.mark.parametrize(
    "words, said",
    [
        (["generate"], "No prompt was given. Give one of --prompt TEXT"),
        (["generate", "--prompt", ""], "prompt is empty"),
        (["generate", "hello"], "with --prompt"),
        (["costs", "--prefixes", ""], "--prefixes is []; it must be a list, each a whole number"),
        (["estimate", "log", "--costs", ""], "--costs is []; it must be a list, each text; at least one"),
        (["generate", "--prompt", "x", "--messages", "y"], "longgraft: --prompt and --messages were given. Give one"),
        (["generate", "--prompt", "x", "--budgt", "3"], "No such option: --budgt (Possible options: --budget"),
        (
            ["generate", "-p", "x", "--max-tokens", "3"],
            "(Possible options: --max-new-tokens, --stop-token-ids). See --help",
        ),
        (["generat"], "No such command 'generat'. Did you mean 'generate'? See --help."),
        (["serve", "smollm2", "-m", "toy"], "'smollm2' was given, and --model toy. Leave one of the two out."),
        (["serve", "smollm"], "Model 'smollm' is unknown. Did you mean smollm2?"),
        (["serve", "--ray", "local", "-t", "2"], "--threads was given, and a replica on Ray has the CPUs"),
        (["generate", "-p", "x", "-t", "0"], "--threads is 0"),
        (["generate", "--prompt", "x", "--budget", "many"], "--budget is 'many'; it must be paper or a whole number"),
        (["generate", "--prompt", "x", "--draft-top-k", "5000"], "--draft-top-k is 5,000"),
        (["generate", "--prompt", "x", "--max-new-tokens", "400000000"], "--max-new-tokens is 400,000,000"),
        (["generate", "--prompt", "x", "--temperature", "nan"], "--temperature is nan"),
        (["generate", "--prompt", "x", "--attention", "fast"], "Known: auto, sdpa, split, flash"),
        (["generate", "--prompt", "x", "--stop", ""], "stop string is empty"),
        (["generate", "--prompt", "x", "--out", "y"], "--out is for the answers to --prompts"),
        (["generate", "--prompt", "x", "--stream", "--json"], "--json is one object at the end"),
        (["generate", "--prompts", "rows.jsonl", "--stream"], "--prompts goes with neither"),
        (["generate", "--prompts", "bad.jsonl"], "bad.jsonl, line 1: prompt and prompt_ids was found"),
        (["generate", "--prompts", "deep.json"], "deep.json, line 1 is nested too deeply"),
        (["generate", "--prompt", "-", "--prediction", "-"], "Standard input was given twice"),
        (["generate", "--prompt-file", "latin.txt", "--prompt-file", "absent"], "is not UTF-8 text"),
        (["generate", "--prompt-file", "ids.json", "--prompt-file", "absent"], "absent cannot be read"),
        (["generate", "--prompt", "x", "--system", "y"], "--system was given without a chat"),
        (["generate", "--messages", "ids.json"], "ids.json: message 1 is a int; a message such as"),
        (["generate", "--messages", "empty.json"], "messages must be a list such as"),
        (["generate", "--prompt-ids", "bools.json"], "must hold one JSON list of token ids"),
        (["generate", "--prompt", "x", "--replay", "deep.json", "--seed", "3"], "is nested too deeply"),
        (["generate", "--prompt", "x", "--replay", "ids.json", "--temperature", "1"], "--replay says which tokens"),
        (["generate", "--prompt", "x", "--replay", "rows.jsonl"], "one JSON list of token ids"),
        (["generate", "--prompt", "x", "--config", "absent.toml"], "absent.toml cannot be read"),
        (["verify"], "Missing option '--prompts'"),
        (["verify", "--prompts", "absent.jsonl"], "absent.jsonl"),
        (["verify", "--prompts", "latin.txt", "--count", "0"], "--count is 0"),
        (["calibrate", "--prompts", "rows.jsonl", "--rounds", "0"], "--rounds is 0"),
        (["calibrate", "--prompts", "rows.jsonl", "--draft-cost", "-1"], "--draft-cost is -1.0"),
        (
            ["calibrate", "--prompts", "rows.jsonl", "--model", "m"],
            "no drafter of m is known or was given. Give one with",
        ),
        (["doctor", "--context", "0"], "--context is 0"),
        (["doctor", "--dtype", "int8"], "Known: float32"),
        (["sweep"], "No folder was given"),
        (["sweep", "--resume", "nowhere"], "nowhere holds no run"),
        (["sweep", "--out", "x", "--workers", "0"], "--workers is 0"),
        (["sweep", "--out", "x", "--buckets", "4k,x"], "--buckets is '4k,x'"),
        (["sweep", "--out", "x", "--mode", "reply"], "'reply' is unknown. Known: replay, sampled, greedy"),
        (["sweep", "--out", "x", "--head", "long"], "--head is 'long'; it must be NAME=VALUE"),
        (["sweep", "--out", "x", "--methods", "graft@long"], "names the head 'long'"),
        (["bench", "--out", "x", "--buckets", "4k"], "No such option: --buckets"),
        (
            ["generate", "--prompt", "x", "--prediction", "a text\nand no file " * 30],
            "File a text and no file a text and no file",
        ),
        (["ablate", "--out", "x"], "Missing argument 'WHICH'"),
    ],
)
def test_wrong_arguments_get_one_sentence_before_a_model_is_loaded(cli, monkeypatch, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    for name, text in (
        ("rows.jsonl", '{"prompt": "w1"}'),
        ("bad.jsonl", '{"prompt": "w1", "prompt_ids": [1]}'),
        ("deep.json", "[" * 100_000),
        ("ids.json", "[1]"),
        ("empty.json", "[]"),
        ("bools.json", "[true]"),
        ("latin.txt", "\xe4"),
    ):
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    assert_before_loading(monkeypatch)
    code, out, err = cli(*words)
    assert code == 2 and said in err and out == "" and len(err.splitlines()) == 1, err


@pytest.mark.parametrize(
    "words, kind",
    [
        ("generate --prompts there --out", "file"),
        ("prefill there --save", "file"),
        ("costs --out", "file"),
        ("calibrate --prompts there --out", "file"),
        ("recordings run --out", "file"),
        ("heads export head --out", "folder"),
        ("diagnose --out", "folder"),
    ],
)
def test_every_command_refuses_to_overwrite_in_the_same_words(cli, monkeypatch, tmp_path, words, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text('{"prompt": "x"}')
    assert_before_loading(monkeypatch)
    _, _, err = cli(*words.split(), "there")
    assert err == f"longgraft: there exists already, and nothing is overwritten. Give a new {kind}.\n"
    _, _, err = cli(*words.split(), "there/in")
    assert err.startswith("longgraft: there/in cannot be written: ") and err.count("\n") == 1

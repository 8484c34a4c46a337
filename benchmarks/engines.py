"""longgraft and the engines beside it on the same file, the same token ids and the same core.

    python -m benchmarks engines prompts PROMPTS.jsonl --run RUN --data ROWS --lengths 4096 --count 3
    python -m benchmarks engines measure longgraft FILE.gguf PROMPTS.jsonl --out rows.jsonl
    python -m benchmarks engines measure server FILE.gguf PROMPTS.jsonl --out rows.jsonl --server "llama-server -fa on"
    python -m benchmarks engines report rows.jsonl

All engines continue the same prompts greedily by the same number of tokens and ignore end tokens.  The prompts are
those of a sweep: of a run (`--run`), or of the sweep that `--model`, `--suites` and `--lengths` would make.  Each
engine has an environment of its own, and only longgraft's needs longgraft's packages.  Rows are appended to one file;
run one engine at a time on a machine that does nothing else.

`server` measures `llama-server` of llama.cpp, or of ik_llama.cpp (`--name ik_llama.cpp`).  A server is started for
each prompt, so that its n-grams have seen neither the prompt nor its answer; `--keep` keeps one for all prompts, which
`--spec-autotune` needs to learn anything.  Servers that were tried, with their options:

    llama-server                                                    llama.cpp, with flash attention
    llama-server -fa off
    llama-server -fa off --spec-type ngram-mod                      drafts of 48 and more after 24 equal tokens
    llama-server -fa off --spec-type ngram-mod --spec-ngram-mod-n-match 8 --spec-ngram-mod-n-min 2
    llama-server -fa off --spec-type ngram-map-k
    llama-server -fa off --spec-type ngram-cache                    the lookup cache; it drafts 8 tokens
    llama-server                                                    ik_llama.cpp
    llama-server --spec-type suffix
    llama-server --spec-type suffix --spec-autotune

`llama-cpp-python` is measured plain, with its own prompt lookup and with longgraft.plugins.llama_cpp.

`openvino` needs the packages openvino-genai and openvino-tokenizers.  Its reader has no Q5_0, of which Qwen's Q4_K_M
file of the 0.5B has many tensors; `widen FILE.gguf OUT.gguf` writes the same numbers as Q8_0.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.json_rows import append
from benchmarks.lists import listed, numbers
from benchmarks.peers import llama_cpp_python, llama_server, openvino, ours, transformers_generate
from benchmarks.peers.answers import Decode, Engine, Prompt, Setup, read_prompts
from benchmarks.peers.prompts import prompts_of
from longgraft.eval.runs.provenance import processor

if TYPE_CHECKING:
    from longgraft.eval.runs.config import SweepConfig

ENGINES: dict[str, Engine] = {
    "longgraft": ours.methods_of,
    "server": llama_server.methods_of,
    "llama-cpp-python": llama_cpp_python.methods_of,
    "transformers": transformers_generate.methods_of,
    "openvino": openvino.methods_of,
}


def prompts(given: argparse.Namespace) -> None:
    """Writes prompts of a sweep."""
    found = prompts_of(sweep_of(given), given.suites, given.lengths, given.count)
    append(given.out, map(asdict, found))


def sweep_of(given: argparse.Namespace) -> SweepConfig:
    """Returns the configuration of the run that is given, or one of the given suites and lengths."""
    from longgraft.eval.runs.config import SweepConfig
    from longgraft.eval.runs.resume import resume_config

    if given.run:
        config = resume_config(given.run)
        return replace(config, data=given.data or config.data)
    return SweepConfig(
        suites=tuple(given.suites),
        lengths=tuple(given.lengths),
        model=given.model,
        data=given.data,
        modes=("greedy",),
        methods=(),
        prompts=given.count or SweepConfig.prompts,
    )


def measure(given: argparse.Namespace) -> None:
    """Times one engine and appends its rows."""
    if not Path(given.file).is_file():
        raise ValueError(f"There is no file {given.file}. Give the path of a GGUF file.")
    wanted = [prompt for prompt in read_prompts(given.prompts) if not given.lengths or prompt.length in given.lengths]
    if not wanted:
        raise ValueError(f"{given.prompts} has no prompt of {', '.join(map(str, given.lengths)) or 'any length'}.")
    longest = max(len(prompt.ids) for prompt in wanted)
    setup = Setup(given.file, tuple(given.methods), given.new, given.threads, longest, given.server, given.keep)
    about = {
        "engine": given.name or given.engine,
        "version": version_of(given.engine, given.server),
        "file": Path(given.file).name,
        "processor": processor(),
        "threads": given.threads,
    }
    for method, decode in ENGINES[given.engine](setup):
        for prompt in wanted:
            row = about | {"method": method, "suite": prompt.suite, "length": prompt.length, "prompt": prompt.id}
            row |= answer_or_error(decode, prompt)
            append(given.out, [row])
            show(row)


def show(row: dict[str, Any]) -> None:
    """Prints a row without its ids."""
    shown = {}
    for name, value in row.items():
        if name != "ids":
            shown[name] = round(value, 1) if isinstance(value, float) else value
    print(shown, flush=True)


def answer_or_error(decode: Decode, prompt: Prompt) -> dict[str, Any]:
    """Returns the fields of an answer, or why there is none."""
    try:
        return decode(prompt.ids).row(prompt)
    except (MemoryError, OSError, RuntimeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def version_of(engine: str, server: str) -> str:
    """Returns the version of an engine."""
    if engine == "server":
        return llama_server.version_of(server)
    if engine == "longgraft":
        import longgraft

        return longgraft.__version__
    return version({"openvino": "openvino-genai"}.get(engine, engine))


def report(given: argparse.Namespace) -> None:
    """Prints the tables of files of rows, in longgraft's environment."""
    from benchmarks.peers.table import lines, read_rows

    print("\n".join(lines(read_rows(given.rows), given.by_suite)))


def widen(given: argparse.Namespace) -> None:
    """Writes a copy of a file with Q8_0 in place of Q5_0."""
    openvino.widened(given.file, given.out)


def parser(prog: str | None) -> argparse.ArgumentParser:
    """Returns the parser of the commands.  typer would be one more package for the environment of each engine."""
    made = argparse.ArgumentParser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(required=True)

    def command(run: Callable[[argparse.Namespace], None]) -> Callable[..., argparse.Action]:
        """Adds a command, and returns the function that adds its options."""
        added = commands.add_parser(run.__name__, help=run.__doc__)
        added.set_defaults(run_command=run)
        return added.add_argument

    add = command(prompts)
    add("out", type=Path, help="file of JSON lines; prompts are appended")
    add("--run", type=Path, help="folder of a sweep, whose prompts are taken")
    add("--model", help="without --run: the model whose tokenizer makes the ids")
    add("--suites", type=listed, default=[], help="of the run; without --run: names or files of suites")
    add("--data", help="folder of the suites' rows")
    add("--lengths", type=numbers, default=[], help="prompt tokens; without --run and lengths, prompts are whole")
    add("--count", type=int, default=0, help="most prompts per suite and length")

    add = command(measure)
    add("engine", choices=ENGINES)
    add("file", help="GGUF file")
    add("prompts", type=Path, help="file that the command prompts wrote")
    add("--lengths", type=numbers, default=[], help="only prompts of these lengths")
    add("--methods", type=listed, default=[], help="names of methods; default: the engine's usual ones")
    add("--new", type=int, default=64, help="tokens of each answer")
    add("--threads", type=int, default=1)
    options = "a llama-server with its options, but for model, port, threads and context"
    add("--server", metavar="COMMAND", default="", help=options)
    add("--keep", action="store_true", help="keep one server for all prompts")
    add("--name", help="the engine's name in rows and tables, such as ik_llama.cpp")
    add("--out", type=Path, default=Path("engines.jsonl"))

    add = command(report)
    add("rows", type=Path, nargs="+", help="files of rows, of one model and one processor")
    add("--by-suite", action="store_true", help="make a table for each suite")

    add = command(widen)
    add("file", type=Path)
    add("out", type=Path)
    return made


def app(arguments: Sequence[str], prog_name: str | None = None) -> None:
    """Runs the command that the arguments name."""
    made = parser(prog_name)
    given = made.parse_args(arguments)
    if given.run_command is measure and given.engine == "server":
        if not given.server:
            made.error("server needs --server COMMAND, such as --server 'llama-server -fa on'.")
        program = shlex.split(given.server)[0]
        if not shutil.which(program):
            made.error(f"there is no program {program}; give the path of a llama-server in --server.")
        given.name = given.name or "llama.cpp"
    try:
        given.run_command(given)
    except ValueError as error:
        made.error(str(error))

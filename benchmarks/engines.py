"""longgraft and the engines beside it on the same file, the same token ids and the same core.

    python -m benchmarks.engines prompts PROMPTS.jsonl --run RUN --data ROWS --lengths 4096 --count 3
    python -m benchmarks.engines measure longgraft FILE.gguf PROMPTS.jsonl --out rows.jsonl
    python -m benchmarks.engines measure server FILE.gguf PROMPTS.jsonl --out rows.jsonl --server "llama-server -fa on"
    python -m benchmarks.engines report rows.jsonl

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
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.peers import llama_cpp_python, llama_server, openvino, ours, transformers_generate
from benchmarks.peers.answers import Decode, Engine, Prompt, Setup, append, read_prompts
from benchmarks.peers.prompts import prompts_of
from benchmarks.peers.table import lines, read_rows
from longgraft.eval.runs.provenance import processor

ENGINES: dict[str, Engine] = {
    "longgraft": ours.methods_of,
    "server": llama_server.methods_of,
    "llama-cpp-python": llama_cpp_python.methods_of,
    "transformers": transformers_generate.methods_of,
    "openvino": openvino.methods_of,
}


def prompts(given: argparse.Namespace) -> None:
    """Writes prompts of a sweep."""
    from longgraft.eval.runs.config import SweepConfig
    from longgraft.eval.runs.resume import resume_config

    suites, lengths = tuple(given.suites), tuple(given.lengths)
    if given.run:
        config = resume_config(given.run)
        config = replace(config, data=given.data or config.data)
    else:
        config = SweepConfig(
            suites=suites,
            lengths=lengths,
            model=given.model,
            data=given.data,
            modes=("greedy",),
            methods=(),
            prompts=given.count or SweepConfig.prompts,
        )
    for prompt in prompts_of(config, suites, lengths, given.count):
        append(given.out, asdict(prompt))


def measure(given: argparse.Namespace) -> None:
    """Times one engine and appends its rows."""
    if not Path(given.file).is_file():
        raise ValueError(f"There is no file {given.file}. Give the path of a GGUF file.")
    wanted = [prompt for prompt in read_prompts(given.prompts) if not given.lengths or prompt.length in given.lengths]
    if not wanted:
        raise ValueError(f"{given.prompts} has no prompt of {', '.join(map(str, given.lengths)) or 'any length'}.")
    setup = Setup(
        given.file,
        tuple(given.methods),
        given.new,
        given.threads,
        max(len(prompt.ids) for prompt in wanted),
        given.server,
        given.keep,
    )
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
            append(given.out, row)
            shown = {key: round(value, 1) if isinstance(value, float) else value for key, value in row.items()}
            print({key: value for key, value in shown.items() if key != "ids"}, flush=True)


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
    """Prints the tables of files of rows."""
    print("\n".join(lines(read_rows(given.rows), given.by_suite)))


def widen(given: argparse.Namespace) -> None:
    """Writes a copy of a file with Q8_0 in place of Q5_0."""
    openvino.widened(given.file, given.out)


def numbers(text: str) -> list[int]:
    """Parses numbers with commas between them."""
    return [int(number) for number in text.split(",")]


def names(text: str) -> list[str]:
    """Parses names with commas between them."""
    return text.split(",")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the commands."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(required=True)
    add = commands.add_parser("prompts", help=prompts.__doc__)
    add.set_defaults(run_command=prompts)
    add.add_argument("out", type=Path, help="file of JSON lines; prompts are appended")
    add.add_argument("--run", type=Path, help="folder of a sweep, whose prompts are taken")
    add.add_argument("--model", help="without --run: the model whose tokenizer makes the ids")
    add.add_argument("--suites", type=names, default=[], help="of the run; without --run: names or files of suites")
    add.add_argument("--data", help="folder of the suites' rows")
    add.add_argument(
        "--lengths", type=numbers, default=[], help="prompt tokens; without --run and lengths, prompts are whole"
    )
    add.add_argument("--count", type=int, default=0, help="most prompts per suite and length")
    add = commands.add_parser("measure", help=measure.__doc__)
    add.set_defaults(run_command=measure)
    add.add_argument("engine", choices=ENGINES)
    add.add_argument("file", help="GGUF file")
    add.add_argument("prompts", type=Path, help="file that the command prompts wrote")
    add.add_argument("--lengths", type=numbers, default=[], help="only prompts of these lengths")
    add.add_argument("--methods", type=names, default=[], help="names of methods; default: the engine's usual ones")
    add.add_argument("--new", type=int, default=64, help="tokens of each answer")
    add.add_argument("--threads", type=int, default=1)
    add.add_argument(
        "--server",
        metavar="COMMAND",
        default="",
        help="a llama-server with its options, but for model, port, threads and context",
    )
    add.add_argument("--keep", action="store_true", help="keep one server for all prompts")
    add.add_argument("--name", help="the engine's name in rows and tables, such as ik_llama.cpp")
    add.add_argument("--out", type=Path, default=Path("engines.jsonl"))
    add = commands.add_parser("report", help=report.__doc__)
    add.set_defaults(run_command=report)
    add.add_argument("rows", type=Path, nargs="+", help="files of rows, of one model and one processor")
    add.add_argument("--by-suite", action="store_true", help="make a table for each suite")
    add = commands.add_parser("widen", help=widen.__doc__)
    add.set_defaults(run_command=widen)
    add.add_argument("file", type=Path)
    add.add_argument("out", type=Path)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    made = parser()
    given = made.parse_args(arguments)
    if given.run_command is measure and given.engine == "server":
        if not given.server:
            made.error("server needs --server COMMAND, such as --server 'llama-server -fa on'.")
        if not shutil.which(program := shlex.split(given.server)[0]):
            made.error(f"there is no program {program}; give the path of a llama-server in --server.")
        given.name = given.name or "llama.cpp"
    try:
        given.run_command(given)
    except ValueError as error:
        made.error(str(error))


if __name__ == "__main__":
    main()

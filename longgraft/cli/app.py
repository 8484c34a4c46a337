"""The command line.  Knows options and printing; every error of a user is one sentence and exit status 2."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from longgraft.cli.measuring import measuring
from longgraft.cli.training import heads, train

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Exact long-context decoding: drafts, pruned when unsure, grafted with retrieved tokens.")
app.add_typer(train, name="train")
app.add_typer(heads, name="heads")
app.registered_commands += measuring.registered_commands

Model = Annotated[Optional[str], typer.Option(help="Hub id or folder; default: the embedded model.")]  # noqa: UP045
Drafter = Annotated[str, typer.Option(help="EAGLE-3 head (hub id or folder), 'auto' or 'none'.")]
MethodName = Annotated[str, typer.Option(help="See `longgraft methods`.")]
Device = Annotated[Optional[str], typer.Option(help="cpu, cuda, cuda:1 ...")]  # noqa: UP045
Dtype = Annotated[Optional[str], typer.Option(help="float32, bfloat16 or float16.")]  # noqa: UP045
Attention = Annotated[str, typer.Option(help="auto, sdpa, split or flash.")]
Budget = Annotated[Optional[int], typer.Option(help="Nodes per verification, root included; default 60, on a CPU 16.")]  # noqa: UP045
Levels = Annotated[int, typer.Option(help="Draft forwards per step at most (EAGLE's depth + 1).")]
TopK = Annotated[int, typer.Option("--draft-top-k", help="Beam width and branching of the drafter.")]
Window = Annotated[Optional[int], typer.Option("--draft-window", help="Tokens of its past that the drafter sees.")]  # noqa: UP045
Chunk = Annotated[Optional[int], typer.Option(help="Prompt tokens per prefill pass; default: by memory.")]  # noqa: UP045
CalibrationFile = Annotated[str, typer.Option(help="File of `longgraft calibrate`, 'auto' or 'none'.")]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", help="Exactly this many, or up to the end token.")]


@app.command(epilog="Example: longgraft generate --prompt-file long.py --max-new-tokens 128 --compare")
def generate(
    prompt_file: Annotated[Optional[Path], typer.Option(help="Text file.")] = None,  # noqa: UP045
    prompt_ids: Annotated[Optional[Path], typer.Option(help="JSON list of token ids.")] = None,  # noqa: UP045
    model: Model = None, drafter: Drafter = "auto", method: MethodName = "graft", max_new_tokens: NewTokens = 256,
    budget: Budget = None, draft_levels: Levels = 9, draft_top_k: TopK = 10,
    draft_window: Window = None, dtype: Dtype = None,
    device: Device = None, attention: Attention = "auto", chunk: Chunk = None,
    calibration: CalibrationFile = "auto",
    temperature: Annotated[float, typer.Option(help="0: greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="1: off.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="0: off.")] = 0,
    min_p: Annotated[float, typer.Option(help="0: off.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    stop: Annotated[Optional[list[str]], typer.Option(help="Text ends before it; repeatable.")] = None,  # noqa: UP045
    stream: Annotated[bool, typer.Option("--stream", help="Print text as it comes.")] = False,
    replay: Annotated[Optional[Path], typer.Option(  # noqa: UP045
        help="Recorded continuation (text or JSON list of ids) that drives acceptance.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object on stdout, nothing else.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Also decode plainly; print the speedup.")] = False,
) -> None:
    """Answer a long prompt."""
    from longgraft.sampling import Sampling

    # What is wrong with the request is said before a model is loaded for it.
    if stream and (compare or as_json):
        raise ValueError("--stream goes with neither --compare nor --json. Leave it out.")
    _positive(max_new_tokens=max_new_tokens)
    prompt = read_prompt(prompt_file, prompt_ids)
    sampling = Sampling(temperature, top_p, top_k, min_p, seed)
    recording = None if replay is None else _read(replay)
    session = _load(model, drafter, quiet=True, method=method, budget=budget, draft_levels=draft_levels,
                    draft_top_k=draft_top_k, draft_window=draft_window,
                    dtype=dtype, device=device, attention=attention, chunk=chunk,
                    calibration=_none(calibration))
    if recording is not None:
        sampling = Sampling(replay=_recorded(session, recording))
    draw, ids = vars(sampling), session.encode(prompt)
    session.check(len(ids), min(max_new_tokens, len(sampling.replay or [0] * max_new_tokens)))
    if not as_json:
        print(*(f"longgraft: {line}" for line in session.about), sep="\n", file=sys.stderr)
    if stream:
        return _stream(session, ids, max_new_tokens, stop or (), draw)
    answer = session.generate(ids, max_new_tokens, stop or (), **draw)
    report: dict[str, Any] = {"text": answer.text, "token_ids": answer.token_ids, "stats": answer.stats.as_dict()}
    if compare:
        from longgraft.eval.checks.losslessness import compare_with_plain

        report["compare"] = compare_with_plain(session, ids, answer, sampling, max_new_tokens, bool(stop))
    if as_json:
        print(json.dumps(report))
    else:
        _print_answer(report)


@app.command(epilog="Example: longgraft methods")
def methods() -> None:
    """List the methods."""
    from longgraft.methods import METHODS

    for method in METHODS.values():
        print(f"{method.name:<20} {method.clause}\n{'':<20} {method.paper}; needs {method.needs}; "
              f"budget {method.budget}")


@app.command(epilog="Example: longgraft templates")
def templates() -> None:
    """List the retrieved trees: nodes, and nodes per depth (Graft, Table 7)."""
    from longgraft.templates import graft_templates, token_recycling

    for name, template in {**graft_templates(), "token-recycling": token_recycling()}.items():
        print(f"{name:<20} {len(template):>3} = {' + '.join(map(str, template.counts))}")


@app.command(epilog="Example: longgraft verify --method graft --prompts rows.jsonl --max-new-tokens 128")
def verify(
    prompts: Annotated[Path, typer.Option(help="JSONL with a prompt, context or text column, or a text file.")],
    model: Model = None, drafter: Drafter = "auto", method: MethodName = "graft", max_new_tokens: NewTokens = 128,
    count: Annotated[int, typer.Option(help="Prompts at most.")] = 5,
    max_prompt_tokens: Annotated[int, typer.Option(help="Prompts keep their last tokens.")] = 4096,
    budget: Budget = None, dtype: Dtype = None, device: Device = None, attention: Attention = "auto",
    temperature: Annotated[float, typer.Option(help="0: greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One object on stdout.")] = False,
) -> None:
    """Report the lossless level that a method reaches: first divergence from plain decoding and the margin there."""
    from longgraft.eval.checks.losslessness import check, lines
    from longgraft.eval.prompts.suites import read_prompts
    from longgraft.sampling import Sampling

    _positive(count=count, max_prompt_tokens=max_prompt_tokens, max_new_tokens=max_new_tokens)
    examples = read_prompts(prompts, count)
    session = _load(model, drafter, quiet=as_json, method=method, budget=budget, dtype=dtype, device=device,
                    attention=attention)
    ids = [session.encode(example.encode(session.tokenizer))[-max_prompt_tokens:] for example in examples]
    report = check(session, ids, Sampling(temperature, seed=seed), max_new_tokens)
    print(json.dumps(report) if as_json else "\n".join(lines(report)))


@app.command(epilog="Example: longgraft doctor --model Qwen/Qwen3-8B --drafter AngelSlim/Qwen3-8B_eagle3")
def doctor(model: Model = None, drafter: Drafter = "auto",
           context: Annotated[int, typer.Option(help="Prompt tokens to plan memory for.")] = 32768,
           device: Device = None, dtype: Dtype = None) -> None:
    """Device, versions, backends, and whether a target and a head fit together."""
    from longgraft.eval.checks.doctor import report

    _positive(context=context)
    for line in report(model, _none(drafter), context, device, dtype):
        print(line)


@app.command(epilog="Example: longgraft calibrate --prompts warmup.jsonl --rounds 5")
def calibrate(
    prompts: Annotated[Path, typer.Option(help="JSONL of warm-up prompts (turns, prompt or text column); rows with a "
                                               "continuation are replayed.")],
    model: Model = None, drafter: Drafter = "auto",
    rounds: Annotated[int, typer.Option(help="Warm-up prompts.")] = 5,
    max_new_tokens: NewTokens = 256, budget: Budget = None,
    out: Annotated[Optional[Path], typer.Option(help="Default: where `load` looks.")] = None,  # noqa: UP045
    device: Device = None, dtype: Dtype = None,
    temperature: Annotated[float, typer.Option(help="Thresholds hold for this temperature.")] = 0.0,
    draft_cost: Annotated[Optional[float], typer.Option(  # noqa: UP045
        min=0.0, help="Of a drafted level, in verifications; default: measured here.")] = None,
    keep_acceptance: Annotated[bool, typer.Option(
        "--keep-acceptance", help="The fastest thresholds that accept no less than a dense tree.")] = False,
) -> None:
    """Run warm-up prompts: fill the matrix snapshot, choose thresholds, write one small file that `load` picks up."""
    from longgraft.eval.checks.calibrate import calibrate as run
    from longgraft.eval.checks.calibrate import prompt_of
    from longgraft.eval.prompts.suites import read_prompts

    _positive(rounds=rounds, max_new_tokens=max_new_tokens)
    examples = read_prompts(prompts, rounds)
    session = _load(model, drafter, method="eagle3", budget=budget, device=device, dtype=dtype, calibration=None)
    warm = [prompt_of(example, session) for example in examples]
    path = run(session, warm, max_new_tokens, temperature, out, draft_cost, keep_acceptance)
    print(path)


def read_prompt(text: Path | None, ids: Path | None) -> str | list[int]:
    """The one prompt that was given."""
    if (text is None) == (ids is None):
        raise ValueError("Give one prompt: --prompt-file TEXT or --prompt-ids JSON.")
    if text is not None:
        return _read(text)
    assert ids is not None
    return _ids(ids)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"File {path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def _ids(path: Path) -> list[int]:
    try:
        ids = json.loads(_read(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"File {path} is not JSON ({error}). Give a list of token ids.") from error
    if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
        raise ValueError(f"File {path} must hold one JSON list of token ids.")
    return ids


def _load(model: str | None, drafter: str, quiet: bool = False, **options: Any) -> Any:
    """A session; in a command, stderr is for what we say, not for transformers' bars."""
    from transformers.utils import logging

    from longgraft.loading import load

    logging.disable_progress_bar()
    return load(model, _none(drafter), tell=not quiet, **options)


def _recorded(session: Any, text: str) -> list[int]:
    """A recording's token ids: a JSON list of ids as it stands, anything else as text."""
    try:
        ids = json.loads(text)
    except json.JSONDecodeError:
        ids = None
    if isinstance(ids, list) and all(isinstance(i, int) for i in ids):
        return ids
    return session.tokenizer(text, add_special_tokens=False)["input_ids"]


def _stream(session: Any, prompt: Any, max_new_tokens: int, stop: Any, draw: dict[str, Any]) -> None:
    for piece in session.stream(prompt, max_new_tokens, stop, **draw):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")


def _print_answer(report: dict[str, Any]) -> None:
    print(report["text"])
    s = report["stats"]
    origin = ", ".join(f"{k} {v}" for k, v in s["accepted_by_origin"].items())
    print(f"\n{s['prompt_tokens']:,} prompt tokens in {s['prefill_seconds']:.2f} s; {s['new_tokens']} new in "
          f"{s['decode_seconds']:.2f} s ({s['decode_tokens_per_second']:.1f} tokens/s, {s['steps']} steps)\n"
          f"MAT {s['mat']:.2f} accepted per step without the bonus, {s['tokens_per_step']:.2f} tokens per step; "
          f"accepted: {origin}", file=sys.stderr)
    if "compare" in report:
        c = report["compare"]
        same = "identical ids" if c["identical"] else f"first different id at {c['first_divergence']}"
        print(f"plain decoding: {c['plain_tokens_per_second']:.1f} tokens/s; speedup {c['speedup']:.2f}x (decode "
              f"only, one run each); {same}", file=sys.stderr)


def _none(value: str | None) -> str | None:
    return None if value == "none" else value


def _positive(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be 1 or more.")


def main() -> None:
    """Entry point: a user's error is a sentence on stderr and exit status 2; ours is a traceback."""
    try:
        app()
    except (ValueError, ImportError, OSError) as error:     # OSError: files, and hubs out of reach
        _fail(str(error))
    except MemoryError as error:
        _fail(f"Out of memory: {error}. Shorten the prompt, lower --chunk or use a smaller --dtype.")
    except RuntimeError as error:       # torch.OutOfMemoryError is one; the CPU allocator has no class of its own
        if "out of memory" not in str(error).lower() and "can't allocate memory" not in str(error):
            raise
        _fail(f"Out of memory: {str(error).splitlines()[0]} Shorten the prompt, lower --chunk or use a smaller "
              "--dtype.")


def _fail(message: str) -> None:
    print(f"longgraft: {message}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main()

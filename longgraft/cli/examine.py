"""The commands methods, doctor, calibrate and verify."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from annotated_types import Ge, Le

from longgraft.cli.commands import command
from longgraft.cli.opening import open_session, say, say_loading
from longgraft.config.answer_settings import AnswerTokens, SamplingSettings, Temperature
from longgraft.config.endpoint_options import EndpointOptions, refuse_unread
from longgraft.config.method_roles import DEFAULT, DENSE, HEADLESS, PAPERS
from longgraft.config.options import Checked, option
from longgraft.config.settings import CacheDType, Device, DType, Machine, Pair, Settings, Tokens, Weights
from longgraft.files.new_paths import new_file

if TYPE_CHECKING:
    from longgraft.methods.method import Method
    from longgraft.methods.summaries import Summary

looking = typer.Typer()

PANEL = "Check"
Json = Annotated[bool, typer.Option("--json", help="One object on stdout.")]


@looking.command(
    "methods", epilog="Example: longgraft methods; then longgraft methods graft-x", rich_help_panel="Answer"
)
def methods(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Methods, or FILE.py:OBJECT of your own, to describe in full."),
    ] = None,
) -> None:
    """List the core methods, the zoo and the methods of installed packages; or describe one: its needs and settings."""
    from longgraft.methods.summaries import Summary, check_method_name, registered, summaries

    if names:
        for name in names:
            check_method_name(name)
        from longgraft.methods.find import find

        print("\n".join(_described(name, find(name)) for name in names))
        return
    core, zoo = summaries()
    others = {}
    if registered()[1]:
        from longgraft.methods.find import installed

        others = {name: Summary.of(method) for name, method in installed().items()}
    groups = {
        "Core methods": core,
        "The zoo: methods to compare with": zoo,
        "Methods of installed packages": others,
    }
    print("nodes at most, root included; what it is [what it needs, or does not promise; what can be chosen of it]")
    for title, group in groups.items():
        if group:
            print("\n".join(["", title, *map(_listed, group.values())]))


def _listed(method: Summary) -> str:
    """Describes a method in one line."""
    about = []
    if method.name in (DEFAULT, HEADLESS):
        about.append("the default" if method.name == DEFAULT else "the default without a head")
    if method.needs:
        about.append(f"needs {' and '.join(method.needs)}")
    if method.promise != "exact":
        about.append(method.promise)
    if method.choices:
        about.append(" ".join(f"+{name}" for name in method.choices))
    notes = f" [{'; '.join(about)}]" if about else ""
    return f"  {method.name:<22} {method.budget:>3}  {method.clause}{notes}"


def _described(name: str, method: Method) -> str:
    """Describes a method in full, with its settings."""
    needs = " and ".join(f"{need.clause} ({need.switch})" for need in method.needs) or "nothing"
    lines = [
        f"{name:<20} {method.clause}",
        f"{'':<20} {method.paper}; needs {needs}; budget {method.budget}; {method.promise}",
    ]
    for choice in method.own:
        default = choice.text(choice.default)
        lines.append(f"{'':<22}+{choice.name}={default}: {choice.help_text(choice.default)}")
    return "\n".join(lines)


@dataclass(frozen=True)
class MemoryPlan(Checked):
    """The prompt and precision to plan memory for."""

    context: Tokens = option(32768, "Prompt tokens to plan memory for", unit="tokens")
    device: Device = None
    dtype: DType = None
    weights: Weights = "auto"
    kv_dtype: CacheDType = None


@command(
    looking, "doctor", "longgraft doctor --model Qwen/Qwen3-8B --drafter AngelSlim/Qwen3-8B_eagle3 --context 32k", PANEL
)
def doctor(pair: Pair, plan: MemoryPlan) -> None:
    """Show versions, devices and backends; check that a target and a head fit together and into memory.

    Loads no weights. Exit status 1 if something does not fit.
    """
    from longgraft.eval.checks.doctor import examine
    from longgraft.models.targets import CACHE_DTYPES
    from longgraft.runtime.devices import device_of, dtype_of

    dtype = dtype_of(plan.dtype) if plan.dtype else None
    cache = CACHE_DTYPES[plan.kv_dtype] if plan.kv_dtype else None
    report = examine(pair, plan.context, device_of(plan.device), dtype, plan.weights, cache)
    print("\n".join(report.lines))
    if not report.fits:
        raise SystemExit(1)


@dataclass(frozen=True)
class CalibrationOptions(Checked):
    """Options of a calibration."""

    rounds: Annotated[int, Ge(1), Le(10**6)] = option(5, "Warm-up prompts", source="Graft, Table 4")
    max_new_tokens: AnswerTokens = 256
    out: str | None = option(None, "New file", none="where `load` looks", metavar="FILE")
    temperature: Temperature = option(0.0, "Choose thresholds for this temperature", note="0 is greedy")
    draft_cost: Annotated[float, Ge(0)] | None = option(
        None, "Cost of a drafted level, as a share of a verification", none="measured here"
    )
    keep_acceptance: bool = option(False, "Choose the fastest thresholds that accept no less than a dense tree")


@command(
    looking,
    "calibrate",
    "longgraft calibrate --prompts warmup.jsonl --rounds 5",
    PANEL,
    base={"method": PAPERS},
    without=("method", "calibration", "costs", "persist", "chunk", "corpus", "remember"),
)
def calibrate(
    prompts: Annotated[
        Path,
        typer.Option(
            help="JSONL of warm-up prompts (turns, prompt or text column); rows with a continuation are replayed."
        ),
    ],
    pair: Pair,
    warming: CalibrationOptions,
    settings: Settings,
) -> None:
    """Run warm-up prompts, fill the matrix, choose thresholds, and write one small file that `load` picks up."""
    from longgraft.eval.prompts.suites import read_prompts

    out = None if warming.out is None else new_file(warming.out)
    examples = read_prompts(prompts, warming.rounds)  # before the imports, which take seconds
    from longgraft.methods.needs import head_path
    from longgraft.models.catalogue import EMBEDDED

    model = pair.model or EMBEDDED
    if pair.drafter == "none" or head_path(pair.drafter, model) is None:
        raise ValueError(
            f"A calibration holds thresholds of a drafter, but no drafter of {model} is known "
            "or was given. Give one with --drafter; without a drafter no calibration is needed."
        )
    say_loading(pair)
    from longgraft.eval.checks.calibrate import WarmupSettings, prompt_of
    from longgraft.eval.checks.calibrate import calibrate as run
    from longgraft.loading import assemble, print_choices

    # Not `open_session`, which refuses bounds of the retrieval that this method does not read and the warm-up does.
    loaded = assemble(pair.model, pair.drafter, replace(settings, method=DENSE, calibration=None))
    session = loaded.session(loaded.settings)
    print_choices(session)
    warm = [prompt_of(example, session) for example in examples]
    warmup = WarmupSettings(
        warming.max_new_tokens, warming.temperature, settings.budget, warming.draft_cost, warming.keep_acceptance
    )
    print(run(loaded, warm, warmup, out))


@dataclass(frozen=True)
class Checking(Checked):
    """Options of a check."""

    count: Annotated[int, Ge(1), Le(10**6)] = option(5, "Most prompts to check")
    max_prompt_tokens: Tokens = option(4096, "Longer prompts keep this many of their last tokens", unit="tokens")
    max_new_tokens: AnswerTokens = 128
    level: Literal["ids", "bits"] = option(
        "ids",
        "What is compared with plain decoding: ids compares answers; bits compares "
        "logits of random trees, whatever the method",
    )
    trees: Annotated[int, Ge(1), Le(10**6)] = option(64, "Random trees per prompt for --level bits")


@command(looking, "verify", "longgraft verify --method graft --prompts rows.jsonl --max-new-tokens 128", PANEL)
def verify(
    prompts: Annotated[Path, typer.Option(help="JSONL with a prompt, context or text column, or a text file.")],
    pair: Pair,
    checking: Checking,
    settings: Settings,
    draw: SamplingSettings,
    servers: EndpointOptions,
    machine: Machine,
    as_json: Json = False,
) -> None:
    """Compare a method with plain decoding: the first token that differs and the margin of the logits there.

    With --level bits: whether the logits of random trees' nodes equal plain decoding's bit for bit.
    With --endpoints: two servers with OpenAI's completions, such as one with speculation and one without.

    Exit status 1 if answers differ that must not. Methods that are lossy, or that keep only the target's
    distribution when sampling, are checked against what they promise.
    """
    from longgraft.eval.prompts.suites import read_prompts

    examples = read_prompts(prompts, checking.count)  # before the imports, which take seconds
    if servers.endpoints is not None:
        refuse_unread([pair, checking, settings, draw, machine])
        from longgraft.eval.reports import endpoints

        report = endpoints.report_of(servers, examples, checking.max_new_tokens, draw, say)
        print(json.dumps(report) if as_json else "\n".join(endpoints.lines(report)))
        if report["differ"]:
            raise SystemExit(1)
        return
    if not as_json:
        say_loading(pair)
    from longgraft.acceptance.sampling_defaults import SamplingDefaults
    from longgraft.eval.checks import bits, losslessness
    from longgraft.prefill.chunked import chunk_size
    from longgraft.protocol.observation import Wants

    sampling = SamplingDefaults().sampling(vars(draw))  # takes nothing from the model's file
    session, _ = open_session(pair, settings, tell=not as_json)
    ids = [session.encode(example.encode(session.tokenizer))[-checking.max_prompt_tokens :] for example in examples]
    if checking.level == "bits":
        chunk = settings.chunk or chunk_size(session.target, Wants())
        report = bits.check_bits(session.target, ids, checking.trees, chunk)
        lines = bits.lines(report)
    else:
        report = losslessness.check(session, ids, sampling, checking.max_new_tokens)
        lines = losslessness.lines(report)
    print(json.dumps(report) if as_json else "\n".join(lines))
    if report["level"].startswith("none"):
        raise SystemExit(1)

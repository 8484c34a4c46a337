"""`longgraft generate`: answers to prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longgraft.cli.answer_report import print_report
from longgraft.cli.commands import command
from longgraft.cli.opening import open_session, say, say_loading, told_reading
from longgraft.cli.prompts import STDIN, GivenPrompt, PromptOptions
from longgraft.config.answer_settings import LogitSettings, SamplingSettings, StopSettings
from longgraft.config.option_files import describe
from longgraft.config.options import Checked, option
from longgraft.config.settings import Machine, Pair, Settings
from longgraft.files.data_files import read_recording
from longgraft.files.new_paths import new_file
from longgraft.files.whole_files import RowFile

if TYPE_CHECKING:
    from longgraft.acceptance.sampling import Sampling
    from longgraft.budget.controller import Decision
    from longgraft.engine.session import Generation, Session
    from longgraft.methods.assembly import Loaded

generating = typer.Typer()

EXAMPLE = 'longgraft generate --prompt "def add(a, b):" --max-new-tokens 32 --compare'
OrEmbedded = Annotated[
    bool,
    typer.Option(
        "--or-embedded",
        help="If the model cannot be fetched, say so and let the embedded toy continue the prompt as plain text.",
    ),
]
Source = Annotated[str | None, typer.Argument(metavar="[-]", help="-: the prompt is standard input.")]


@dataclass(frozen=True)
class Shown(Checked):
    """Options for the output."""

    stream: bool = option(False, "Print text as it comes; on a terminal it always does")
    as_json: bool = option(False, "One object on stdout, nothing else", flag="--json")
    out: str | None = option(None, "JSONL to write the answers to --prompts to", none="stdout", metavar="FILE")
    compare: bool = option(False, "Also decode plainly; print the speedup")
    explain_steps: bool = option(False, "Tell for each step what was known, its price, and why nothing was proposed")
    replay: str | None = option(
        None, "Recorded continuation (text or JSON list of ids) that drives acceptance", metavar="FILE"
    )
    dry_run: bool = option(False, "Print what is set, as TOML for --config, and stop")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stream and self.as_json:
            raise ValueError("--json is one object at the end, and --stream prints text as it comes. Leave one out.")


@dataclass(frozen=True)
class Answers:
    """One way of answering, for many prompts."""

    session: Session
    settings: Settings  # its settings, with the method that was chosen in the end
    sampling: Sampling
    ends: StopSettings
    compare: bool  # True if each answer is compared with plain decoding
    prediction: str | None = None  # text that the answers may repeat; None: none
    quiet: bool = False  # True if nothing is said while a prompt is read
    decisions: list[Decision] | None = None  # of the steps of the latest answer; None: they are not explained

    def told(self, ids: Sequence[int], tell: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        """Returns one answer, with its report; tell: called with each piece of text."""
        return self.report(ids, self._decoded(ids, tell))

    def report(self, ids: Sequence[int], answer: Generation) -> dict[str, Any]:
        """Returns the report on an answer, for JSON and for people."""
        from longgraft.comparison.with_plain import compare_with_plain
        from longgraft.engine.predicted_output import accepted
        from longgraft.engine.repetition import loops

        target = self.session.target
        resolved: dict[str, Any] = {
            "device": str(target.device),
            "dtype": target.dtype,
            "attention": target.attention,
        }
        report = {
            "text": answer.text,
            "token_ids": answer.token_ids,
            "model": target.name,
            "method": self.settings.method,
            "promise": self.session.promise,
            "seed": self.sampling.seed,
            "finish_reason": answer.finish_reason,
            "loops": loops(answer.token_ids),
            "settings": asdict(replace(self.settings, **resolved)) | self.sampling.described | asdict(self.ends),
            "stats": answer.stats.as_dict(),
        }
        for name in ("logprobs", "prompt_logprobs"):
            logprobs = getattr(answer, name)
            if logprobs:
                report[name] = [asdict(logprob) for logprob in logprobs]
        if self.prediction is not None:
            predicted = [token for text in self.session.predicted(self.prediction) for token in text]
            repeated, rejected = accepted(predicted, answer.token_ids)
            report["prediction"] = {"accepted_tokens": repeated, "rejected_tokens": rejected}
        if self.decisions is not None:
            from longgraft.budget.step_explanations import explained

            report["steps"] = explained(self.decisions, answer.stats.accepted_per_step)
        if self.compare:
            report["compare"] = compare_with_plain(self.session, ids, answer, self.sampling, self.ends.max_new_tokens)
        return report

    def stream(self, ids: Sequence[int]) -> dict[str, Any]:
        """Prints the text as it comes, and returns the report on it."""
        answer = self._decoded(ids, lambda text: print(text, end="", flush=True))
        print(flush=True)
        if self.compare:
            say("decoding the same prompt again without guesses, to compare")
        return self.report(ids, answer)

    def _decoded(self, ids: Sequence[int], tell: Callable[[str], None]) -> Generation:
        from longgraft.engine.session import answer

        request = self.session.open(
            ids,
            self.ends.max_new_tokens,
            self.sampling,
            self.ends.stop,
            prediction=self.prediction,
            stop_token_ids=self.ends.stop_token_ids,
        )
        if self.decisions is not None:
            self.decisions.clear()
        with nullcontext() if self.quiet else told_reading(request):
            return answer(request, tell=tell)


@command(generating, "generate", EXAMPLE, "Answer")
def generate(
    given: PromptOptions,
    pair: Pair,
    settings: Settings,
    draw: SamplingSettings,
    shape: LogitSettings,
    ends: StopSettings,
    shown: Shown,
    machine: Machine,
    source: Source = None,
    or_embedded: OrEmbedded = False,
) -> None:
    """Answer a long prompt."""
    if source not in (None, STDIN):
        raise ValueError(
            f"{source!r} is neither an option nor - (standard input). Give a text with "
            "--prompt, a file with --prompt-file."
        )
    if source:
        given = replace(given, prompt_file=(*given.prompt_file, STDIN))
    # The imports take seconds, so files are checked before them, and the rest before a model is loaded.
    prompts = given.read()
    prediction = given.predicted()
    out = None if shown.out is None else new_file(shown.out)
    recording = None if shown.replay is None else read_recording(Path(shown.replay))
    _check_together(given, draw, shape, shown)
    quiet = shown.as_json
    if not (quiet or shown.dry_run):
        say_loading(pair, "generate -m")
    from longgraft.acceptance.sampling import Sampling
    from longgraft.acceptance.sampling_defaults import SamplingDefaults

    requested = vars(draw) | shape.read()
    SamplingDefaults().sampling(requested)  # checked before a model is loaded
    if shown.dry_run:
        print("\n".join(describe(pair, settings, draw, shape, ends, machine)))
        return
    session, loaded, replaced = _opened(pair, settings, or_embedded, tell=not quiet)
    if replaced:
        prompts = [prompt.as_text() for prompt in prompts]
    if isinstance(recording, str):
        recording = session.tokenizer(recording, add_special_tokens=False)["input_ids"]
    sampling = session.sampling(**requested) if recording is None else Sampling(replay=recording)
    budget = None if loaded.method.chooses(loaded.settings.budget) else session.engine.budget
    settings = replace(loaded.settings, method=str(loaded.method), budget=budget)
    decisions = _decisions(session) if shown.explain_steps else None
    answers = Answers(session, settings, sampling, ends, shown.compare, prediction, quiet, decisions)
    if given.prompts:
        return _answer_all(answers, prompts, out)
    ids = encode(session, prompts[0])
    most = ends.max_new_tokens
    if sampling.replay:
        most = min(most, len(sampling.replay))
    session.check(len(ids), most)
    if shown.as_json:
        print(json.dumps(answers.told(ids)))
        return
    if shown.stream or sys.stdout.isatty():
        print_report(answers.stream(ids))
    else:
        report = answers.told(ids)
        print(report["text"], flush=True)
        print_report(report)


def _opened(pair: Pair, settings: Settings, or_embedded: bool, tell: bool) -> tuple[Session, Loaded, bool]:
    """Returns the session, what it was made from, and True if the embedded model replaces one that was not fetched."""
    from longgraft.models.fetch import NotFetched

    try:
        return *open_session(pair, settings, tell=tell), False
    except NotFetched as error:
        if not or_embedded:
            raise
        say(
            f"{error}\nlonggraft: the embedded model answers instead. It is a toy of 7 million "
            "parameters, which continues the prompt as plain text"
        )
    return *open_session(Pair(), settings, tell=tell), True


def _decisions(session: Session) -> list[Decision]:
    """Returns a list that gets what decides each step of the session's answers."""
    from longgraft.budget.controller import Controller

    controller = session.engine.proposer
    if not isinstance(controller, Controller):
        raise ValueError(
            f"--explain-steps is for methods that choose what each step spends, and {session.method} does not, or has "
            "a --budget. Choose graft-x or graft-x-text, and leave --budget out."
        )
    decisions: list[Decision] = []
    controller.explain = decisions.append
    return decisions


def _check_together(given: PromptOptions, draw: SamplingSettings, shape: LogitSettings, shown: Shown) -> None:
    """Raises ValueError for options that exclude each other."""
    if given.prompts and (shown.stream or shown.replay):
        raise ValueError("--prompts goes with neither --stream nor --replay: its answers are JSON.")
    if shown.replay and (draw != SamplingSettings() or shape != LogitSettings()):
        raise ValueError(
            "--replay says which tokens are drawn, and a temperature, seed or the like would "
            "change nothing. Give one or the other."
        )
    for name, logprobs in (("--logprobs", shape.logprobs), ("--prompt-logprobs", shape.prompt_logprobs)):
        if logprobs is not None and not (shown.as_json or given.prompts):
            raise ValueError(f"{name} are in the JSON alone. Add --json.")
    if shown.out and not given.prompts:
        raise ValueError("--out is for the answers to --prompts. Leave it out, and redirect stdout.")


def encode(session: Session, given: GivenPrompt) -> list[int]:
    """Returns a prompt's ids; warns if a model with a chat template gets a raw prompt."""
    has_template = bool(getattr(session.tokenizer, "chat_template", None))
    if given.prompt and isinstance(given.prompt[0], dict) and not has_template:
        raise ValueError(
            f"{session.target.name} has no chat template. Leave --chat and --messages out, and give the prompt as text."
        )
    if isinstance(given.prompt, str) and has_template and not given.name:
        say("this model has a chat template, and the prompt is not a chat; add --chat to use it")
    return session.encode(given.prompt)


def _answer_all(answers: Answers, prompts: Sequence[GivenPrompt], out: Path | None) -> None:
    """Writes one JSON object per prompt at once; a prompt that fails gets its error, and the others go on."""
    failed = 0
    with closing(RowFile(out)) if out else nullcontext() as file:
        tell = partial(print, flush=True) if file is None else file.append
        for number, prompt in enumerate(prompts, 1):
            try:
                report = answers.told(encode(answers.session, prompt))
            except ValueError as error:
                report = {"error": str(error)}
                failed += 1
            tell(json.dumps({"id": prompt.name} | report))
            say(f"{number} of {len(prompts)} answered")
    if failed:
        say(f"{failed} of {len(prompts)} prompts have no answer; their rows say why")
        raise SystemExit(1)

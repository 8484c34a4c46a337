"""`longgraft generate`: answers to prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from longgraft.cli.commands import command
from longgraft.cli.prompts import STDIN, GivenPrompt, PromptOptions
from longgraft.config.data_files import read_recording
from longgraft.config.new_paths import new_file
from longgraft.config.option_files import describe
from longgraft.config.options import Checked, option
from longgraft.config.settings import LogitSettings, Pair, SamplingSettings, Settings, StopSettings

if TYPE_CHECKING:
    from longgraft.acceptance.sampling import Sampling
    from longgraft.engine.session import Generation, Session
    from longgraft.methods.assembly import Loaded

generating = typer.Typer()

EXAMPLE = 'longgraft generate --prompt "def add(a, b):" --max-new-tokens 32 --compare'
# Descriptions of the names in `Stats.kinds`, `Stats.accepted_by_origin` and `Stats.finish_reason`.
SPENT = {"plain": "without guesses", "memory": "with retrieved guesses", "draft": "with drafted guesses"}
ORIGINS = {"draft": "drafted", "retrieved": "retrieved", "both": "drafted and retrieved",
           "forced": "the only ones that the constraint allows"}
ENDED = {"length": "stopped at --max-new-tokens", "eos": "ended by the model", "stop": "ended by a stop string",
         "cancelled": "cancelled"}
OrEmbedded = Annotated[bool, typer.Option("--or-embedded", help="If the model cannot be fetched, say so and let "
                                          "the embedded toy continue the prompt as plain text.")]
Source = Annotated[Optional[str], typer.Argument(metavar="[-]", help="-: the prompt is standard input.")]  # noqa: UP045


@dataclass(frozen=True)
class Shown(Checked):
    """Options for the output."""

    stream: bool = option(False, "Print text as it comes; on a terminal it always does")
    as_json: bool = option(False, "One object on stdout, nothing else", flag="--json")
    out: str | None = option(None, "JSONL to write the answers to --prompts to", none="stdout", metavar="FILE")
    compare: bool = option(False, "Also decode plainly; print the speedup")
    replay: str | None = option(None, "Recorded continuation (text or JSON list of ids) that drives acceptance",
                                metavar="FILE")
    dry_run: bool = option(False, "Print what is set, as TOML for --config, and stop")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stream and self.as_json:
            raise ValueError("--json is one object at the end, and --stream prints text as it comes. Leave one out.")


@dataclass(frozen=True)
class Answers:
    """One way of answering, for many prompts.  settings: with the method that was chosen in the end."""

    session: Session
    settings: Settings
    sampling: Sampling
    ends: StopSettings
    compare: bool
    prediction: str | None = None

    def answer(self, ids: Sequence[int]) -> dict[str, Any]:
        """Returns one answer, with its report."""
        return self.report(ids, self._decoded(ids, lambda text: None))

    def report(self, ids: Sequence[int], answer: Generation) -> dict[str, Any]:
        """Returns the report on an answer, for JSON and for people."""
        from longgraft.comparison.with_plain import compare_with_plain
        from longgraft.engine.predicted_output import accepted

        target = self.session.target
        resolved = replace(self.settings, device=str(target.device), dtype=str(target.dtype)[6:],
                           attention=target.attention)
        found = {"text": answer.text, "token_ids": answer.token_ids, "model": target.name,
                 "method": self.settings.method, "promise": self.session.promise, "seed": self.sampling.seed,
                 "finish_reason": answer.finish_reason,
                 "settings": asdict(resolved) | self.sampling.described | asdict(self.ends),
                 "stats": answer.stats.as_dict()}
        for name in ("logprobs", "prompt_logprobs"):
            if logprobs := getattr(answer, name):
                found[name] = [asdict(one) for one in logprobs]
        if self.prediction is not None:
            predicted = [token for text in self.session.predicted(self.prediction) for token in text]
            repeated, others = accepted(predicted, answer.token_ids)
            found["prediction"] = {"accepted_tokens": repeated, "rejected_tokens": others}
        if self.compare:
            found["compare"] = compare_with_plain(self.session, ids, answer, self.sampling, self.ends.max_new_tokens)
        return found

    def stream(self, ids: Sequence[int]) -> dict[str, Any]:
        """Prints the text as it comes, and returns the report on it."""
        found = self._decoded(ids, lambda text: print(text, end="", flush=True))
        print(flush=True)
        if self.compare:
            print("longgraft: decoding the same prompt again without guesses, to compare", file=sys.stderr)
        return self.report(ids, found)

    def _decoded(self, ids: Sequence[int], tell: Callable[[str], None]) -> Generation:
        from longgraft.engine.session import answer

        request = self.session.open(ids, self.ends.max_new_tokens, self.sampling, self.ends.stop,
                                    prediction=self.prediction, stop_token_ids=self.ends.stop_token_ids)
        return answer(request, tell=tell)


@command(generating, "generate", EXAMPLE, "Answer")
def generate(given: PromptOptions, pair: Pair, settings: Settings, draw: SamplingSettings, shape: LogitSettings,
             ends: StopSettings, shown: Shown, source: Source = None, or_embedded: OrEmbedded = False) -> None:
    """Answer a long prompt."""
    if source not in (None, STDIN):
        raise ValueError(f"{source!r} is neither an option nor - (standard input). Give a text with --prompt, a file "
                         "with --prompt-file.")
    given = replace(given, prompt_file=(*given.prompt_file, STDIN)) if source else given
    # The imports take seconds, so files are checked before them, and the rest before a model is loaded.
    asked, prediction = given.read(), given.predicted()
    out = None if shown.out is None else new_file(shown.out)
    recording = None if shown.replay is None else read_recording(Path(shown.replay))
    if given.prompts and (shown.stream or shown.replay):
        raise ValueError("--prompts goes with neither --stream nor --replay: its answers are JSON.")
    if shown.replay and (draw != SamplingSettings() or shape != LogitSettings()):
        raise ValueError("--replay says which tokens are drawn, and a temperature, seed or the like would change "
                         "nothing. Give one or the other.")
    for name, wanted in (("--logprobs", shape.logprobs), ("--prompt-logprobs", shape.prompt_logprobs)):
        if wanted is not None and not (shown.as_json or given.prompts):
            raise ValueError(f"{name} are in the JSON alone. Add --json.")
    if out and not given.prompts:
        raise ValueError("--out is for the answers to --prompts. Leave it out, and redirect stdout.")
    from longgraft.acceptance.sampling import Sampling
    from longgraft.acceptance.sampling_defaults import SamplingDefaults

    asked_sampling = vars(draw) | shape.read()
    SamplingDefaults().sampling(asked_sampling)     # checked before a model is loaded
    if shown.dry_run:
        print("\n".join(describe(pair, settings, draw, shape, ends)))
        return
    from longgraft.models.fetch import NotFetched

    try:
        session, loaded = open_session(pair, settings, tell=not shown.as_json)
    except NotFetched as error:
        if not or_embedded:
            raise
        print(f"longgraft: {error}\nlonggraft: the embedded model answers instead. It is a toy of 7 million "
              "parameters, which continues the prompt as plain text", file=sys.stderr)
        asked = [one.as_text() for one in asked]
        session, loaded = open_session(Pair(), settings, tell=not shown.as_json)
    if isinstance(recording, str):
        recording = session.tokenizer(recording, add_special_tokens=False)["input_ids"]
    sampling = session.sampling(**asked_sampling) if recording is None else Sampling(replay=recording)
    budget = None if loaded.method.chooses(loaded.settings.budget) else session.engine.budget
    settings = replace(loaded.settings, method=str(loaded.method), budget=budget)
    answers = Answers(session, settings, sampling, ends, shown.compare, prediction)
    if given.prompts:
        return _answer_all(answers, asked, out)
    ids = encode(session, asked[0])
    session.check(len(ids), min(ends.max_new_tokens, len(sampling.replay or range(ends.max_new_tokens))))
    if shown.as_json:
        print(json.dumps(answers.answer(ids)))
        return
    if shown.stream or sys.stdout.isatty():
        _print_report(answers.stream(ids))
    else:
        found = answers.answer(ids)
        print(found["text"], flush=True)
        _print_report(found)


def open_session(pair: Pair, settings: Settings, tell: bool = False) -> tuple[Session, Loaded]:
    """Returns a session, and what it was made from; tell: print the choices on stderr."""
    from longgraft.loading import open_session as opened

    return opened(pair.model, pair.drafter, settings, tell)


def encode(session: Session, asked: GivenPrompt) -> list[int]:
    """Returns a prompt's ids; warns if a model with a chat template gets a raw prompt."""
    has_template = bool(getattr(session.tokenizer, "chat_template", None))
    if asked.prompt and isinstance(asked.prompt[0], dict) and not has_template:
        raise ValueError(f"{session.target.name} has no chat template. Leave --chat and --messages out, and give the "
                         "prompt as text.")
    if isinstance(asked.prompt, str) and has_template and not asked.name:
        print("longgraft: this model has a chat template, and the prompt is not a chat; add --chat to use it",
              file=sys.stderr)
    return session.encode(asked.prompt)


def _answer_all(answers: Answers, asked: Sequence[GivenPrompt], out: Path | None) -> None:
    """Writes one JSON object per prompt at once; a prompt that fails gets its error, and the others go on."""
    failed = 0
    with open(out, "x", encoding="utf-8") if out else nullcontext(sys.stdout) as file:
        for number, one in enumerate(asked, 1):
            try:
                found = answers.answer(encode(answers.session, one))
            except ValueError as error:
                found, failed = {"error": str(error)}, failed + 1
            print(json.dumps({"id": one.name} | found), file=file, flush=True)
            print(f"longgraft: {number} of {len(asked)} answered", file=sys.stderr)
    if failed:
        print(f"longgraft: {failed} of {len(asked)} prompts have no answer; their rows say why", file=sys.stderr)
        raise SystemExit(1)


def _print_report(found: dict[str, Any]) -> None:
    """Prints what an answer cost, on stderr."""
    s = found["stats"]
    by_origin = {name: count for name, count in s["accepted_by_origin"].items() if count}
    own = s["new_tokens"] - sum(by_origin.values())
    origin = "".join(f"{count} {ORIGINS[name]}, " for name, count in by_origin.items()) + f"{own} by the model itself"
    spent = ", ".join(f"{count} {SPENT[kind]}" for kind, count in s["kinds"].items())
    print(f"\nprompt: {s['prompt_tokens']:,} tokens, read in {s['prefill_seconds']:.2f} s\n"
          f"answer: {s['new_tokens']:,} tokens ({ENDED[found['finish_reason']]}) in {s['decode_seconds']:.2f} s: "
          f"{s['decode_tokens_per_second']:.1f} tokens/s\n"
          f"steps: {s['steps']} ({spent or 'none'}), {s['tokens_per_step']:.2f} tokens per step\n"
          f"tokens: {origin}; {s['mat']:.2f} guesses accepted per step (MAT)", file=sys.stderr)
    if "prediction" in found:
        repeated, others = found["prediction"].values()
        print(f"prediction: the answer repeats {repeated:,} of its {repeated + others:,} tokens", file=sys.stderr)
    if "compare" in found:
        from longgraft.comparison.levels import may_differ

        c = found["compare"]
        why = may_differ(found["promise"], found["settings"]["temperature"] > 0)
        same = "identical answers" if c["identical"] else f"answers differ from token {c['first_divergence'] + 1:,} on"
        same += f" ({found['promise']}: {why})" if why else ""
        print(f"plain decoding: {c['plain_tokens_per_second']:.1f} tokens/s; longgraft was {c['speedup']:.2f} times as "
              f"fast (one run each, without reading the prompt); {same}", file=sys.stderr)

"""`longgraft chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import typer

from longgraft.cli.commands import command
from longgraft.cli.generate import Answers, print_report
from longgraft.cli.opening import open_session, say, say_loading
from longgraft.cli.prompts import joined
from longgraft.config.answer_settings import SamplingSettings, StopSettings
from longgraft.config.options import Checked, option
from longgraft.config.settings import Pair, Settings

chatting = typer.Typer()

BASE = {
    "prefixes": 4.0,  # GiB of the prefix cache: each turn begins with all turns before it
    "max_new_tokens": 1024,
}
HELP = "/clear forgets the conversation, /stats shows what the last answer cost; Ctrl-C ends an answer, Ctrl-D the chat"


@dataclass(frozen=True)
class ChatOptions(Checked):
    """Options for the conversation."""

    system: str | None = option(None, "System message at the beginning")


@dataclass
class Conversation:
    """The turns so far.

    Attributes:
        answers: How a turn is answered.
        system: Message at the beginning; None: none.
        has_template: False for a model that continues the turns as one text.
        turns: The messages after the system message.
        report: The report on the last whole answer; None: there is none.
    """

    answers: Answers
    system: str | None
    has_template: bool
    turns: list[dict[str, str]] = field(default_factory=list)
    report: dict[str, Any] | None = None

    @property
    def prompt(self) -> list[dict[str, str]] | str:
        """The prompt of the next answer."""
        if not self.has_template:
            return joined([turn["content"] for turn in self.turns])
        beginning = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*beginning, *self.turns]

    def ask(self, text: str) -> None:
        """Prints the answer to a message as it comes.  A message without an answer is forgotten."""
        self.turns.append({"role": "user", "content": text})
        pieces = list[str]()

        def tell(piece: str) -> None:
            pieces.append(piece)
            print(piece, end="", flush=True)

        try:
            self.report = self.answers.told(self.answers.session.encode(self.prompt), tell)
        except KeyboardInterrupt:
            print(flush=True)
            say("the answer was ended")
        except ValueError as error:  # the prompt does not fit the model
            say(f"{error} /clear begins a new conversation.")
        else:
            print(flush=True)
            if self.report["finish_reason"] == "length":
                say("the answer was cut off at --max-new-tokens; -n sets it")
        answered = "".join(pieces)
        if answered:
            self.turns.append({"role": "assistant", "content": answered})
        else:
            self.turns.pop()

    def obey(self, word: str) -> None:
        """Carries out a command that begins with /."""
        if word == "/clear":
            self.turns.clear()
            say("the conversation is forgotten")
        elif word == "/stats" and self.report is not None:
            print_report(self.report)
        elif word == "/stats":
            say("no answer has ended yet")
        else:
            say(f"{word} is no command. {HELP}")


@command(chatting, "chat", "longgraft chat qwen2.5-coder-0.5b", "Answer", base=BASE, argument="model")
def chat(pair: Pair, settings: Settings, draw: SamplingSettings, ends: StopSettings, options: ChatOptions) -> None:
    """Talk with a model in the terminal."""
    say_loading(pair, "chat")
    from longgraft.acceptance.sampling_defaults import SamplingDefaults

    SamplingDefaults().sampling(vars(draw))  # checked before a model is loaded
    session, loaded = open_session(pair, settings, tell=True)
    has_template = bool(getattr(session.tokenizer, "chat_template", None))
    if not has_template and options.system is not None:
        raise ValueError(f"--system was given, and {session.target.name} has no chat template. Leave it out.")
    if not has_template:
        say(f"{session.target.name} has no chat template, so it continues your text")
    say(HELP)
    settings = replace(loaded.settings, method=str(loaded.method))
    answers = Answers(session, settings, session.sampling(**vars(draw)), ends, compare=False)
    conversation = Conversation(answers, options.system, has_template)
    if sys.stdin.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401 - `input` then edits lines and has a history
    while True:
        try:
            text = _line()
        except EOFError:
            break
        except KeyboardInterrupt:
            print(flush=True)
            say("Ctrl-D ends the chat")
            continue
        if text.startswith("/") and text[1:].isalpha():
            conversation.obey(text)
        elif text.strip():
            conversation.ask(text)
    print(flush=True)


def _line() -> str:
    """Reads a message; a line that ends with a backslash goes on in the next one."""
    first, further = ("> ", "  ") if sys.stdin.isatty() else ("", "")
    text = input(first)
    while text.endswith("\\"):
        text = f"{text[:-1]}\n{input(further)}"
    return text

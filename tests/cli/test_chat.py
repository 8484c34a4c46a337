"""`longgraft chat`: turns, commands and keys; and what is said while a prompt is read."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from longgraft.cli import opening
from longgraft.engine.session import Session

TEMPLATE = (
    "{% for m in messages %}{{ 'w1 ' if m.role == 'user' else 'w2 ' }}{{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}w2 {% endif %}"
)


@pytest.fixture
def talk(pair, cli, monkeypatch, tmp_path):
    """Returns a function that chats with the toy, and the prompts that it was given."""
    shutil.copytree(pair / "target", tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATE)
    prompts = []
    encode = Session.encode

    def encoded(session, prompt):
        if isinstance(prompt[0], dict):
            prompts.append([message["content"] for message in prompt])
        return encode(session, prompt)

    monkeypatch.setattr(Session, "encode", encoded)

    def talk(lines, *more, model=tmp_path / "model"):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return cli("chat", *([model] if model else []), "-n", 5, *more)

    return talk, prompts


def test_each_turn_is_told_the_earlier_ones_and_reads_only_the_new_one(talk):
    talk, prompts = talk
    first, second = " ".join(f"w{3 + n % 50}" for n in range(150)), "w60 w61"
    code, out, err = talk([first, second, "/stats", "/clear", "/stats", "w62", "", "/nope"], "--system", "w63")
    answers = out.splitlines()
    assert code == 0 and len(answers) == 4 and answers[-1] == ""  # the end of the input ends the chat
    assert prompts == [["w63", first], ["w63", first, answers[0], second], ["w63", "w62"]]
    assert re.search(r"prompt: \d+ tokens, 127 of them known, read in", err)  # prompts are kept in cells of 128 tokens
    assert "the answer was cut off at --max-new-tokens; -n sets it" in err and "/nope is no command" in err
    assert err.index("the conversation is forgotten") < err.rindex("prompt: ")


def test_a_backslash_continues_a_message_and_a_path_is_no_command(talk):
    talk, prompts = talk
    talk(["w1\\", "w2", "/usr/bin is a folder"])
    assert [prompt[-1] for prompt in prompts] == ["w1\nw2", "/usr/bin is a folder"]


def test_a_message_that_does_not_fit_is_forgotten_and_the_chat_goes_on(talk):
    talk, prompts = talk
    _, out, err = talk(["w4 " * 5000, "w5"])
    assert "/clear begins a new conversation" in err and len(out.splitlines()) == 2 and prompts[-1] == ["w5"]


def test_a_model_without_a_template_continues_the_text(talk):
    talk, _ = talk
    _, out, err = talk(["if __name__ =="], model=None)
    assert out.startswith(' "__main__"') and "embedded has no chat template, so it continues your text" in err
    code, _, err = talk([], "--system", "x", model=None)
    assert code == 2 and "--system was given, and embedded has no chat template" in err


class Terminal:
    """A chat in a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self.shown = ""
        self._ours, theirs = pty.openpty()

        def begin() -> None:
            os.login_tty(theirs)  # Ctrl-C then reaches it as a signal
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a test run in the background may ignore it

        self.process = subprocess.Popen(
            [sys.executable, "-m", "longgraft", "chat", *arguments],
            preexec_fn=begin,
        )
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def type_at_prompt(self, text: str) -> None:
        self.until("> ")  # only from then on are keys read as the chat reads them
        self.type(text)

    def until(self, text: str) -> None:
        """Reads what is shown up to a text, and forgets it."""
        assert self._shows(text, 200.0), self.shown
        self.shown = self.shown.partition(text)[2]

    def interrupt_prompt(self, reply: str) -> None:
        """Types Ctrl-C until it is answered: readline misses a signal between its prompt and its wait for a key."""
        self.until("> ")
        for _ in range(4):
            self.type("\x03")
            if self._shows(reply, 20.0):
                break
        self.until(reply)

    def _shows(self, text: str, seconds: float) -> bool:
        """Reads until a text is shown, for at most so long."""
        end = time.monotonic() + seconds
        while text not in self.shown and time.monotonic() < end:
            if select.select([self._ours], [], [], max(0.0, end - time.monotonic()))[0]:
                self.shown += os.read(self._ours, 65536).decode(errors="replace")
        return text in self.shown


def test_ctrl_c_ends_an_answer_and_ctrl_d_the_chat():
    terminal = Terminal("-n", "7000")
    try:
        terminal.until("Ctrl-D the chat")
        terminal.interrupt_prompt("longgraft: Ctrl-D ends the chat")
        terminal.type_at_prompt("import os\n")
        terminal.until("os.path")  # the toy repeats it up to its limit
        terminal.type("\x03")
        terminal.until("longgraft: the answer was ended")
        terminal.type_at_prompt("/stats\n")
        terminal.until("longgraft: no answer has ended yet")
        terminal.type_at_prompt("\x04")
        assert terminal.process.wait(100) == 0
    finally:
        terminal.process.send_signal(signal.SIGKILL)
        terminal.process.wait()


def test_a_long_prompt_is_told_of_while_it_is_read(monkeypatch, capsys):
    monkeypatch.setattr(opening, "EVERY", 0.01)
    request = SimpleNamespace(unread=40_000, prompt_tokens=100_000)
    with opening.told_reading(request):
        time.sleep(0.2)
        request.unread = 0  # the answer has begun
        time.sleep(0.1)
        said = capsys.readouterr().err
        time.sleep(0.1)
    lines = set(said.splitlines())
    assert lines == {"longgraft: 60,000 of the prompt's 100,000 tokens are read"} and not capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)  # a terminal has a progress bar
    request.unread = 40_000
    with opening.told_reading(request):
        time.sleep(0.1)
    assert not capsys.readouterr().err

"""Calls in a limited process end by their processor time, by their memory, and when nobody waits for them."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from longgraft.runtime import limited_process
from longgraft.runtime.limited_process import Cancellation, Cancelled, LimitedProcess, Limits, NoTime, OverLimit

ENDLESS = range(10**13)  # their sum takes a day
GENEROUS = Limits(60, 2**30)


@pytest.fixture(scope="module")
def process() -> LimitedProcess:
    return LimitedProcess(["decimal"])


@pytest.fixture
def fifo(tmp_path) -> Iterator[Path]:
    """A pipe with a name, whose reader is a child that waits for its text."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    yield path


def assert_reader_ends(fifo: Path) -> None:
    """Waits until nobody reads the pipe any longer."""
    for _ in range(6000):
        try:
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return
        time.sleep(0.01)
    raise AssertionError("the child is still there")


def test_call_returns_and_raises_what_the_function_does(process):
    assert process.call(GENEROUS, sorted, [3, 1]) == [1, 3]
    with pytest.raises(ValueError, match="invalid literal for int"):
        process.call(GENEROUS, int, "a")


@pytest.mark.parametrize(
    ("limits", "function", "argument"),
    [(Limits(0.05, 2**30), sum, ENDLESS), (Limits(60, 2**24), bytes, 2**26)],
    ids=["time", "memory"],
)
def test_call_beyond_its_limits_is_ended_and_others_go_on(process, limits, function, argument):
    with pytest.raises(OverLimit):
        process.call(limits, function, argument)
    assert process.call(limits, function, 0 if function is bytes else [1, 2]) in (b"", 3)


def test_calls_of_one_piece_of_work_share_their_processor_time(process, monkeypatch):
    """Otherwise many calls, each within its limits, would hold a thread for ever."""
    monkeypatch.setattr(limited_process, "MOST_SECONDS", 0.2)
    work = Cancellation()
    for _ in range(2):
        assert work.run(process.call, GENEROUS, sum, range(10**6)) > 0
    assert 0 < work.seconds < 0.2
    for _ in range(2):
        with pytest.raises(OverLimit):
            work.run(process.call, GENEROUS, sum, ENDLESS)
    assert process.call(GENEROUS, sum, [1]) == 1


def test_a_signal_to_the_whole_group_leaves_the_process_to_its_parent(process):
    parent = process.call(GENEROUS, os.getppid)
    os.kill(parent, signal.SIGTERM)
    assert process.call(GENEROUS, os.getppid) == parent


def test_the_lack_of_time_survives_pickling():
    assert str(pickle.loads(pickle.dumps(NoTime()))) == str(NoTime())


def test_limits_are_told_in_units():
    assert str(Limits(2.0, 48 * 2**20)) == "2 s of a processor or 48 MiB"


def test_call_for_which_the_machine_has_no_time_is_given_up(process, monkeypatch, fifo):
    monkeypatch.setattr(limited_process, "PATIENCE", 0.05)
    with pytest.raises(NoTime, match="Try again later"):
        process.call(Limits(0.01, 2**30), Path.read_text, fifo)
    assert_reader_ends(fifo)


def test_cancelled_call_ends_and_those_beside_it_go_on(process, fifo):
    cancellation, raised = Cancellation(), []

    def work() -> None:
        try:
            cancellation.run(process.call, GENEROUS, Path.read_text, fifo)
        except Cancelled as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    with fifo.open("w"):  # returns once the child reads
        assert process.call(GENEROUS, sum, [1, 2]) == 3
        cancellation.cancel()
        thread.join(60)
    assert raised
    assert_reader_ends(fifo)
    with pytest.raises(Cancelled):
        cancellation.run(process.call, GENEROUS, sum, [1])
    assert process.call(GENEROUS, sum, [1]) == 1


def test_kept_state_reaches_all_children_also_of_a_process_that_was_started_again(process):
    made: list[int] = []

    def keep() -> int:
        def arguments() -> list[int]:
            made.append(1)
            return [777]

        process.keep("recursion", sys.setrecursionlimit, arguments)
        return process.call(GENEROUS, sys.getrecursionlimit)

    assert keep() == keep() == 777 and len(made) == 1
    os.kill(process.call(GENEROUS, os.getppid), signal.SIGKILL)
    while process.alive:
        time.sleep(0.002)
    assert process.call(GENEROUS, sys.getrecursionlimit) != 777
    assert keep() == 777 and len(made) == 2


def test_processes_end_with_their_parent(fifo):
    code = (
        "import pathlib, sys; from longgraft.runtime.limited_process import LimitedProcess, Limits; "
        "LimitedProcess([]).call(Limits(60, 2**30), pathlib.Path.read_text, pathlib.Path(sys.argv[1]))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(fifo)], stderr=subprocess.PIPE)
    with fifo.open("w"):
        parent.kill()
        assert parent.stderr.read() == b"", "all who write there have ended"
        parent.wait()
    assert_reader_ends(fifo)

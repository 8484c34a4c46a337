"""Calls functions in processes with limits of processor time and memory, and ends them when nobody waits any longer.

Some libraries do work that no thread can interrupt. The first call starts a small process, which imports what the
functions need and nothing heavy, and forks a child for each call. A child that exceeds its limits is ended by the
system, and nothing else notices.
"""

from __future__ import annotations

import contextvars
import fcntl
import json
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from longgraft.runtime.large_stack import with_large_stack

T = TypeVar("T")
FORK, KEEP = b"f", b"k"  # in a child, or in the process itself, whose children then know the result
NICENESS = 10  # decoding comes first
# Seconds after which a call is given up.  Only a machine that has no time for it takes so long.
PATIENCE = 60.0
MOST_SECONDS = 10.0  # processor time of all calls of a piece of work, such as the tools of one request
CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from longgraft.runtime.limited_process import serve; serve(int(sys.argv[2]), json.loads(sys.argv[3]))"
)


class OverLimit(Exception):
    """The call took more processor time or memory than its limits allow."""


class NoTime(Exception):
    """The machine had no time for the call."""

    def __init__(self, *_: object) -> None:  # a pickled exception is made anew with its message
        super().__init__("The machine is too busy to check the request's constraint. Try again later.")


class Cancelled(Exception):
    """The call was ended because nobody waits for its result."""


@dataclass(frozen=True)
class Limits:
    """The resources that a call may take.

    Attributes:
        seconds: Processor time.
        bytes: Memory beyond what the process has before.
    """

    seconds: float
    bytes: int

    def __str__(self) -> str:
        return f"{self.seconds:g} s of a processor or {self.bytes >> 20:,} MiB"

    def apply(self) -> None:
        """Applies them to this process. Exceeding them ends it."""
        os.nice(NICENESS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, 2 * (data_bytes() + self.bytes,))
        signal.setitimer(signal.ITIMER_PROF, self.seconds)


def data_bytes() -> int:
    """Returns the bytes of this process's own data, shared libraries excluded."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
    except FileNotFoundError:  # macOS, which does not enforce the limit either
        return 2**40
    return pages * resource.getpagesize()


class Cancellation:
    """Ends the calls of a piece of work, from another thread or when they have taken too much together.

    Attributes:
        seconds: Processor time that its calls may still take.
    """

    def __init__(self) -> None:
        self.seconds = MOST_SECONDS
        self._lock = threading.Lock()
        self._cancelled = False
        self._connection: socket.socket | None = None

    def run(self, work: Callable[..., T], *args: Any) -> T:
        """Runs work whose calls `cancel` ends."""
        token = _current.set(self)
        try:
            return work(*args)
        finally:
            _current.reset(token)

    def cancel(self) -> None:
        """Ends the call that runs; it and all later ones raise Cancelled."""
        with self._lock:
            self._cancelled = True
            if self._connection is not None:
                self._connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def watching(self, connection: socket.socket) -> Iterator[None]:
        """Lets `cancel` close this connection, which ends the child behind it."""
        self._set(connection)
        try:
            yield
        finally:
            self._set(None)

    def _set(self, connection: socket.socket | None) -> None:
        with self._lock:
            self._connection = None if self._cancelled else connection
            if self._cancelled:
                raise Cancelled


_current: contextvars.ContextVar[Cancellation] = contextvars.ContextVar("cancellation")


class LimitedProcess:
    """Calls module-level functions, whose arguments and results are pickled, in processes with limits.

    Args:
        modules: The modules that the processes import before the first call.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = list(modules)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control = socket.socket()
        self._kept: set[str] = set()

    def call(self, limits: Limits, function: Callable[..., T], *args: Any) -> T:
        """Calls a function in a child.

        Raises:
            OverLimit: it exceeded its limits.
            NoTime: the machine had no time for it.
            Cancelled: the `Cancellation` of the current work was cancelled.
            Exception: what the function raised.
        """
        work = _current.get(None) or Cancellation()
        limits = replace(limits, seconds=min(limits.seconds, work.seconds))
        return self._call(FORK, (limits, function, args), work)

    def keep(self, name: str, function: Callable[..., Any], arguments: Callable[[], Sequence[Any]]) -> None:
        """Calls a function, which must be harmless, once for all later calls.

        Args:
            name: It is called once for each name.
            function: Keeps what later calls need.
            arguments: Returns its arguments; only called if they are needed.
        """
        with self._lock:
            process = self._process
            known = self.alive and name in self._kept
        if known:
            return
        work = _current.get(None) or Cancellation()
        self._call(KEEP, (None, function, tuple(arguments())), work)
        with self._lock:
            # A process that was started meanwhile may not be the one that was told.
            if process is None or process is self._process:
                self._kept.add(name)

    def _call(self, kind: bytes, message: tuple[Limits | None, Any, Any], cancellation: Cancellation) -> Any:
        ours, theirs = socket.socketpair()
        with ours, cancellation.watching(ours):
            if cancellation.seconds <= 0:
                theirs.close()
                raise OverLimit
            with theirs, self._lock:
                self._send(kind, theirs)
            ours.settimeout(PATIENCE)
            try:
                with ours.makefile("rwb") as stream:
                    pickle.dump(message, stream)
                    stream.flush()
                    succeeded, result, spent = pickle.load(stream)
            except TimeoutError as error:
                raise NoTime from error
            except (EOFError, OSError, pickle.UnpicklingError) as error:  # it ended, perhaps while it answered
                if message[0] is not None:
                    cancellation.seconds -= message[0].seconds
                raise OverLimit from error
        cancellation.seconds -= spent
        if succeeded:
            return result
        if isinstance(result, MemoryError):
            raise OverLimit from result
        raise result

    @property
    def alive(self) -> bool:
        """True while the process from which calls are forked runs."""
        return self._process is not None and self._process.poll() is None

    def _send(self, kind: bytes, connection: socket.socket) -> None:
        """Sends the connection of a call to the process, which is started if there is none."""
        if self._process is not None:
            with suppress(OSError):
                socket.send_fds(self._control, [kind], [connection.fileno()])
                return
            self._process.kill()  # it has ended, or cannot be reached
            self._process.wait()
        self._start()
        socket.send_fds(self._control, [kind], [connection.fileno()])

    def _start(self) -> None:
        self._control.close()
        self._kept.clear()
        self._control, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-X", "utf8", "-c", CODE]
            arguments = [json.dumps(sys.path), str(theirs.fileno()), json.dumps(self._modules)]
            self._process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"},
            )


def serve(number: int, modules: Sequence[str]) -> None:
    """Answers calls until the parent ends.

    Args:
        number: File descriptor of the socket over which the connections of calls come.
        modules: What is imported first.
    """
    for ignored in (signal.SIGINT, signal.SIGTERM):  # they are for the parent, whose end is seen here
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets children that have ended
    for ending in (signal.SIGIO, signal.SIGPROF):
        signal.signal(ending, signal.SIG_DFL)
    for module in modules:
        import_module(module)
    control = socket.socket(fileno=number)
    while True:
        kind, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not kind:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            if kind == KEEP:
                _answer(connection)
                continue
            try:
                child = os.fork()
            except OSError:  # no memory or no room for another process
                _send(connection, (False, NoTime(), 0.0))
                continue
            if child == 0:
                control.close()
                _end_with(connection)
                with_large_stack(partial(_answer, connection))
                os._exit(0)


def _end_with(connection: socket.socket) -> None:
    """Lets the system end this process, by SIGIO, when the other side closes the connection; silences a crash."""
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _answer(connection: socket.socket) -> None:
    """Reads a call, and sends what it returns or raises."""
    with suppress(OSError, EOFError, pickle.UnpicklingError), connection.makefile("rwb") as stream:  # nobody waits
        limits, function, args = pickle.load(stream)
        if limits is not None:
            fcntl.fcntl(connection, fcntl.F_SETFL, os.O_ASYNC)
            limits.apply()
        try:
            answer = True, function(*args)
        except Exception as error:
            answer = False, error
        fcntl.fcntl(connection, fcntl.F_SETFL, 0)  # the other side's reading would end it, too
        spent = 0.0 if limits is None else time.process_time()
        pickle.dump((*answer, spent), stream)


def _send(connection: socket.socket, answer: tuple[bool, Any, float]) -> None:
    """Sends an answer to a call that was not read."""
    with suppress(OSError), connection.makefile("wb") as stream:  # nobody waits
        pickle.dump(answer, stream)

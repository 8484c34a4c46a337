"""`longgraft serve`: serves a model to editors and other clients over HTTP."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace

import typer

from longgraft.cli.commands import command
from longgraft.cli.opening import open_session, say, say_loading
from longgraft.config.settings import Machine, Pair, Settings
from longgraft.serve.options import KEY_VARIABLE, Replicas, Serving

serving = typer.Typer()

KEPT = 4.0  # GiB of the prefix cache: an editor sends the same file again and again
EXAMPLE = "longgraft serve qwen2.5-coder-0.5b --port 8012"


@command(serving, "serve", EXAMPLE, "Answer", base={"prefixes": KEPT}, argument="model")
def serve(pair: Pair, settings: Settings, serving: Serving, place: Replicas, machine: Machine) -> None:
    """Answer editors and other clients over HTTP, as OpenAI's and llama.cpp's servers do."""
    if place.ray is None:
        say_loading(pair, "serve")
    elif machine.threads is not None:
        raise ValueError("--threads was given, and a replica on Ray has the CPUs that Ray gives it. Leave it out.")
    try:
        from longgraft.serve.app import make_app
        from longgraft.serve.http_server import bind, run, url
        from longgraft.serve.replicas.deployment import Opened, replicas
        from longgraft.serve.request_log import written_to_stderr
    except ImportError as error:
        raise ImportError(f'The server needs {error.name}. Install it with: pip install "longgraft[serve]"') from error

    if serving.api_key is None:
        serving = replace(serving, api_key=os.environ.get(KEY_VARIABLE))
    listens = bind(serving)  # before a model is loaded, because the address may be taken
    if not serving.local and serving.api_key is None:
        say(f"no API key is needed at {url(listens, serving)}; set {KEY_VARIABLE} to require one")
    with ExitStack() as stack:
        if place.ray is None:
            session, _ = open_session(pair, settings, tell=True)
            temperature = session.defaults.temperature
            if temperature:  # generation_config.json decides how requests without one are answered
                say(
                    f"requests without a temperature are sampled at {temperature:g}, as generation_config.json says; "
                    "those with temperature 0 are greedy"
                )
            app = make_app(session, serving)
        else:
            application = f"longgraft-{socket.gethostname()}-{listens.getsockname()[1]}"
            handle, name = stack.enter_context(replicas(place, Opened(pair, settings, serving), application))
            from longgraft.serve.replicas.front import make_front

            app = make_front(handle, name, serving)

        def say_ready() -> None:
            say(f"{app.state.longgraft.name} is served at {url(listens, serving)}; Ctrl-C ends it")

        if serving.log_requests == "on" or (serving.log_requests is None and sys.stderr.isatty()):
            stack.enter_context(written_to_stderr())
        # The usual end of a server; it may be raised again after all is closed.
        with suppress(KeyboardInterrupt):
            run(app, listens, say_ready)
    say("ended")

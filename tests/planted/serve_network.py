"""Errors that `test_serve_network.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "decoding goes on for a client that is gone",
        "cancelled_on_disconnect",
        "        answers.cancel()\n\n    watching",
        "        pass\n\n    watching",
        "test_serve_network.py::test_a_client_that_leaves_ends_its_decoding_with_the_step_that_runs",
    ),
    Mutation(
        "shutdown waits for running answers",
        "Server.shutdown",
        "        self._app.state.longgraft.close()\n        await super",
        "        await super",
        "test_serve_network.py::test_a_server_that_is_closed_ends_its_answers_with_their_step",
    ),
    Mutation(
        "a server that drains takes requests",
        "Worker.check",
        "if self._closed or self.draining:",
        "if self._closed:",
        "test_serve_network.py::test_a_terminated_server_finishes_its_requests_and_refuses_new_ones",
    ),
    Mutation(
        "a server drains for ever",
        "Server.on_tick",
        "drained or time.monotonic() >= self._until",
        "drained",
        "test_serve_network.py::test_a_terminated_server_finishes_its_requests_and_refuses_new_ones",
    ),
    Mutation(
        "a second signal does not end a draining server",
        "Server.handle_exit",
        " or self._worker.draining",
        "",
        "test_serve_network.py::test_a_second_signal_ends_a_server_that_drains",
    ),
    Mutation(
        "a thread that steps counts as stalled",
        "Worker._round",
        "        self._stepped_at = time.monotonic()\n",
        "",
        "test_serve_network.py::test_a_decoding_thread_that_hangs_is_not_ready",
    ),
    Mutation(
        "a proxy may hold a stream back",
        "EventStream.__init__",
        ', "X-Accel-Buffering": "no"',
        "",
        "test_serve_network.py::test_a_stream_sends_comments_while_it_has_no_tokens",
    ),
)

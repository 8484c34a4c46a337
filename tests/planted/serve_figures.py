"""Errors that `test_serve_figures.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "plain steps are counted as proposals",
        "request_figures:metrics",
        "stats.steps - plain",
        "stats.steps",
        "test_serve_figures.py::test_acceptance_is_counted_by_position_and_without_plain_steps",
    ),
    Mutation(
        "a span belongs to no trace",
        "Tracing.ended",
        "extract(served.trace)",
        "extract({})",
        "test_serve_figures.py::test_a_request_is_a_span_of_the_trace_that_its_headers_name",
    ),
)

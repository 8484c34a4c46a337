"""Errors that `test_metrics.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "tokens behind an end are counted in the metrics",
        "RequestMetrics.stepped",
        "min(len(step.path) - 1, len(step.tokens))",
        "len(step.path) - 1",
        "test_metrics.py::test_tokens_that_an_end_cuts_off_a_step_are_not_counted",
    ),
    Mutation(
        "any request fills the memory",
        "Scheduler.filled",
        "written + max(self._room(), reserved)",
        "written + reserved",
        "test_metrics.py::test_a_gateway_reads_the_names_and_gauges_that_it_knows",
    ),
)

"""Errors that `test_concurrency.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "passes that only read prompts are counted",
        "concurrency:_Counting.step",
        "if self.nodes > nodes_before:",
        "if True:",
        "test_concurrency.py::test_passes_that_verify_and_their_nodes_are_counted",
    ),
    Mutation(
        "trees are counted instead of their nodes",
        "concurrency:_Counting.step",
        "len(event.step.tree)",
        "1",
        "test_concurrency.py::test_passes_that_verify_and_their_nodes_are_counted",
    ),
    Mutation(
        "concurrent answers are compared with nothing",
        "concurrency:_answered",
        "different += answer != alone",
        "different += False",
        "test_concurrency.py::test_answers_that_differ_from_the_request_alone_are_counted",
    ),
    Mutation(
        "measured batches are measured again",
        "concurrency:missing_batches",
        "if key not in existing",
        "if True",
        "test_concurrency.py::test_requests_at_once_have_their_own_rows_and_the_answers_they_have_alone",
    ),
    Mutation(
        "a request waits from the batch's beginning",
        "_answered",
        " - request.queued",
        "",
        "test_concurrency.py::test_batches_are_repeated_and_a_request_waits_from_its_own_beginning",
    ),
    Mutation(
        "a batch is measured once for all repeats",
        "missing_batches",
        "range(config.repeats)",
        "range(1)",
        "test_concurrency.py::test_batches_are_repeated_and_a_request_waits_from_its_own_beginning",
    ),
)

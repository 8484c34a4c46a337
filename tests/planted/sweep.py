"""Errors that `test_sweep.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a method without its head stops a sweep that allows it",
        "_missing_variants",
        "if not config.allow_missing:  # then it is an error",
        "if True:  # then it is an error",
        "test_sweep.py::test_methods_without_what_they_need_are_failures_where_that_is_allowed",
    ),
    Mutation(
        "a suite's answers are known to the next suite",
        "measure_prompt",
        'pool=f"{job.suite} {job.length}"',
        'pool=f"{job.length}"',
        "test_sweep.py::test_a_method_learns_from_the_prompts_of_one_suite_and_length",
    ),
    Mutation(
        "answers at one length are known to the next",
        "measure_prompt",
        'pool=f"{job.suite} {job.length}"',
        "pool=job.suite",
        "test_sweep.py::test_a_method_learns_from_the_prompts_of_one_suite_and_length",
    ),
    Mutation(
        "the sweep has no predictions",
        "measure_prompt",
        "prediction=predicted",
        "prediction=()",
        "test_sweep.py::test_edits_are_decoded_with_the_file_as_prediction",
    ),
    Mutation(
        "an edit has no prediction",
        "_edit_parts",
        "prediction=file",
        'prediction=""',
        "test_suites.py::test_a_row_with_a_file_before_and_after_is_an_edit",
    ),
    Mutation(
        "a prediction leaves the fingerprint as it is",
        "Example.fingerprint",
        "if self.prediction:",
        "if False:",
        "test_suites.py::test_a_row_with_a_file_before_and_after_is_an_edit",
    ),
)

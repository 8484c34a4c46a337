"""Errors that `test_sweep.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("a method without its head stops a sweep that allows it", "Bench.open", "if not config.allow_missing:        # then it is an error", "if True:        # then it is an error", "test_sweep.py::test_methods_without_what_they_need_are_failures_where_that_is_allowed"),
)

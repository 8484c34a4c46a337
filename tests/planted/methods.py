"""Errors that `test_methods.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("a method with changed choices falls back", "load_needs", " and method.choices == method.usual", "", "test_methods.py::test_a_choice_of_a_method_has_no_fallback"),
    Mutation("a share that nothing reads is accepted", "GraftChoices.__post_init__", 'if self.pruning != "none" and self.retrieved is not None:', "if False:", "test_methods.py::test_choices_that_contradict_one_another_are_refused"),
)

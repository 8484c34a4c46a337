"""Errors that `test_settings.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a pair may have three parts",
        "options:_parsed",
        "zip(parts, kinds, strict=True)",
        "zip(parts, kinds, strict=False)",
        "test_settings.py::test_a_text_of_another_kind_is_refused[pair-1/2/3]",
    ),
)

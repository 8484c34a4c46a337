"""Errors that `test_diagnose.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a diagnosed chain sees the target's row of the token that it is to draft behind",
        "_Chain._mask",
        "columns < ends[:, None]",
        "columns <= ends[:, None]",
        "test_diagnose.py::test_own_chains_have_the_probabilities_of_decoding",
    ),
)

"""Errors that `test_calibration.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the last row identifies the weights",
        "calibration:identity_of",
        "[:: max(1, target.vocab_size // 8)]",
        "[-1]",
        "test_calibration.py::test_identity_of_weights_depends_on_rows_before_the_padding",
    ),
)

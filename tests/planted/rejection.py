"""Errors that `test_rejection.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a correction is drawn from the target's own distribution",
        "Rejection.settle",
        "(last_p - last_q).clamp(min=0)",
        "last_p",
        "test_rejection.py::test_decoded_texts_follow_the_target_s_distribution",
    ),
    Mutation(
        "a correction is drawn by the noise of the draft",
        "Rejection.settle",
        "self.sampled.apart(CORRECTED)",
        "self.sampled.apart(DRAFTED)",
        "test_rejection.py::test_decoded_texts_follow_the_target_s_distribution",
    ),
    Mutation(
        "acceptance and correction share their noise's position",
        "rejection:",
        "ACCEPTED = 2",
        "ACCEPTED = 1",
        "test_rejection.py::test_decoded_texts_follow_the_target_s_distribution",
    ),
)

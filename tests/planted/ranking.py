"""Errors that `test_ranking.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "weights are learnt of the token before",
        "ExpertWeights.observe",
        "seen.following.tolist()",
        "seen.kept.tolist()",
        "test_ranking.py::test_weights_follow_the_expert_that_predicted_the_tokens",
    ),
    Mutation(
        "experts without a prediction have weights",
        "ExpertWeights.of_text",
        "return 0.0",
        "return 0.1",
        "test_ranking.py::test_a_text_without_a_prediction_has_no_weight_and_learns_nothing",
    ),
)

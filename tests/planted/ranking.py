"""Errors that `test_ranking.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "weights are learnt of the token before",
        "ExpertWeights.observe",
        "seen.following.tolist()",
        "seen.kept.tolist()",
        "test_ranking.py::test_weights_follow_the_experts_that_predicted_the_tokens",
    ),
    Mutation(
        "experts without a prediction have weights",
        "ExpertWeights.weights_for",
        "text = 0.0",
        "text += 0.1",
        "test_ranking.py::test_weights_follow_the_experts_that_predicted_the_tokens",
    ),
    Mutation(
        "rows have weight where nothing was drafted",
        "RankedProposer._children",
        "        if not below:\n            return [(token, child, child.text) for token, child in children.items()]\n        row = drafted.rows.get(node.place, ())",
        "        row = next(iter(drafted.rows.values()), ())",
        "test_ranking.py::test_rows_have_weight_beside_drafted_nodes_only",
    ),
)

"""Errors that `test_anchors.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "an anchor is compared by its own state",
        "Anchors.closest",
        "np.concatenate(groups) - 1",
        "np.concatenate(groups)",
        "test_anchors.py::test_the_anchor_has_the_context_most_like_that_of_the_root",
    ),
    Mutation(
        "successors are chosen by the root's context",
        "AdaPld._branches_at",
        "[*groups.values()], at)",
        "[*groups.values()], len(text) - 2)",
        "test_anchors.py::test_a_successor_is_taken_from_the_context_most_like_the_anchors",
    ),
)

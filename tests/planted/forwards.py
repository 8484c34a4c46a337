"""Errors that `test_forwards.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a drafted level is no forward",
        "Eagle3Drafter._draft",
        '            self.clock.ran("draft")\n',
        "",
        "test_forwards.py::test_every_forward_beside_the_verifications_is_counted",
    ),
    Mutation(
        "feeding a prompt counts as drafting",
        "Request._read",
        "clock.counted()  #",
        "pass  #",
        "test_forwards.py::test_a_dense_tree_counts_a_forward_per_level_and_per_feeding",
    ),
)

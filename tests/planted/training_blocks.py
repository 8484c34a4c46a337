"""Errors that `test_training_blocks.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a trained block sees its own anchor's feature",
        "block_states",
        "< anchors[..., None]",
        "<= anchors[..., None]",
        "test_training_blocks.py::test_a_block_sees_the_same_in_training_as_when_it_drafts",
    ),
    Mutation(
        "a block's slots see only the ones before them",
        "DFlashCache.guesses",
        "every = torch.ones(n, n, dtype=torch.bool)",
        "every = torch.ones(n, n, dtype=torch.bool).tril()",
        "test_training_blocks.py::test_a_block_sees_the_same_in_training_as_when_it_drafts",
    ),
    Mutation(
        "the gradient of a block's nats omits the target's shares",
        "_Comparison.forward",
        "ours.exp_().sub_(shares)",
        "ours.exp_()",
        "test_training_blocks.py::test_nats_and_their_gradient_are_those_of_a_plain_cross_entropy",
    ),
)

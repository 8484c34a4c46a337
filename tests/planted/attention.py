"""Errors that `test_attention.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the merge of prefix and tree ignores their sums",
        "backends:split",
        "torch.sigmoid(far_lse.float() - lse.float())",
        "torch.sigmoid(0 * far_lse.float())",
        "test_attention.py::test_backends_equal_the_reference",
    ),
)

"""Errors that `test_triton.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "tiles take the shallowest row's window for all",
        "_parts",
        "tl.max(position, 0) - WINDOW",
        "tl.min(position, 0) - WINDOW",
        "test_triton.py::test_the_kernel_equals_the_reference",
    ),
    Mutation(
        "programs that wrote nothing are read",
        "_merge",
        "mask = (share > 0)[:, None]",
        "mask = (offs_s < splits)[:, None]",
        "test_triton.py::test_programs_without_columns_are_not_read",
    ),
)

"""Errors that `test_rows_triton.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a fused norm rounds in another place",
        "_norm",
        'if FORM == "rounded":',
        'if FORM == "wide":',
        "test_rows_triton.py::test_norms_divide_and_round_as_the_library_s",
    ),
    Mutation(
        "a fused rotation goes the other way",
        "_rotary",
        "across = (-second *",
        "across = (second *",
        "test_rows_triton.py::test_rotations_are_the_library_s_to_the_last_bit",
    ),
    Mutation(
        "rows outside the buffers are written to their first row",
        "fused_triton:_write",
        "there = (row >= 0) & (row < capacity)",
        "row = tl.where((row >= 0) & (row < capacity), row, 0)\n    there = True",
        "test_rows_triton.py::test_rows_are_written_where_they_belong_and_nowhere_else",
    ),
    Mutation(
        "a fused product spills",
        "fused_triton:TILE",
        "TILE = 1024 ",
        "TILE = 131072 ",
        "test_rows_triton.py::test_no_launch_spills",
    ),
)

"""Errors that `test_seeding.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "rows of a prompt come from first occurrences",
        "last_occurrences",
        "last[len(ids) - 1 - np.unique(ids[::-1], return_index=True)[1]]",
        "last[np.unique(ids, return_index=True)[1]]",
        "test_seeding.py::test_the_matrix_equals_the_rows_of_every_position_written_in_order",
    ),
    Mutation(
        "every position of a prompt is ranked",
        "last_occurrences",
        "last = np.zeros(len(ids), bool)",
        "last = np.ones(len(ids), bool)",
        "test_seeding.py::test_the_output_embedding_reads_one_row_for_each_distinct_token",
    ),
    Mutation(
        "the rows of a chunk are its first tokens'",
        "AdjacencyMemory.observe",
        "tokens[seen.ranked]",
        "tokens[:len(seen.ranked)]",
        "test_seeding.py::test_the_matrix_equals_the_rows_of_every_position_written_in_order",
    ),
    Mutation(
        "rows of a prompt are written in the first step",
        "AdjacencyMemory.observe",
        "if seen.prompt and self._writes.alone:",
        "if False:",
        "test_seeding.py::test_rows_of_a_prompt_are_written_while_it_is_read",
    ),
)

"""Errors that `test_stable_layout.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "snippets stay behind one that has gone",
        "arrange",
        "takewhile(now.__contains__, map(place, before))",
        "filter(now.__contains__, map(place, before))",
        "test_stable_layout.py::test_new_pieces_are_put_behind_those_that_stay",
    ),
    Mutation(
        "a snippet of another worth is another snippet",
        "place",
        "return snippet.path, snippet.first_line, snippet.text",
        "return snippet.path, snippet.worth, snippet.text",
        "test_stable_layout.py::test_a_change_of_worth_moves_no_piece",
    ),
    Mutation(
        "the cut of a file moves with each line",
        "PromptLayout._tail",
        "{min(BLOCK, max(1, budget // PER_LINE)), 1}",
        "{1}",
        "test_stable_layout.py::test_a_cut_file_begins_at_the_same_line_for_many_lines",
    ),
)

"""Errors that `test_gathering.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("a use far above the cursor is as good as one at it", "cursor_names", "weights.setdefault(name, 0.5 ** (distance / HALF))\n    for distance", "weights.setdefault(name, 1.0)\n    for distance", "test_gathering.py::test_a_use_at_the_cursor_is_worth_more_than_one_far_above"),
    Mutation("a link within the repository hides a secret's name", "locate", 'check_open(target.relative_to(folder).as_posix(), "")', "pass", "test_gathering.py::test_a_wrong_place_is_refused_by_name"),
    Mutation("a cursor's line ends at line feeds only", "symbols:LINE_END", "\\r\\n|\\r|\\n", "\\r\\n|\\n", "test_gathering.py::test_a_cursor_is_a_line_and_a_column_of_a_file"),
    Mutation("a snippet's lines are those of splitlines", "Snippet.last_line", 'self.text.removesuffix("\\n").count("\\n")', "max(0, len(self.text.splitlines()) - 1)", "test_gathering.py::test_the_last_line_of_a_snippet_is_counted_in_line_feeds"),
)

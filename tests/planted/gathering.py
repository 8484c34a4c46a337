"""Errors that `test_gathering.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a link within the repository hides a secret's name",
        "locate",
        'check_open(target.relative_to(folder).as_posix(), "")',
        "pass",
        "test_gathering.py::test_a_wrong_place_is_refused_by_name",
    ),
    Mutation(
        "a cursor's line ends at line feeds only",
        "snippets:LINE_END",
        "\\r\\n|\\r|\\n",
        "\\r\\n|\\n",
        "test_gathering.py::test_a_cursor_is_a_line_and_a_column_of_a_file",
    ),
    Mutation(
        "a snippet's lines are those of splitlines",
        "Snippet.last_line",
        'self.text.removesuffix("\\n").count("\\n")',
        "max(0, len(self.text.splitlines()) - 1)",
        "test_gathering.py::test_the_last_line_of_a_snippet_is_counted_in_line_feeds",
    ),
    Mutation(
        "the file's own text is among its snippets",
        "gather:gather",
        "        sources.pop(cursor.path, None)\n",
        "",
        "test_gathering.py::test_pieces_are_whole_lines_that_do_not_overlap_nor_come_from_the_file_itself",
    ),
    Mutation(
        "all lines before the cursor are compared",
        "alike",
        "_names(lines[-WINDOW:])",
        "_names(lines)",
        "test_gathering.py::test_only_the_last_ten_lines_before_the_cursor_are_compared",
    ),
    Mutation(
        "blank lines before the cursor count",
        "alike",
        " if line.strip()]\n    query",
        "]\n    query",
        "test_gathering.py::test_only_the_last_ten_lines_before_the_cursor_are_compared",
    ),
    Mutation(
        "names that no file has make all windows unlike",
        "rarity",
        "for name, count in counts.items()",
        "for name in wanted for count in [counts[name]]",
        "test_gathering.py::test_names_that_no_other_file_has_make_no_passage_less_alike",
    ),
)

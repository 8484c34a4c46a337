"""Errors that `test_printed_edits.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "new lines have the ends of the file's first line",
        "Window._ends_of",
        "self.ends[start::-1]",
        "self.ends[:1]",
        "test_printed_edits.py::test_lines_that_stay_keep_their_ends_and_new_ones_get_that_of_the_edits_first_line",
    ),
    Mutation(
        "lines after a last line without an end join it",
        "Window._edit",
        "if unended and start == len(self.lines):",
        "if False:",
        "test_printed_edits.py::test_lines_that_stay_keep_their_ends_and_new_ones_get_that_of_the_edits_first_line",
    ),
    Mutation(
        "a file without a last line end gets one",
        "Window._edit",
        'ends[-1:] = [""]',
        "pass",
        "test_printed_edits.py::test_lines_that_stay_keep_their_ends_and_new_ones_get_that_of_the_edits_first_line",
    ),
    Mutation(
        "a diff leaves out the byte order mark",
        "complete:shown",
        "before = list(StringIO(cursor.bom + cursor.text))",
        "before = list(StringIO(cursor.text))",
        "test_printed_edits.py::test_the_printed_diff_gives_the_file_the_rewritten_lines_and_keeps_its_line_ends",
    ),
    Mutation(
        "a diff's name with blanks ends at the first",
        "complete:shown",
        'mark = "\\t" if " " in edit.path else ""',
        'mark = ""',
        "test_printed_edits.py::test_the_printed_diff_gives_the_file_the_rewritten_lines_and_keeps_its_line_ends",
    ),
)

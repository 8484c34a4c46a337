"""Errors that `test_printed_edits.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "new lines have the ends of the file's first line",
        "Edit.in_file",
        "end = ends[min(self.first_line, len(ends)) - 1]",
        "end = ends[0]",
        "test_printed_edits.py::test_an_edit_has_the_line_ends_of_the_lines_that_it_replaces",
    ),
    Mutation(
        "lines after a last line without an end join it",
        "Edit.in_file",
        "if self.first_line > len(lines):",
        "if False:",
        "test_printed_edits.py::test_an_edit_has_the_line_ends_of_the_lines_that_it_replaces",
    ),
    Mutation(
        "a file without a last line end gets one",
        "Edit.in_file",
        'text=new.removesuffix("\\n")',
        "text=new",
        "test_printed_edits.py::test_an_edit_has_the_line_ends_of_the_lines_that_it_replaces",
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

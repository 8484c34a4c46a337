"""Errors that `test_ends.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a statement is completed to the end of its block",
        "Ending._block_goes_on",
        "if not self.seen or",
        "if True or",
        "test_ends.py::test_a_completion_ends_where_its_line_or_block_does",
    ),
    Mutation(
        "a block that goes on further out ends a completion early",
        "Ending._block_goes_on",
        "_indentation(next_line) == _indentation(self._line)",
        "True",
        "test_ends.py::test_a_completion_ends_where_its_line_or_block_does",
    ),
    Mutation(
        "a comment is a statement",
        "Ending._indented",
        'startswith(("@", "#"))',
        'startswith("@")',
        "test_ends.py::test_a_completion_ends_where_its_line_or_block_does",
    ),
    Mutation(
        "a branch is cut from its statement",
        "Ending._indented",
        "next_one = not CONTINUES.match(line.code) and",
        "next_one =",
        "test_ends.py::test_a_completion_ends_where_its_line_or_block_does",
    ),
    Mutation(
        "a branch that is being written ends a block",
        "Ending._indented",
        "if text.endswith(line.code) and any(",
        "if False and any(",
        "test_ends.py::test_a_completion_ends_where_its_line_or_block_does",
    ),
    Mutation(
        "a bracket's lines end a block",
        "Ending._indented",
        "elif line.code and line.depth == 0:",
        "elif line.code:",
        "test_ends.py::test_a_completion_ends_where_its_line_or_block_does",
    ),
    Mutation(
        "a completion ends within a line",
        "Ending._lines",
        "StringIO(INDENTED_MASKED.sub(_mask, whole))",
        "INDENTED_MASKED.sub(_mask, whole).splitlines(keepends=True)",
        "test_ends.py::test_a_completion_ends_where_its_line_or_block_does",
    ),
    Mutation(
        "the file's next line is cut short",
        "Ending._next_line",
        '.split("\\n")',
        ".splitlines()",
        "test_ends.py::test_a_completion_ends_where_its_line_or_block_does",
    ),
    Mutation(
        "a next line of four characters is not recognised",
        "Ending._next",
        ">= DISTINCT",
        "> DISTINCT",
        "test_ends.py::test_a_completion_ends_where_its_line_or_block_does",
    ),
    Mutation(
        "any next line ends a completion",
        "Ending._next",
        ">= DISTINCT",
        ">= 0",
        "test_ends.py::test_a_completion_ends_where_its_line_or_block_does",
    ),
    Mutation(
        "brace languages are known by small suffixes only",
        "Ending.has_braces",
        ".lower()",
        "",
        "test_ends.py::test_a_completion_ends_where_its_line_or_block_does",
    ),
    Mutation(
        "a statement ends before a branch that is only begun",
        "Ending._braced_statement",
        "branch.startswith(code) for branch",
        "False for branch",
        "test_ends.py::test_a_completion_ends_where_its_line_or_block_does",
    ),
    Mutation(
        "blanks are held back where only the model ends",
        "Ending.certain",
        "return len(text)\n        if self._line_rest",
        "return len(text.rstrip())\n        if self._line_rest",
        "test_ends.py::test_blanks_are_passed_on_at_once_where_only_the_model_ends",
    ),
)

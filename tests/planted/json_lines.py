"""Errors that `test_json_lines.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "JSONL is split at line separators of Unicode",
        "json_lines",
        '.split("\\n")',
        ".splitlines()",
        "test_json_lines.py::test_rows_end_at_line_feeds_only_in_texts_files_and_compressed_files",
    ),
    Mutation(
        "JSONL is split at carriage returns",
        "json_lines:_lines",
        ', newline="\\n"',
        "",
        "test_json_lines.py::test_a_carriage_return_between_two_values_does_not_end_a_row",
    ),
    Mutation(
        "a mark of the byte order begins the first row",
        "json_lines:_lines",
        "utf-8-sig",
        "utf-8",
        "test_json_lines.py::test_an_empty_file_with_a_mark_has_no_rows",
    ),
    Mutation(
        "a mark of the byte order begins a JSON text",
        "parse_json",
        'text = text.removeprefix("\\ufeff")',
        "pass",
        "test_json_lines.py::test_json_text_may_begin_with_a_mark",
    ),
    Mutation(
        "a mark of the byte order begins a prompt",
        "prompts:read_source",
        'encoding: str = "utf-8-sig"',
        'encoding: str = "utf-8"',
        "test_json_lines.py::test_prompts_of_files_with_a_mark_are_those_of_files_without_one",
    ),
    Mutation(
        "a mark of the byte order begins an ignored pattern",
        "spec_of",
        "utf-8-sig",
        "utf-8",
        "test_json_lines.py::test_the_first_pattern_of_an_ignore_file_with_a_mark_counts",
    ),
)

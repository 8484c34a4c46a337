"""Errors that `test_published_suites.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the first part of a Parquet table is all of it",
        "suites:_rows_of",
        "for path in paths",
        "for path in paths[:1]",
        "test_published_suites.py::test_every_form_of_the_qualitative_split_gives_the_same_prompts[copied_from_the_hub]",
    ),
    Mutation(
        "lengths of LongBench v2 are looked for among categories",
        "_longbench_v2",
        'kind_column="length"',
        'kind_column="category"',
        "test_published_suites.py::test_every_form_of_longbench_v2_gives_the_official_prompt",
    ),
    Mutation(
        "texts of LongBench v2 keep the spaces around them",
        "_longbench_v2",
        "strip=True",
        "strip=False",
        "test_published_suites.py::test_every_form_of_longbench_v2_gives_the_official_prompt",
    ),
    Mutation(
        "prompts of a fixed length are chosen by their tokens",
        "suites:_example",
        "fixed_length=suite.fixed_length",
        "fixed_length=None",
        "test_published_suites.py::test_prompts_of_a_fixed_length_are_uncut_in_their_bucket_and_evenly_spread",
    ),
    Mutation(
        "a prompt of a fixed length may leave no room for an answer",
        "_of_fixed_length",
        "most is None or len(prompt.ids) <= most",
        "True",
        "test_published_suites.py::test_prompts_of_a_fixed_length_are_uncut_in_their_bucket_and_evenly_spread",
    ),
    Mutation(
        "a choice in parentheses does not come first",
        "CHOICE_PATTERNS",
        r're.compile(r"The correct answer is \(([A-D])\)"), ',
        "",
        "test_published_suites.py::test_the_score_of_longbench_v2_is_whether_the_stated_choice_is_right",
    ),
    Mutation(
        "a JSON list is read by lines",
        "sources:read_rows",
        "and _holds_list(path)",
        "and not _holds_list(path)",
        "test_published_suites.py::test_every_form_of_longbench_v2_gives_the_official_prompt",
    ),
    Mutation(
        "the file after an edit is not replayed",
        "suites:_texts_in",
        "edit is not None and edit.after",
        "False",
        "test_published_suites.py::test_rows_of_edit_suites_ask_for_the_whole_file_and_predict_it",
    ),
    Mutation(
        "the columns of an edit suite are not its own",
        "edit_columns",
        "if suite.edit:",
        "if False:",
        "test_published_suites.py::test_rows_of_edit_suites_ask_for_the_whole_file_and_predict_it",
    ),
    Mutation(
        "part of a suite may be empty",
        "suites:_rows_of",
        "if not chosen:",
        "if chosen is None:",
        "test_published_suites.py::test_a_category_without_withheld_prompts_loads_beside_one_with_them",
    ),
)

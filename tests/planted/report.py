"""Errors that `test_report.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("equal errors have a line each", "_by_error", "(row.key.method, row.error), []", "(str(row.key), row.error), []", "test_report.py::test_failures_of_one_error_are_one_line"),
    Mutation("tables without loops include loops", "summary", "tables(cells(own, with_loops=False), ", "tables(cells(own), ", "test_report.py::test_every_table_is_shown_with_and_without_answers_that_loop"),
    Mutation("methods that promise the distribution may differ when greedy", "Check.held", 'may_differ(promise, mode != "greedy" and self.margin is None)', "may_differ(promise, True)", "test_report.py::test_a_method_that_promises_the_distribution_must_give_the_same_greedy_tokens"),
    Mutation("a lossy method that failed is lossless", "cells:cells", 'promises.get(method, "exact")', 'next((row.promise for row in own if isinstance(row, Row)), "exact")', "test_report.py::test_a_lossy_method_stays_lossy_where_all_its_rows_are_failures"),
    Mutation("a method's step is compared with itself", "cells:_cell", "_ratio(mine, plain, _step)", "_ratio(mine, {row.key._replace(method=PLAIN): row for row in mine}, _step)", "test_report.py::test_the_field_compares_methods_and_the_costs_of_their_drafts"),
    Mutation("resamples have one value less", "bootstrap", "size=(RESAMPLES, size)", "size=(RESAMPLES, size - 1)", "test_report.py::test_the_bootstrap_draws_samples_as_large_as_the_values_and_follows_its_level"),
    Mutation("runs are compared without their steps", "COUNTS", '"steps", ', "", "test_report.py::test_rows_differ_by_their_tokens_and_by_every_count"),
    Mutation("runs are compared without what was accepted", "COUNTS", '"accepted_per_step", "accepted_by_origin", ', "", "test_report.py::test_rows_differ_by_their_tokens_and_by_every_count"),
    Mutation("runs are compared without their stages", "COUNTS", ', "stages"', "", "test_report.py::test_rows_differ_by_their_tokens_and_by_every_count"),
    Mutation("an allowed difference hides a forbidden one", "lossless_level", "if not any(check.held(", "if not all(check.held(", "test_report.py::test_an_allowed_difference_does_not_hide_a_forbidden_one"),
    Mutation("prompts with a speed of zero are left out", "cells:_cell", "(ratio := _ratio(mine, plain, _rate)) is not None", "(ratio := _ratio(mine, plain, _rate))", "test_report.py::test_a_prompt_with_a_speed_of_zero_counts"),
    Mutation("rows of other prompts are compared", "compare:lines", "if _same_prompt(ours[key], theirs[key])", "", "test_report.py::test_rows_of_prompts_with_other_texts_are_not_compared"),
    Mutation("a long list ends without a word", "report:_listed", 'if len(lines) > LISTED else []', 'if False else []', "test_report.py::test_a_long_list_has_twenty_lines_and_the_number_of_the_others"),
    Mutation("changes that were not committed are not told", "report:_provenance", 'if e.get("changed") else ""', 'if False else ""', "test_report.py::test_summary_says_with_what_and_how_it_was_measured"),
    Mutation("a method has learnt from the fewest prompts alone", "report:_learned", "{max(before)} others", "{min(before)} others", "test_report.py::test_summary_names_methods_that_learn_over_the_run"),
    Mutation("a profiled run on a GPU has no costs", "costs_of_run", "and not run.config", "or not run.config", "test_report.py::test_the_costs_of_a_sweep_are_those_of_its_steps"),
)

"""Errors that `test_changes.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("changes of secret files are shown", "Names.secret", "return any(map(secret_path, self.paths))", "return False", "test_changes.py::test_changes_are_read_from_a_diff_and_secrets_are_left_out"),
    Mutation("a path keeps git's quotes", "changes:_unquoted", "return name[1:-1].encode()", "return name.encode()", "test_changes.py::test_a_changes_path_is_that_of_the_file_without_gits_prefixes_and_quotes"),
    Mutation("every pair of names has prefixes", "Names.paths", "if old[:2] != new[:2] and ", "if ", "test_changes.py::test_a_changes_path_is_that_of_the_file_without_gits_prefixes_and_quotes"),
    Mutation("a path keeps the prefixes of diff.mnemonicPrefix", "changes:PREFIXES", '"i/", ', "", "test_changes.py::test_a_changes_path_is_that_of_the_file_without_gits_prefixes_and_quotes"),
    Mutation("a made file keeps its prefix", "Names.paths", "if old == NOWHERE:", "if False:", "test_changes.py::test_a_changes_path_is_that_of_the_file_without_gits_prefixes_and_quotes"),
    Mutation("a removed file has no name", "Names.paths", "if new == NOWHERE:", "if False:", "test_changes.py::test_a_changes_path_is_that_of_the_file_without_gits_prefixes_and_quotes"),
    Mutation("a carriage return ends a line of a diff", "changes_of", 'diff.split("\\n")', "LINE_END.split(diff)", "test_changes.py::test_a_hunk_is_read_with_any_line_ends_and_of_a_merge_for_its_first_parent"),
    Mutation("lines within a line of git's are one line", "changes:_hunk", "LINE_END.split(line[parents:])", "[line[parents:]]", "test_changes.py::test_a_hunk_is_read_with_any_line_ends_and_of_a_merge_for_its_first_parent"),
    Mutation("hunks of merges are not read", "changes:HUNK", "@@(@*) -", "@@() -", "test_changes.py::test_a_hunk_is_read_with_any_line_ends_and_of_a_merge_for_its_first_parent"),
    Mutation("a line that only the other parent had is shown", "changes:_hunk", '(marks[0] == " " and not removed)', 'marks[0] == " "', "test_changes.py::test_a_hunk_is_read_with_any_line_ends_and_of_a_merge_for_its_first_parent"),
    Mutation("a diff of binary files is refused", "changes_of", "and not compared:", ":", "test_changes.py::test_a_diff_without_text_is_no_change"),
    Mutation("a secret file is shown after it got another name", "Names.secret", "self.paths", "self.paths[1:]", "test_changes.py::test_no_hunk_of_a_file_is_shown_that_holds_secrets_by_either_name_or_in_another_hunk"),
    Mutation("other hunks of a file with a secret are shown", "changes_of", "secrets.add(change.path)", "changes.pop()", "test_changes.py::test_no_hunk_of_a_file_is_shown_that_holds_secrets_by_either_name_or_in_another_hunk"),
    Mutation("a change that begins above the window is not undone", "before_last_change", "touches = bool(new)", "touches = start >= 0 and bool(new)", "test_changes.py::test_lines_before_a_change_have_its_old_lines_as_far_as_it_touches_them"),
    Mutation("old lines below the window are shown in it", "before_last_change", "if end > len(lines):", "if False:", "test_changes.py::test_lines_before_a_change_have_its_old_lines_as_far_as_it_touches_them"),
    Mutation("old lines above the window are shown in it", "before_last_change", "*old[first - start:]", "*old", "test_changes.py::test_lines_before_a_change_have_its_old_lines_as_far_as_it_touches_them"),
    Mutation("a name with quotes of its own is refused", "changes:_unquoted", "except ValueError:", "except KeyError:", "test_changes.py::test_a_changes_path_is_that_of_the_file_without_gits_prefixes_and_quotes"),
)

"""Errors that `test_next_edit.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("the window before is the window now", "before_last_change", "return (*lines[:first], *old[first - start:], *lines[first + len(new):])", "return tuple(lines)", "test_next_edit.py::test_the_prompt_has_sweeps_layout"),
    Mutation("changes are laid out from the last to the first", "NextEditLayout._changes", "reversed(blocks)", "blocks", "test_next_edit.py::test_the_last_changes_are_shown_in_their_order_as_far_as_they_fit"),
    Mutation("the middle of a long change is shown", "next_edit:_shortened", "if len(lines) > CHANGE_LINES:", "if False:", "test_next_edit.py::test_the_last_changes_are_shown_in_their_order_as_far_as_they_fit"),
    Mutation("a next edit has no prediction", "NextEditLayout.lay_out", 'prediction=(self.coder.encode("\\n".join(window.lines)),)', "prediction=()", "test_next_edit.py::test_the_current_window_is_a_prediction"),
    Mutation("an editor's window is no prediction", "prompts:plain_prompt", "if window is None:", "if True:", "test_next_edit.py::test_zed_gets_the_models_answer_and_the_fields_that_it_reads"),
    Mutation("/completion ignores its prediction", "prompts:prepared", "(*requested.predictions, predicted)", "requested.predictions", "test_next_edit.py::test_a_prompts_window_and_a_given_prediction_are_both_predictions"),
    Mutation("a rewrite that was cut off is an edit", "RewriteEnding.edit", 'if reason == "eos" or (reason == "stop" and not self.cuts):', "if True:", "test_next_edit.py::test_a_rewrite_that_a_limit_cuts_off_is_no_edit"),
    Mutation("an edit is complete at a place that occurs twice", "Window._rest", "if len(places) != 1 or", "if not places or", "test_next_edit.py::test_lines_that_an_insertion_may_have_too_do_not_complete_an_edit"),
    Mutation("lines after the window are added to it", "Window.edit", "for lines in (new, self._without_following(new))", "for lines in (new,)", "test_next_edit.py::test_an_edit_leaves_out_what_repeats_the_window_or_the_lines_after_it"),
    Mutation("a file from Windows gets other line ends", "Completer.complete", "edit = edit.in_file(cursor.text)", "pass", "test_next_edit.py::test_the_edit_of_a_file_from_windows_has_its_line_ends"),
    Mutation("a diff of the repository around a root has other paths", "changes:from_root", "change.path.removeprefix(way)", "change.path", "test_next_edit.py::test_changes_of_a_git_repository_are_found_from_a_root_within_it"),
    Mutation("an edit is complete at lines that stand above it too", "Window._rest", "range(len(self.lines))", "range(same, len(self.lines))", "test_next_edit.py::test_lines_that_an_insertion_may_have_too_do_not_complete_an_edit"),
    Mutation("an edit is complete after a blank line and another", "Window._rest", "if line.strip()]", "]", "test_next_edit.py::test_lines_that_an_insertion_may_have_too_do_not_complete_an_edit"),
    Mutation("an edit is complete after two brackets", "Window._rest", 'or not WORD.search("".join(tail))', "", "test_next_edit.py::test_lines_that_an_insertion_may_have_too_do_not_complete_an_edit"),
    Mutation("a blank line after the window ends an answer", "Window.rejoined", "any(map(str.strip, beyond))", "beyond", "test_next_edit.py::test_a_blank_line_after_the_window_may_begin_an_insertion"),
    Mutation("a long step hides where an answer came back", "Window.rejoined", "range(same + 1, len(lines) + 1)", "range(len(lines), len(lines) + 1)", "test_next_edit.py::test_an_edit_is_complete_when_the_answer_comes_back_to_the_window"),
    Mutation("lines after a window whose last line changed are added to it", "Window._without_following", "(enough or lines", "(lines", "test_next_edit.py::test_an_edit_leaves_out_what_repeats_the_window_or_the_lines_after_it"),
    Mutation("one line like the next after the window is left out", "Window._without_following", ">= REJOINED", ">= 1", "test_next_edit.py::test_an_edit_leaves_out_what_repeats_the_window_or_the_lines_after_it"),
    Mutation("a rewrite that a stop string cut off is an edit", "RewriteEnding.edit", "and not self.cuts", "", "test_next_edit.py::test_a_rewrite_that_a_stop_string_cuts_off_is_no_edit"),
    Mutation("a token that ends texts cuts a rewrite off", "Completer._cuts", "text not in added and text != END_MARK", "text", "test_next_edit.py::test_a_rewrite_that_a_stop_string_cuts_off_is_no_edit"),
    Mutation("the whole rewritten window is told", "Completer.complete", "_keep if rewrite else _with_ends(tell, cursor.line_end)", "tell", "test_next_edit.py::test_the_new_lines_of_an_edit_are_told_once"),
    Mutation("passages leave no room for the rewritten window", "Completer._most_of_rewrite", "max(0, excess)", "0", "test_next_edit.py::test_passages_leave_room_for_the_whole_rewritten_window"),
    Mutation("a streamed next edit is no diff", "complete:complete", "streams = output.stream and options.layout != NEXT_EDIT", "streams = output.stream", "test_next_edit.py::test_the_command_prints_a_diff"),
    Mutation("a rewrite that was cut off is said to change nothing", "complete:no_edit", 'if completion.ended == "length":', "if False:", "test_next_edit.py::test_the_command_says_why_there_is_no_edit"),
    Mutation("a window that spells the separator is no prediction", "current_window", 'head.rpartition(f"{SEPARATOR}{CURRENT}{path}\\n")[2]', 'head.rpartition(SEPARATOR)[2].removeprefix(f"{CURRENT}{path}\\n")', "test_next_edit.py::test_the_window_is_found_in_the_prompt_of_an_editor"),
    Mutation("a diff with a file that is not UTF-8 is refused", "CursorOptions.cursor", 'self.changes, "replace"', "self.changes", "test_next_edit.py::test_a_diff_may_have_a_file_that_is_not_utf_8"),
    Mutation("changes for another layout are ignored", "complete:complete", "if place.changes is not None and", "if False and", "test_next_edit.py::test_a_mistake_is_reported_before_a_model_is_loaded"),
)

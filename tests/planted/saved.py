"""Errors that `test_saved.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a cell goes on from the wrong place",
        "PrefixReader.recall",
        "rows[until // cell * cell : until]",
        "rows[max(0, until + 1 - cell):until]",
        "test_saved.py::test_prompts_are_kept_behind_a_file_and_the_file_is_not_counted",
    ),
    Mutation(
        "one token too many of a file's end is reused",
        "_common",
        "return place\n",
        "return place + 1\n",
        "test_saved.py::test_only_tokens_that_a_prompt_shares_with_the_file_are_reused",
    ),
    Mutation(
        "a file of another model is taken",
        "prefix_file:_check",
        "if differing and not lacks:",
        "if False and not lacks:",
        "test_saved.py::test_every_part_of_the_identity_is_compared",
    ),
    Mutation(
        "a tuned model is its base",
        "weight_identity:sample",
        "[shapes, torch.cat(values).tolist()]",
        "[shapes, values[-1].tolist()]",
        "test_saved.py::test_files_of_other_weights_or_settings_are_refused",
    ),
    Mutation(
        "pinned cells are counted",
        "Prefixes.pin",
        "self.bytes -= cell.bytes\n            self._pinned",
        "pass\n            self._pinned",
        "test_saved.py::test_kept_cells_that_a_pinned_file_holds_are_not_counted",
    ),
)

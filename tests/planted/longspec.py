"""Errors that `test_longspec.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a window is one token short",
        "LongSpecCache.expand.attend_self",
        "self.window + 1)",
        "self.window)",
        "test_longspec.py::test_a_drafted_path_is_as_probable_as_the_trained_network_says",
    ),
    Mutation(
        "rows moved to the front keep their positions' start",
        "LongSpecCache._slide",
        "cache.skipped += first",
        "cache.skipped += 0",
        "test_longspec.py::test_a_drafted_path_is_as_probable_as_the_trained_network_says",
    ),
    Mutation(
        "a beam ignores the scores of its parents",
        "LongSpecDrafter._draft",
        "(scores[:, None] + gains)",
        "gains",
        "test_longspec.py::test_a_level_has_the_best_of_all_children_of_the_level_before",
    ),
    Mutation(
        "the target's scratch rows are read",
        "LongSpecCache.expand",
        "rows[:, :, : self._rows]",
        "rows[:, :, :self._rows + 1]",
        "test_longspec.py::test_rows_after_the_committed_ones_are_not_read",
    ),
    Mutation(
        "a row is taught with a smaller gap",
        "attend_with_gaps",
        "(x[:, :-gap]",
        "(x[:, 1:]",
        "test_longspec.py::test_a_band_and_a_gap_equal_dense_attention_under_their_masks",
    ),
    Mutation(
        "a null entry of a LongSpec drafter is refused",
        "files:_shape",
        'not in ("silu", None)',
        '!= "silu"',
        "test_longspec.py::test_an_entry_that_is_null_counts_as_absent",
    ),
)

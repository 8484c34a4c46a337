"""Errors that `test_online.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("rewound thresholds are not those that the gates read", "AdaptiveThresholds.rewind", "self.thresholds.update(thresholds)", "self.thresholds = dict(thresholds)", "test_online.py::test_rewinding_restores_thresholds_and_window"),
    Mutation("thresholds move where nothing is gained", "AdaptiveThresholds._move", "if rates[best] > HYSTERESIS * rates[0]", "if True", "test_online.py::test_a_threshold_that_pays_as_well_as_another_stays"),
    Mutation("levels that were not drafted count as rejected", "AdaptiveThresholds._values", "there = levels >= end", "there = levels >= 0", "test_online.py::test_the_expected_yield_of_each_outcome_is_that_computed_by_hand"),
    Mutation("a stopped step is expected to cost a level less", "AdaptiveThresholds.__init__", "1 + level_cost * (self._last + 1)", "1 + level_cost * self._last", "test_online.py::test_the_expected_yield_of_each_outcome_is_that_computed_by_hand"),
)

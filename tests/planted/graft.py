"""Errors that `test_graft.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a gate compares 1 + log-probability",
        "Gates.__call__",
        "math.exp(level.scores.max().item())",
        "1 + level.scores.max().item()",
        "test_graft.py::test_a_gate_is_closed_by_confidences_up_to_its_threshold test_graft.py::test_a_gate_compares_a_probability_and_is_closed_at_its_threshold",
    ),
    Mutation(
        "a gate looks at the least probable path",
        "Gates.__call__",
        "level.scores.max()",
        "level.scores.min()",
        "test_graft.py::test_a_gate_is_closed_by_confidences_up_to_its_threshold",
    ),
    Mutation(
        "a gate is open at its threshold",
        "Gates.__call__",
        "if confidence > threshold:",
        "if confidence >= threshold:",
        "test_graft.py::test_a_gate_compares_a_probability_and_is_closed_at_its_threshold",
    ),
    Mutation(
        "a shallow tree has no gate",
        "Gates._gate",
        "if not level.last:",
        "if True:",
        "test_graft.py::test_the_last_level_of_a_shallow_tree_has_the_next_deeper_gate",
    ),
    Mutation(
        "w/o prune keeps 50 where nothing was calibrated",
        "Calibration",
        "split: int = 40",
        "split: int = 50",
        "test_graft.py::test_a_split_keeps_forty_of_sixty_and_no_prune_the_calibrated_number",
    ),
    Mutation(
        "w/o prune ignores the calibrated share",
        "graft:graft",
        "p.calibration.split if c.retrieved is None",
        "40 if c.retrieved is None",
        "test_graft.py::test_a_split_keeps_forty_of_sixty_and_no_prune_the_calibrated_number",
    ),
    Mutation(
        "a fixed split keeps 50",
        "Calibration",
        "    split: int = 40",
        "    split: int = 50",
        "test_graft.py::test_a_split_keeps_forty_of_sixty_and_no_prune_the_calibrated_number",
    ),
    Mutation(
        "tails hang on the worst leaves",
        "TailGraft.propose",
        "(-scores[node], node)",
        "(scores[node], node)",
        "test_graft.py::test_chains_of_five_hang_on_the_four_best_leaves",
    ),
    Mutation(
        "tails are chains of three",
        "TailGraft.__init__",
        "length: int = 5",
        "length: int = 3",
        "test_graft.py::test_chains_of_five_hang_on_the_four_best_leaves",
    ),
    Mutation(
        "tails hang on three leaves",
        "TailGraft.__init__",
        "leaves: int = 4",
        "leaves: int = 3",
        "test_graft.py::test_chains_of_five_hang_on_the_four_best_leaves",
    ),
    Mutation(
        "tails go beyond the budget",
        "TailGraft.propose",
        "min(self.length, ask.budget - len(tree))",
        "self.length",
        "test_graft.py::test_a_smaller_tree_has_shorter_tails",
    ),
    Mutation(
        "graft fills one slot less",
        "Graft.propose",
        "merge(on_host(retrieved), at=0, budget=budget)",
        "merge(on_host(retrieved), at=0, budget=budget - 1)",
        "test_graft.py::test_graft_asks_for_every_free_slot_and_fills_it",
    ),
    Mutation(
        "graft asks for one slot less",
        "Graft.propose",
        "budget - len(drafted))",
        "budget - len(drafted) - 1)",
        "test_graft.py::test_graft_asks_for_every_free_slot_and_fills_it",
    ),
)

"""Errors that `test_calibrate.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a stopped step costs a level less",
        "_gain.speed",
        "else stage + 1",
        "else stage",
        "test_calibrate.py::test_a_step_costs_the_levels_that_it_drafted_and_one_verification",
    ),
    Mutation(
        "the costs of drafting and verifying are swapped",
        "_gain",
        "draft, verify = costs",
        "verify, draft = costs",
        "test_calibrate.py::test_a_step_costs_the_levels_that_it_drafted_and_one_verification",
    ),
    Mutation(
        "a level costs what all of them do",
        "_costs",
        "dense / warmup.drafter.levels, verify",
        "dense, verify",
        "test_calibrate.py::test_the_cost_of_a_level_is_that_of_a_tree_divided_by_its_levels",
    ),
    Mutation(
        "the replay begins one token early",
        "_replay",
        "text[step.position + 1 :]",
        "text[step.position:]",
        "test_calibrate.py::test_a_tree_is_replayed_from_the_token_after_its_root",
    ),
    Mutation(
        "the replay begins one token late",
        "_replay",
        "text[step.position + 1 :]",
        "text[step.position + 2:]",
        "test_calibrate.py::test_the_warm_ups_replay_counts_the_tokens_that_decoding_accepted",
    ),
    Mutation(
        "a gate's tree has a level less",
        "_Warmup._stage",
        "min(depth + 1, whole.levels)",
        "max(min(depth, whole.levels), 1)",
        "test_calibrate.py::test_the_trees_of_the_warm_up_are_those_that_graft_would_have_verified",
    ),
    Mutation(
        "the warm-up leaves a gate open at its threshold",
        "stage_of",
        "not step.confidence[depth] > tau",
        "step.confidence[depth] < tau",
        "test_calibrate.py::test_a_gate_stops_a_step_whose_confidence_is_at_most_its_threshold",
    ),
)

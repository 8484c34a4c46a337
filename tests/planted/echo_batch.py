"""Errors that `test_echo_batch.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("a plan does not wait for that of its source", "PlannedTogether.turn", " + len(_Turn) * self.last", "", "test_echo_batch.py::test_a_plan_whose_source_has_a_plan_decides_last"),
    Mutation("a pass has no budget for its requests together", "EchoPlan.shares", "free = self.most - self.requests", "free = self.most * self.requests", "test_echo_batch.py::test_the_nodes_of_a_pass_are_at_most_its_budget"),
    Mutation("a request has no root of its own", "EchoPlan.shares", "[1] * len(offers)", "[0] * len(offers)", "test_echo_batch.py::test_small_trees_come_first_and_every_request_has_its_root"),
    Mutation("sure requests take the small trees of others", "EchoPlan.shares", "        free = _spend(free, nodes, offers, [self.small] * len(offers))\n", "", "test_echo_batch.py::test_small_trees_come_first_and_every_request_has_its_root"),
    Mutation("width comes before depth", "EchoPlan.shares", "            else:\n                levels", "            if offer.stopped:\n                levels", "test_echo_batch.py::test_levels_of_drafts_that_go_on_come_before_the_width_of_stopped_ones"),
    Mutation("what stopped requests gave up goes to all", "EchoPlan.shares", "            if offer.stopped:\n                widths[index] = offer.budget\n            else:\n", "            widths[index] = offer.budget\n            if not offer.stopped:\n", "test_echo_batch.py::test_levels_of_drafts_that_go_on_come_before_the_width_of_stopped_ones"),
    Mutation("the first request takes all slots of a kind", "echo:_spend", "return -offers[index].probabilities[nodes[index] - 1], index", "return 0.0, index", "test_echo_batch.py::test_slots_of_one_kind_go_to_the_most_probable_candidates_of_all_requests"),
    Mutation("unsure drafts are extended first", "EchoPlan.extended", "-offers[at]", "offers[at]", "test_echo_batch.py::test_drafts_are_extended_in_the_order_of_their_confidence_while_their_nodes_fit"),
    Mutation("extensions take the small trees of others", "EchoPlan.extended", "self.most - self.small * self.requests", "self.most", "test_echo_batch.py::test_drafts_are_extended_in_the_order_of_their_confidence_while_their_nodes_fit"),
    Mutation("levels of small trees need free nodes", "EchoPlan.extended", "max(0, free)", "free", "test_echo_batch.py::test_drafts_are_extended_in_the_order_of_their_confidence_while_their_nodes_fit"),
    Mutation("a small budget stops a request alone", "EchoPlan.needed", "min(offer.budget, self.small + max(0, offer.levels - SMALL_LEVELS))", "self.small + max(0, offer.levels - SMALL_LEVELS)", "test_echo_batch.py::test_drafts_are_extended_in_the_order_of_their_confidence_while_their_nodes_fit"),
    Mutation("the smallest budget of a request holds for the pass", "EchoPlanner.__call__", "max(ask.budget", "min(ask.budget", "test_echo_batch.py::test_the_budget_of_a_pass_is_the_largest_of_its_requests_unless_one_is_chosen"),
    Mutation("each lane plans for itself", "echo:build", 'parts.of_engine(("echo", chosen),\n                               lambda: PlannedTogether("echo\'s plan", EchoPlanner(chosen.pass_nodes)))', 'PlannedTogether("echo\'s plan", EchoPlanner(chosen.pass_nodes))', "test_echo_batch.py::test_the_nodes_of_a_pass_are_at_most_its_budget"),
    Mutation("shares are decided before other requests have drafted", "PlannedTogether.turn", "return decision.turn", "return -decision.turn", "test_echo_batch.py::test_requests_that_need_different_decisions_meet_for_those_that_they_share"),
    Mutation("verifications run before plans", "PlannedTogether", "drafts = True", "drafts = False", "test_echo_batch.py::test_a_plan_is_made_before_verifications_and_within_blocks_without_gradients"),
    Mutation("each request has a plan of its own", "PlannedTogether._begin", "[self.planner(offers)] * len(offers)", "[self.planner(offers) for _ in offers]", "test_echo_batch.py::test_requests_that_need_different_decisions_meet_for_those_that_they_share"),
    Mutation("drafts are made for roots alone", "EchoDrafter.propose", " or plan.most <= plan.requests", "", "test_echo_batch.py::test_requests_whose_budget_of_a_pass_is_used_up_by_their_roots_draft_nothing"),
    Mutation("a lone request ignores the nodes of a pass", "EchoDrafter.propose", "min(ask.budget, plan.most)", "ask.budget", "test_echo_batch.py::test_a_request_alone_has_at_most_the_nodes_of_a_pass"),
    Mutation("a gate is open for whoever fits", "PlannedGates.__call__", "if level.last or not verdict.expand or", "if level.last or", "test_echo_batch.py::test_a_closed_gate_stops_a_draft_of_a_shared_pass_like_one_alone"),
    Mutation("a passed gate asks for nothing", "PlannedGates.__call__", "Verdict(expand=self.together.extended(self.plan, offer))", "verdict", "test_echo_batch.py::test_drafts_of_a_full_pass_stop_at_the_last_gate_of_their_small_trees"),
)

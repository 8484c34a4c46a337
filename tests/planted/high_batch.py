"""Errors that `test_high_batch.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("stored gates look at the last level alone", "StoredGates.__call__", "at = at.before", "at = None", "test_high_batch.py::test_stored_gates_decide_like_gates_but_after_every_level"),
    Mutation("the last closed gate decides", "StoredGates.__call__", "gated.insert(0, at)", "gated.append(at)", "test_high_batch.py::test_stored_gates_decide_like_gates_but_after_every_level"),
    Mutation("each lane has a matrix of its own", "Parts.rows", "self.of_engine(key, empty) if shared else empty()", "empty()", "test_high_batch.py::test_running_requests_share_one_matrix_and_a_lone_one_starts_from_the_snapshot"),
    Mutation("a rejected node replaces what another request kept", "MatrixWrites.write", "            rows += [observations[memory][0] for memory in memories]     # rejected\n            rows += [observations[memory][1] for memory in memories]     # kept\n", "            rows += [rejected_or_kept for memory in memories for rejected_or_kept in observations[memory]]\n", "test_high_batch.py::test_writes_of_a_pass_put_every_rejected_node_before_every_kept_one"),
    Mutation("writes depend on who came first", "MatrixWrites.write", "sorted(observations)", "list(observations)", "test_high_batch.py::test_writes_of_a_pass_put_every_rejected_node_before_every_kept_one"),
    Mutation("a request that begins empties the matrix of those that run", "MatrixWrites.begin", "return len(self._running) == 1", "return True", "test_high_batch.py::test_running_requests_share_one_matrix_and_a_lone_one_starts_from_the_snapshot"),
    Mutation("ended requests count as running", "MatrixWrites.end", "self._running.discard(memory)", "pass", "test_high_batch.py::test_running_requests_share_one_matrix_and_a_lone_one_starts_from_the_snapshot"),
    Mutation("a prediction stays in a shared matrix", "AdjacencyMemory.release", "self._forget_predictions()", "pass", "test_high_batch.py::test_a_prediction_leaves_the_shared_matrix_with_its_request"),
    Mutation("a block's mode reaches the action that runs next", "together:together.share", "with _in(mode):", "if True:", "test_high_batch.py::test_a_draft_pass_is_shared_within_blocks_that_switch_modes"),
    Mutation("verifications run before drafts", "together:_turn", "not runner.drafts, runner", "runner.drafts, runner", "test_high_batch.py::test_passes_run_in_the_order_in_which_most_requests_meet"),
    Mutation("levels run before outputs", "HeadPasses.turn", "return part", "return -part", "test_high_batch.py::test_passes_run_in_the_order_in_which_most_requests_meet"),
    Mutation("shared rows attend to the first request's cache", "HeadPasses.forward", "zip(q.split(counts, dim=2), keys, values, layouts, strict=True)", "zip(q.split(counts, dim=2), keys[:1] * len(rows), values[:1] * len(rows), layouts, strict=True)", "test_high_batch.py::test_drafts_share_passes_and_have_the_same_bits_as_alone"),
    Mutation("each lane drafts with passes of its own", "Parts.drafter_cache", "self.target.fused_kernels, passes))", "self.target.fused_kernels))", "test_high_batch.py::test_drafts_share_passes_and_have_the_same_bits_as_alone"),
    Mutation("a level that requests share has the rows of one", "Prices.level", "sharing * self._beam", "self._beam", "test_high_batch.py::test_a_level_is_cheaper_for_requests_that_share_it"),
    Mutation("a feed that requests share has the rows of one", "Prices.feed", "sharing * fed", "fed", "test_high_batch.py::test_a_level_is_cheaper_for_requests_that_share_it"),
    Mutation("drafts are timed while others run", "Controller._with_draft", "elif ask.batch.alone:", "elif True:", "test_high_batch.py::test_a_shared_draft_does_not_change_the_costs_of_a_draft_alone"),
)

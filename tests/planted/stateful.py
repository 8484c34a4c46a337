"""Errors that `test_stateful.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the state of another branch is kept",
        "SegmentStates.keep",
        "state.after(row, place + 1)",
        "state.after(0, place + 1)",
        "test_stateful.py::test_states_after_a_kept_path_are_those_of_its_tokens_read_in_order",
    ),
    Mutation(
        "a kept path's state forgets what came before",
        "SegmentStates.keep",
        "self.committed(number, 1)",
        "ModuleState()",
        "test_stateful.py::test_states_after_a_kept_path_are_those_of_its_tokens_read_in_order",
    ),
    Mutation(
        "modules write into the committed state",
        "ModuleState.of_sequences",
        ".expand(count, *tensor.shape[1:]).clone()",
        ".expand(count, *tensor.shape[1:])",
        "test_stateful.py::test_states_after_a_kept_path_are_those_of_its_tokens_read_in_order",
    ),
    Mutation(
        "all branches are one sequence",
        "_ModuleCall",
        "value[0, nodes]",
        "value[0, nodes.sort(dim=1).values.flip(0)]",
        "test_stateful.py::test_states_after_a_kept_path_are_those_of_its_tokens_read_in_order",
    ),
    Mutation(
        "states are read from another request's rows",
        "StatefulModules.__call__",
        "start += len(first)",
        "start += 0",
        "test_stateful.py::test_requests_that_share_passes_and_come_after_a_cancelled_one_answer_as_alone",
    ),
    Mutation(
        "a known prompt begins without a state",
        "PrefixReader.recall",
        "self.cache.states = dict(prefix[-1].states)",
        "self.cache.states = dict()",
        "test_stateful.py::test_every_method_decodes_the_ids_of_plain_decoding_behind_a_known_prefix",
    ),
    Mutation(
        "a prompt's chunks end where no state can be kept",
        "read_prompt",
        "                end -= past\n",
        "                pass\n",
        "test_stateful.py::test_every_method_decodes_the_ids_of_plain_decoding_behind_a_known_prefix",
    ),
)

"""Errors that `test_engines.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("tokens that came with the reading count as decoded", "Answer.row", "later = self.new_tokens - self.first", "later = self.new_tokens - 1", "test_engines.py::test_tokens_that_came_with_the_reading_are_not_decoded"),
    Mutation("the piece of the reading counts as a step", "answer_of_pieces", "steps = len(pieces) - 1", "steps = len(pieces)", "test_engines.py::test_tokens_that_came_with_the_reading_are_not_decoded"),
    Mutation("a server may keep a part of the prompt", "llama_server:decode", 'if times["prompt_n"] != len(ids):', "if False:", "test_engines.py::test_a_failed_answer_is_a_row_with_its_reason"),
    Mutation("a server warms up on the prompt", "llama_server:warm_up", "range(100, 100 + WARM_UP)", "range(60, 60 + WARM_UP)", "test_engines.py::test_each_prompt_gets_a_server_of_its_own"),
    Mutation("a kept server has room for a short prompt only", "llama_server:methods_of", "started(setup, setup.longest)", "started(setup, 0)", "test_engines.py::test_a_kept_server_has_room_for_the_longest_prompt_and_its_rows_say_so"),
    Mutation("a server's steps include its accepted drafts", "llama_server:decode", "steps=new_tokens - 1 - accepted", "steps=new_tokens - 1", "test_engines.py::test_each_prompt_gets_a_server_of_its_own"),
    Mutation("a server's own words are lost", "llama_server:post", "with status {error.code}: {said}", "", "test_engines.py::test_a_failed_answer_is_a_row_with_its_reason"),
    Mutation("ids of a text pass for the server's", "llama_server:decode", "encoded_again=encoded_again", "encoded_again=False", "test_engines.py::test_a_server_that_returns_only_text_gets_its_ids_from_the_text"),
    Mutation("transformers stops at end tokens", "transformers_generate:methods_of", "    model.generation_config.eos_token_id = None     # answers go on behind an end token\n", "    model.generation_config.eos_token_id = list(range(300))\n", "test_engines.py::test_longgraft_and_transformers_continue_the_same_ids"),
    Mutation("OpenVINO keeps prefixes", "openvino:methods_of", "enable_prefix_caching = False", "enable_prefix_caching = True", "test_engines.py::test_openvino_keeps_no_prefix_and_counts_passes"),
    Mutation("the fifth bit of a code is lost", "q8_of_q5", "(fifth << 4)", "(fifth << 3)", "test_engines.py::test_a_widened_file_has_the_same_numbers_and_metadata_without_q5"),
    Mutation("answers agree behind their first difference", "table:common", "if one != other", "if one == other", "test_engines.py::test_a_table_has_medians_over_prompts_and_the_tokens_that_agree_with_plain_decoding"),
    Mutation("an answer that is cut short agrees wholly", "agreement", "count == len(plain[prompt_of(row)])", 'count == len(row["ids"])', "test_engines.py::test_a_shorter_answer_does_not_agree_in_all_tokens"),
    Mutation("a table mixes processors", "table:read_rows", '("processor", "threads")', '("threads",)', "test_engines.py::test_a_table_refuses_rows_of_two_processors"),
    Mutation("a sweep's later prompts are taken, too", "prompts_of", "found[:count or None]", "found", "test_engines.py::test_prompts_are_those_of_the_sweep"),
    Mutation("commands load torch", "provenance:", "if TYPE_CHECKING:\n", "if True:\n", "test_engines.py::test_commands_need_neither_torch_nor_transformers"),
)

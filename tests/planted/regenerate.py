"""Errors that `test_regenerate.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("rows of a batch do not move on", "_Sampler.step", "batch.positions + 1", "batch.positions", "test_regenerate.py::test_greedy_rows_of_a_batch_equal_the_answers_of_transformers"),
    Mutation("finished rows stay in the cache, others leave it", "_GrowingLayer.keep", "self.keys[rows, :, first:]", "self.keys[:len(rows), :, first:]", "test_regenerate.py::test_greedy_rows_of_a_batch_equal_the_answers_of_transformers"),
    Mutation("rows that join stand to the left", "_GrowingLayer.join", "F.pad(block, (0, 0, width - block.shape[-2], 0))", "F.pad(block, (0, 0, 0, width - block.shape[-2]))", "test_regenerate.py::test_greedy_rows_of_a_batch_equal_the_answers_of_transformers"),
    Mutation("every row draws the same number", "_Sampler.begin", "default_rng(list(turn.seed))", "default_rng(0)", "test_regenerate.py::test_a_row_is_drawn_by_its_own_seed_and_follows_the_models_distribution"),
    Mutation("half a chat stays in the file", "Regenerator._resume", "            file.truncate(size)\n", "            pass\n", "test_regenerate.py::test_an_interrupted_run_samples_the_chats_that_are_missing"),
    Mutation("chats that are there are sampled again", "Regenerator.run", "if chat.index not in self.done)", ")", "test_regenerate.py::test_an_interrupted_run_samples_the_chats_that_are_missing"),
    Mutation("an invented request has no seed", "Regenerator._next", "3, chat.index, len(chat.messages))", "3, chat.index, len(chat.messages) - 1)", "test_regenerate.py::test_the_command_writes_chats_that_training_reads"),
    Mutation("evaluation rows are asked", "Regenerator._judge", 'chat.source != "documents" and any(', "False and any(", "test_regenerate.py::test_loops_repeats_and_excluded_requests_are_dropped_and_counted"),
    Mutation("a text that was cut off ends", "corpus:encode", "text_end = end if document.ended else []", "text_end = end", "test_regenerate.py::test_a_continuation_is_written_as_text_after_its_excerpt"),
    Mutation("a text is continued as an answer to a chat", "Regenerator._prompt", "if chat.begun is not None:", "if False:", "test_regenerate.py::test_a_continuation_is_written_as_text_after_its_excerpt"),
    Mutation("an answer that was cut off ends", "ChatEncoder.documents", "chat.ended or", "True or", "test_regenerate.py::test_an_answer_that_was_cut_off_is_learnt_without_an_end"),
    Mutation("special tokens of an answer are lost", "Regenerator._text", "skip_special_tokens=not turn.answer", "skip_special_tokens=True", "test_regenerate.py::test_the_marks_of_a_thought_are_kept_where_they_are_special_tokens"),
    Mutation("the end of an answer is text", "Regenerator._text", "if token not in self.session.eos", "", "test_regenerate.py::test_the_marks_of_a_thought_are_kept_where_they_are_special_tokens"),
    Mutation("a continuation loses its first space", "Regenerator._text", "if whole.startswith(before):", "if False:", "test_regenerate.py::test_a_continuation_keeps_the_space_before_it"),
    Mutation("a file gets answers of other settings", "Regenerator._resume", "if changed:", "if False:", "test_regenerate.py::test_a_file_of_other_settings_is_not_gone_on_with"),
    Mutation("a file gets excerpts of other lengths", "Regenerator.__init__", '"excerpt": sampling.longest', '"excerpt": 0', "test_regenerate.py::test_a_file_of_other_settings_is_not_gone_on_with"),
    Mutation("a file gets answers of other models", "Regenerator.__init__", '"model": session.target.name', '"model": ""', "test_regenerate.py::test_a_file_of_other_settings_is_not_gone_on_with"),
    Mutation("every scheduled turn draws the same numbers", "scheduled_sampling:_seed", "SeedSequence(list(numbers))", "SeedSequence(0)", "test_regenerate.py::test_a_row_is_drawn_by_its_own_seed_and_follows_the_models_distribution"),
    Mutation("an end token is a scheduled turn's last token", "scheduled_sampling:sample", "one.tokens[:-1] if ended", "one.tokens if ended", "test_regenerate.py::test_greedy_rows_of_a_batch_equal_the_answers_of_transformers"),
    Mutation("a turn goes beyond the model's positions", "Regenerator._next", "min(most, room)", "most", "test_regenerate.py::test_a_chat_ends_before_a_turn_that_the_model_has_no_positions_for"),
    Mutation("a chat that stops to fit loses its first answer", "regenerate:_end_before", '"" if chat.messages else "too long"', '"too long"', "test_regenerate.py::test_a_chat_ends_before_a_turn_that_the_model_has_no_positions_for"),
    Mutation("excerpts ignore their limit", "document_tasks:excerpt_of", "np.log(longest)", "np.log(LONGEST)", "test_regenerate.py::test_a_continuation_is_written_as_text_after_its_excerpt"),
    Mutation("given chats get an invented request", "requests_of", " and kind != \"given\"", "", "test_regenerate.py::test_only_requests_that_a_model_invents_or_gets_of_documents_have_a_second_one"),
    Mutation("given chats come in the order of their file", "requests_of", ".permutation(len(given))", ".permutation(1) if False else range(len(given))", "test_regenerate.py::test_each_given_chat_is_answered_once_in_an_order_of_the_seed"),
    Mutation("sources end with the given chats", "requests_of", "if not kinds:", "if kinds:", "test_regenerate.py::test_kinds_of_sources_alternate_and_given_chats_run_out"),
    Mutation("a resumed sampling repeats requests", "Regenerator._resume", "        self.seen = {_digest(document.turns[0][\"content\"]) for document in read_documents([out]) if document.turns}\n", "", "test_regenerate.py::test_a_resumed_run_drops_requests_that_it_has_answered"),
    Mutation("prompts of any length are read together", "batched_sampling:sample", "count = max(1, min(free, PROMPT_TOKENS // len(waiting[-1].prompt)))", "count = free", "test_regenerate.py::test_long_prompts_are_read_in_several_passes"),
)

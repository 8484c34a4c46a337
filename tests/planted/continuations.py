"""Errors that `test_continuations.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("ranks read an array that was freed", "continuations:_at", "array.ctypes.data_as(ctypes.c_void_p)", "ctypes.c_void_p(array.ctypes.data)", "test_continuations.py::test_compiled_continuations_give_the_same_numbers"),
    Mutation("passages are counted as the text's own", "continuations.cpp", "passages.count(end, passage[i])", "own.count(end, passage[i])", "test_continuations.py::test_compiled_continuations_give_the_same_numbers"),
    Mutation("a token of a passage and of the text is there twice", "continuations.cpp", "if (at == before) out.push_back(child);", "if (true) out.push_back(child);", "test_continuations.py::test_compiled_continuations_give_the_same_numbers"),
    Mutation("a passage takes what the text knows better", "continuations.cpp", "i > longest; --i", "i >= 0; --i", "test_continuations.py::test_a_passage_with_a_longer_context_is_trusted_as_often_as_it_was_right"),
    Mutation("a passage is always believed", "continuations.cpp", "score(known.bin, known.overall, hit)", "score(known.bin, known.overall, true)", "test_continuations.py::test_a_passage_with_a_longer_context_is_trusted_as_often_as_it_was_right"),
    Mutation("a root is in the text twice", "PartialMatching.observe", "kept[1:] if self.text else kept", "kept", "test_continuations.py::test_a_root_is_in_the_text_before_it_is_in_the_cache"),
    Mutation("a restored text forgets the predictions", "PartialMatching._count", "*self._before, ", "", "test_continuations.py::test_a_memory_rewound_to_the_mark_of_another_predicts_the_same"),
    Mutation("a restored answer counts as prompt", "PartialMatching._count", "            self._counts.answer()\n", "", "test_continuations.py::test_a_memory_rewound_to_the_mark_of_another_predicts_the_same"),
    Mutation("a compiled text forgets its oldest continuation too early", "continuations.cpp", "c->size == KEPT", "c->size == KEPT - 1", "test_continuations.py::test_compiled_continuations_give_the_same_numbers"),
    Mutation("contexts reach across the end of a text", "continuations.cpp", "            end = {};\n", "", "test_continuations.py::test_no_context_reaches_across_the_end_of_a_text"),
    Mutation("a shorter context has a longer one's continuations again", "continuations.cpp", "if (!unused(one.token)) continue;", "", "test_continuations.py::test_the_longest_context_comes_first_and_shorter_ones_add_further_tokens"),
    Mutation("an answer's own rate is not learnt", "continuations.cpp", "return rate * had / (rate * had + (1.0 - rate) * expected)", "return rate", "test_continuations.py::test_an_answer_that_repeats_less_than_its_prompt_is_soon_trusted_less"),
    Mutation("a long copy is believed as a short one", "continuations.cpp", "std::min(ran_bits, RUNS - 1)", "std::min(ran_bits, 1)", "test_continuations.py::test_a_long_copy_is_trusted_more_than_a_short_one"),
)

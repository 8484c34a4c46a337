"""Errors that `test_continuations.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "ranks read an array that was freed",
        "continuations:_at",
        "array.ctypes.data_as(ctypes.c_void_p)",
        "ctypes.c_void_p(array.ctypes.data)",
        "test_continuations.py::test_compiled_continuations_give_the_same_numbers",
    ),
    Mutation(
        "passages are counted as the text's own",
        "continuations.cpp",
        "passages.count(end, passage[i])",
        "own.count(end, passage[i])",
        "test_continuations.py::test_compiled_continuations_give_the_same_numbers",
    ),
    Mutation(
        "a passage takes what the text knows better",
        "continuations.cpp",
        "i > longest && reach == longest; --i",
        "i >= 0 && reach == longest; --i",
        "test_continuations.py::test_a_passage_with_a_longer_context_is_trusted_as_often_as_it_was_right",
    ),
    Mutation(
        "a passage is always believed",
        "continuations.cpp",
        "rate = {rate.hits + hit, rate.trials + 1.0}",
        "rate = {rate.hits + (hit || level.rate >= PASSAGES), rate.trials + 1.0}",
        "test_continuations.py::test_a_passage_with_a_longer_context_is_trusted_as_often_as_it_was_right",
    ),
    Mutation(
        "a root is in the text twice",
        "PartialMatching.observe",
        "kept[1:] if self.text else kept",
        "kept",
        "test_continuations.py::test_a_root_is_in_the_text_before_it_is_in_the_cache",
    ),
    Mutation(
        "a restored text forgets the predictions",
        "PartialMatching._count",
        "*self._before, ",
        "",
        "test_continuations.py::test_a_memory_rewound_to_the_mark_of_another_predicts_the_same",
    ),
    Mutation(
        "a restored answer counts as prompt",
        "PartialMatching._count",
        "            self._counts.answer()\n",
        "",
        "test_continuations.py::test_a_memory_rewound_to_the_mark_of_another_predicts_the_same",
    ),
    Mutation(
        "a compiled text forgets its oldest continuation too early",
        "continuations.cpp",
        "seen.size() == KEPT",
        "seen.size() == KEPT - 1",
        "test_continuations.py::test_compiled_continuations_give_the_same_numbers",
    ),
    Mutation(
        "contexts reach across the end of a text",
        "continuations.cpp",
        "            end = {};\n",
        "",
        "test_continuations.py::test_no_context_reaches_across_the_end_of_a_text",
    ),
    Mutation(
        "a shorter context has a longer one's continuations again",
        "continuations.cpp",
        "if (!unused(seen.token)) continue;",
        "",
        "test_continuations.py::test_the_longest_context_comes_first_and_shorter_ones_add_further_tokens",
    ),
    Mutation(
        "an answer is trusted as its prompt",
        "continuations.cpp",
        "own = rates[i].tempered()",
        "own = rates[i]",
        "test_continuations.py::test_an_answer_that_repeats_less_than_its_prompt_is_soon_trusted_less",
    ),
    Mutation(
        "an answer forgets what earlier ones taught",
        "continuations.cpp",
        "taught.push_back(before ? before[i] : rates[i])",
        "taught.push_back(rates[i])",
        "test_continuations.py::test_an_answer_begins_with_what_earlier_answers_taught",
    ),
    Mutation(
        "a memory keeps no rates",
        "PartialMatching.reset",
        "self._rates = self._counts.rates",
        "pass",
        "test_continuations.py::test_a_memory_keeps_rates_of_answers_and_no_tokens",
    ),
)

"""Errors that `test_memories.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the token after a chunk is the chunk's last",
        "read_prompt",
        "int(prompt[end])",
        "int(prompt[end - 1])",
        "test_memories.py::test_prompt_rows_of_a_drafter_do_not_depend_on_chunk_size",
    ),
    Mutation(
        "the token after the last chunk but one is drawn",
        "read_prompt",
        "if end < len(prompt):",
        "if end + 1 < len(prompt):",
        "test_memories.py::test_prompt_rows_of_a_drafter_do_not_depend_on_chunk_size",
    ),
    Mutation(
        "chunks overlap by one",
        "read_prompt",
        "prompt[start:end]",
        "prompt[start:end + 1]",
        "test_memories.py::test_prompt_rows_of_a_drafter_do_not_depend_on_chunk_size",
    ),
    Mutation(
        "a rewound history keeps one token",
        "TokenHistory.rewind",
        "self._size = mark",
        "self._size = mark + 1",
        "test_memories.py::test_a_rewound_history_is_as_long_as_at_its_mark",
    ),
    Mutation(
        "a rewound drafter keeps one row",
        "DraftCache.rewind",
        "self.cache.crop(length)",
        "self.cache.crop(min(length + 1, self.cache.length))",
        "test_memories.py::test_marks_include_observations_that_wait_to_be_fed",
    ),
    Mutation(
        "a rewound drafter forgets waiting tokens",
        "DraftCache.rewind",
        "length, self._waiting = mark",
        "(length, _), self._waiting = mark, ()",
        "test_memories.py::test_marks_include_observations_that_wait_to_be_fed",
    ),
    Mutation(
        "a drafter forgets waiting tokens when more come",
        "DraftCache.observe",
        "self._waiting += (",
        "self._waiting = (",
        "test_memories.py::test_a_drafter_is_fed_a_prompt_at_once_and_the_answer_on_demand",
    ),
    Mutation(
        "a union of wants drops the final states",
        "Wants.__or__",
        "self.final or other.final",
        "self.final",
        "test_memories.py::test_two_proposers_with_different_layers_share_a_pass",
    ),
    Mutation(
        "a union of wants takes the first top-k",
        "Wants.__or__",
        "max(self.topk, other.topk)",
        "self.topk or other.topk",
        "test_memories.py::test_two_proposers_with_different_layers_share_a_pass",
    ),
    Mutation(
        "a cache that grows forgets its prefix",
        "KVCache.reserve",
        "        self._fill(state)\n",
        "",
        "test_memories.py::test_a_cache_keeps_its_prefix_when_it_grows_and_counts_skipped_tokens_in_its_position",
    ),
)

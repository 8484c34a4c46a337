"""Errors that `test_small_model.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a small model keeps its guesses when it rewinds",
        "DraftModelCache.mark",
        "return self.cache.length - self._chain, self._waiting",
        "return self.cache.length, self._waiting",
        "test_small_model.py::test_a_small_model_rewinds_also_in_the_middle_of_a_chain",
    ),
    Mutation(
        "a small model keeps its guesses when tokens are committed",
        "DraftModelCache.observe",
        "        self.begin()\n",
        "",
        "test_small_model.py::test_committed_tokens_replace_the_scratch_chain",
    ),
)

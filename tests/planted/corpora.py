"""Errors that `test_corpora.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a default corpus is read once and for all",
        "Session.open",
        "self.default_corpus if requested.corpus is None else requested.corpus",
        "requested.corpus",
        "test_corpora.py::test_a_session_or_a_request_names_a_corpus",
    ),
    Mutation(
        "plain decoding is asked to read a corpus",
        "live_page:_answer",
        ", corpus=None",
        "",
        "test_corpora.py::test_an_answer_that_read_a_corpus_is_compared_with_plain_decoding_that_reads_none",
    ),
    Mutation(
        "two processes that add to a corpus lose files",
        "corpora:changing",
        'FileLock(path.with_name(f".{path.name}.lock"))',
        '__import__("contextlib").nullcontext()',
        "test_corpora.py::test_files_that_threads_add_at_once_are_all_kept",
    ),
    Mutation(
        "a text counted anew forgets its corpora",
        "PartialMatching._count",
        "        self._read()\n",
        "",
        "test_corpora.py::test_rewound_memory_keeps_its_corpora",
    ),
    Mutation(
        "a damaged corpus has tokens",
        "corpora:tokens_in",
        "return None",
        "return 0",
        "test_corpora.py::test_files_are_added_kept_listed_and_removed",
    ),
    Mutation(
        "a corpus outlives its request",
        "PartialMatching._clear",
        "self._corpora: list[Corpus] = []",
        "self._corpora: list[Corpus] = getattr(self, '_corpora', [])",
        "test_corpora.py::test_a_corpus_is_read_if_it_has_a_longer_context_than_the_text",
    ),
    Mutation(
        "known contexts are read again from a corpus",
        "PartialMatching._read",
        "if order > longest",
        "if order >= longest",
        "test_corpora.py::test_a_corpus_is_searched_for_longer_contexts_than_the_text_has",
    ),
    Mutation(
        "a request's corpus is not observed",
        "Engine.open",
        "memory.observe_corpus(corpus)",
        "pass",
        "test_corpora.py::test_answers_with_a_corpus_equal_plain_decoding_in_fewer_steps",
    ),
    Mutation(
        "a corpus may hold any ids",
        "corpora:open_corpus",
        "int(corpus.tokens.max())",
        "0",
        "test_corpora.py::test_a_session_or_a_request_names_a_corpus",
    ),
    Mutation(
        "a corpus stays as it was opened",
        "Session.corpus",
        " or opened_at != changed",
        "",
        "test_corpora.py::test_a_session_or_a_request_names_a_corpus",
    ),
    Mutation(
        "a text's end is sorted as its first token",
        "Corpus.build",
        "rank[done:] + 1",
        "rank[done:]",
        "test_corpora.py::test_places_are_sorted_by_more_tokens_than_a_lookup_reads",
    ),
    Mutation(
        "places are sorted by 16 tokens",
        "Corpus.build",
        "SORTED.bit_length() - 1",
        "SORTED.bit_length() - 2",
        "test_corpora.py::test_places_are_sorted_by_more_tokens_than_a_lookup_reads",
    ),
)

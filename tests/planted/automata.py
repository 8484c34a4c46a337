"""Errors that `test_automata.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a string's first end is its clone's last",
        "SuffixAutomaton._split",
        "self._end[target], link[target])",
        "len(self.text), link[target])",
        "test_automata.py::test_an_automatons_drafts_are_the_official_ones",
    ),
    Mutation(
        "a chain of any length is of the longest match",
        "SuffixAutomaton.after",
        "self._end[following] < least",
        "False",
        "test_automata.py::test_an_automatons_drafts_are_the_official_ones",
    ),
    Mutation(
        "a rewound automaton keeps a link",
        "SuffixAutomaton._split",
        "undo.append((target, LINK, link[target]))",
        "pass",
        "test_automata.py::test_a_rewound_automaton_is_the_one_that_never_grew",
    ),
    Mutation(
        "a rewound automaton keeps changed transitions",
        "SuffixAutomaton._split",
        "undo.append((state, token, target))",
        "pass",
        "test_automata.py::test_a_rewound_automaton_is_the_one_that_never_grew",
    ),
    Mutation(
        "the second proposer is always asked",
        "Either.propose",
        "len(tree) > 1 and self.worth",
        "self.second.propose(ask) and self.worth",
        "test_automata.py::test_either_asks_its_second_proposer_only_if_the_first_matched_too_little",
    ),
    Mutation(
        "a chain must be worth more than the least",
        "Either.propose",
        "self.worth(tree) >= self.least",
        "self.worth(tree) > self.least",
        "test_automata.py::test_either_asks_its_second_proposer_only_if_the_first_matched_too_little",
    ),
    Mutation(
        "the text's own end is not counted",
        "occurrences",
        "np.flatnonzero(text == context[-1]) + 1",
        "np.flatnonzero(text[:-1] == context[-1]) + 1",
        "test_automata.py::test_suffix_trees_count_as_a_plain_search_does",
    ),
    Mutation(
        "a text's beginning matches its end",
        "occurrences",
        "== context[-1 - SIFTED :: -1]) & (at >= 0)",
        "== context[-1 - SIFTED::-1])",
        "test_automata.py::test_suffix_trees_count_as_a_plain_search_does",
    ),
    Mutation(
        "the oldest of ties comes first",
        "_children",
        "np.lexsort((newest, -counts))",
        "np.lexsort((-newest, -counts))",
        "test_automata.py::test_newer_successors_come_first_when_counts_tie",
    ),
    Mutation(
        "answers run into one another",
        "PastAnswers._end",
        "self._tokens.extend(np.array([BETWEEN]))",
        "pass",
        "test_automata.py::test_earlier_answers_are_drafted_from_and_prompts_are_not",
    ),
    Mutation(
        "every prompt is a separator",
        "PastAnswers._end",
        "self._tokens.whole(0)[-2] != BETWEEN",
        "True",
        "test_automata.py::test_the_oldest_answers_are_forgotten_first",
    ),
    Mutation(
        "a run of continuations ends with its depth",
        "RestRetriever._tree",
        "ends[ends == 0] = len(rows)",
        "pass",
        "test_automata.py::test_a_datastore_finds_what_a_plain_search_finds",
    ),
    Mutation(
        "deeper prefixes come first in ties",
        "_most_frequent",
        "level[: most - len(above)]",
        "level[len(above) - most:]",
        "test_automata.py::test_a_datastore_finds_what_a_plain_search_finds",
    ),
)

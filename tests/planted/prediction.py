"""Errors that `test_prediction.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a prediction continues with the prompt",
        "TokenHistory.observe_prediction",
        "np.append(tokens.numpy(), BETWEEN)",
        "tokens.numpy()",
        "test_prediction.py::test_nothing_is_copied_across_the_end_of_a_prediction",
    ),
    Mutation(
        "all predictions end with the same token",
        "SuffixAutomaton.observe_prediction",
        "self.extend([LINK - 1 - len(self.text)])",
        "pass",
        "test_prediction.py::test_nothing_is_copied_across_the_end_of_a_prediction",
    ),
    Mutation(
        "lasting rows keep predictions",
        "AdjacencyMemory._forget_predictions",
        "self.matrix.take_out(tokens, rows)",
        "pass",
        "test_prediction.py::test_lasting_rows_keep_nothing_of_a_prediction",
    ),
    Mutation(
        "a restored memory does not know its predictions",
        "AdjacencyMemory.rewind",
        "rows, self._predictions = mark",
        "rows, _ = mark",
        "test_prediction.py::test_lasting_rows_keep_nothing_of_a_prediction",
    ),
    Mutation(
        "an automaton drops a prediction's first token",
        "SuffixAutomaton.observe_prediction",
        "self.extend(tokens.tolist())",
        "self.extend(tokens[1:].tolist())",
        "test_prediction.py::test_a_prediction_is_copied_from_its_first_token_on",
    ),
    Mutation(
        "a history drops a prediction's first token",
        "TokenHistory.observe_prediction",
        "np.append(tokens.numpy(), BETWEEN)",
        "np.append(tokens.numpy()[1:], BETWEEN)",
        "test_prediction.py::test_a_prediction_is_copied_from_its_first_token_on",
    ),
    Mutation(
        "counts drop a prediction's first token",
        "PartialMatching.observe_prediction",
        "self._before[-len(tokens) - 1 :]",
        "self._before[-len(tokens):]",
        "test_prediction.py::test_a_prediction_is_copied_from_its_first_token_on",
    ),
    Mutation(
        "n-grams drop a prediction's first token",
        "Trajectories.observe_prediction",
        "range(self.ngram, len(text) + 1)",
        "range(self.ngram + 1, len(text) + 1)",
        "test_prediction.py::test_a_prediction_is_copied_from_its_first_token_on",
    ),
    Mutation(
        "half a character in a prediction reaches the tokenizer",
        "Encoder.bare",
        "            _whole_characters(text, what)\n",
        "",
        "test_prediction.py::test_an_invalid_prediction_is_refused_with_the_reason",
    ),
)

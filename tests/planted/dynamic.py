"""Errors that `test_dynamic.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "entropy is taken of the first candidate instead of the best",
        "Level.entropy",
        "best = self.scores.argmax(0, keepdim=True)",
        "best = 0 * self.scores.argmax(0, keepdim=True)",
        "test_dynamic.py::test_the_entropy_is_that_of_the_best_candidates_distribution",
    ),
    Mutation(
        "a beam's mass is that of its best node",
        "mass",
        "min(beam, level.scores.numel())",
        "1",
        "test_dynamic.py::test_the_mass_of_a_beam_is_a_sum_and_not_a_mean",
    ),
    Mutation(
        "improbable nodes fill TALON's layers",
        "TalonDrafter._next",
        "scores[0] + math.log(self.share)",
        "scores[-1]",
        "test_dynamic.py::test_talons_layers_contain_only_probable_enough_nodes",
    ),
)

"""Errors that `test_sampling.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the noise ignores the position",
        "Sampled.keys",
        "mix(positions * GOLDEN + ",
        "mix(0 * positions + ",
        "test_sampling.py::test_the_noise_equals_that_computed_with_plain_integers",
    ),
    Mutation(
        "top-p drops the token that crosses its border",
        "nucleus",
        "mass.cumsum(-1).add_(below).gt(",
        "mass.cumsum(-1).add_(below).sub_(mass).gt(",
        "test_sampling.py::test_top_p_keeps_the_tokens_that_a_sort_finds",
    ),
    Mutation(
        "the border of top-p keeps only its last digit",
        "nucleus",
        "border += digit",
        "border = digit",
        "test_sampling.py::test_top_p_keeps_the_tokens_that_a_sort_finds",
    ),
    Mutation(
        "a CPU drops the token that crosses the border",
        "nucleus_by_sort",
        "tokens[up_to > ",
        "tokens[up_to - mass > ",
        "test_sampling.py::test_top_p_keeps_the_tokens_that_a_sort_finds",
    ),
    Mutation(
        "a CPU forgets the mass of improbable tokens",
        "nucleus_by_sort",
        ".add_(total - mass.sum())",
        "",
        "test_sampling.py::test_top_p_keeps_the_tokens_that_a_sort_finds",
    ),
    Mutation(
        "a CPU looks at too few tokens",
        "cpu_draws.py",
        "LARGEST_NOISE = 37.0",
        "LARGEST_NOISE = 7.0",
        "test_sampling.py::test_a_cpu_draws_the_tokens_that_other_devices_draw",
    ),
    Mutation(
        "a CPU takes the chance of another token",
        "winner",
        ".sub_(noise)",
        "",
        "test_sampling.py::test_a_cpu_draws_the_tokens_that_other_devices_draw",
    ),
    Mutation(
        "too many equal logits stay where a float32 rounds",
        "largest_dropped_mass",
        "if bits % 2:",
        "if False:",
        "test_sampling.py::test_a_dropped_mass_is_compared_as_a_float32",
    ),
    Mutation(
        "top-k keeps one more",
        "Sampled.warp",
        "scores.topk(self.top_k)",
        "scores.topk(self.top_k + 1)",
        "test_sampling.py::test_warped_logits_equal_those_of_transformers",
    ),
    Mutation(
        "min-p is absolute",
        "Sampled.warp",
        "self.min_p * probabilities.amax(-1, keepdim=True)",
        "self.min_p",
        "test_sampling.py::test_warped_logits_equal_those_of_transformers",
    ),
    Mutation(
        "the walk stops at five",
        "walk",
        "if child is None or not goes_on():",
        "if child is None or len(path) > 5 or not goes_on():",
        "test_sampling.py::test_a_walk_goes_as_far_as_the_draws_agree",
    ),
    Mutation(
        "min-p may be 1",
        "answer_settings:MinP",
        "Lt(1)",
        "Le(1)",
        "test_sampling.py::test_invalid_sampling_settings_are_refused",
    ),
    Mutation(
        "numbers of NumPy stay",
        "Checked.__post_init__",
        "object.__setattr__(self, name, number)",
        "pass",
        "test_sampling.py::test_numbers_of_other_libraries_are_accepted",
    ),
)

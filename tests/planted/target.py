"""Errors that `test_target.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a renamed cache is not found",
        "module_forms:",
        'CACHES = ("cache", ',
        "CACHES = (",
        "test_target.py::test_a_cache_is_passed_by_the_name_that_a_forward_has",
    ),
    Mutation(
        "YaRN lengthens nothing",
        "Target.max_positions",
        "most_positions(self.config)",
        "self.config.max_position_embeddings",
        "test_target.py::test_a_target_takes_the_lengthened_context",
    ),
    Mutation(
        "Llama 3's factor always lengthens",
        "lengthened",
        'if kind == "llama3" and stated != original:',
        "if False:",
        "test_target.py::test_a_rotary_scaling_lengthens_the_context",
    ),
    Mutation(
        "Gemma 3's context is lengthened twice",
        "most_positions",
        "if text.model_type in LENGTHENED",
        "if not text.model_type",
        "test_target.py::test_a_rotary_scaling_lengthens_the_context",
    ),
    Mutation(
        "a mask that hides everything is read as none",
        "_window_of_layer",
        "if window == NOTHING:",
        "if window == NOTHING + 1:",
        "test_target.py::test_a_mask_that_hides_everything_is_refused_only_in_a_layer_that_uses_it",
    ),
)

"""Errors that `test_byte_heads.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "bytes are rounded by scales that are not stored",
        "byte_weights:in_bytes",
        "rounded(weight).scales.half()",
        "rounded(2 * weight).scales.half()",
        "test_byte_heads.py::test_rounding_a_loaded_head_again_changes_nothing",
    ),
    Mutation(
        "bytes are taken for floats",
        "files:read_tensors",
        "return in_floats(tensors)",
        "return tensors",
        "test_byte_heads.py::test_a_loaded_weight_is_within_half_a_step_of_the_saved_one",
    ),
    Mutation(
        "a head in bytes is exported in float32",
        "checkpoint:load_head",
        'if dtype is None and config.get("quantization_config"):',
        "if False:",
        "test_byte_heads.py::test_either_form_is_exported_to_every_layout",
    ),
    Mutation(
        "scales of another number are spread",
        "byte_weights:in_floats",
        "scales.shape != wanted",
        "False",
        "test_byte_heads.py::test_bytes_without_their_scales_are_refused",
    ),
)

"""Errors that `test_architectures.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("experts' gates and ups change places", "gguf_names:", '("gate", "up"), "down_proj"', '("up", "gate"), "down_proj"', "test_architectures.py::test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model"),
    Mutation("sizes of experts are those of one known model", "restore_entries", "if value is not None:", "if False:", "test_architectures.py::test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model"),
)

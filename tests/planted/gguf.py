"""Errors that `test_gguf.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("a file that changed keeps its hash", "sha256_of", "status.st_size, status.st_mtime_ns", "0, 0", "test_gguf.py::test_a_file_that_changed_is_another_model"),
    Mutation("bfloat16 and float32 share a folder", "dequantized", "-{str(dtype)[6:]}", "-kept", "test_gguf.py::test_a_file_is_dequantised_once_per_dtype_wherever_it_is"),
    Mutation("the end of a turn is no end", "gguf_tokenizer:END_KEYS", '("eos", "eot", "eom")', '("eos", "eom")', "test_gguf.py::test_tokenizer_template_and_every_end_token_come_from_the_file"),
    Mutation("tokens named as ends are no ends", "end_ids", "if token in names", "if token in keys", "test_gguf.py::test_ends_of_a_file_follow_the_names_of_its_tokens"),
    Mutation("scaled positions are dropped in silence", "gguf_header:_scaling", 'if kind == "none" or', 'if kind or', "test_gguf.py::test_a_file_is_refused"),
    Mutation("Llama 3's scaling is dropped", "restore_rope", "    if not tensors:", "    if True:", "test_gguf.py::test_a_file_loads_as_the_model_it_was_written_from_bit_for_bit test_gguf.py::test_a_file_is_refused"),
    Mutation("a factor without a type is dropped", "gguf_header:_scaling", '.type", "linear"', '.type", "none"', "test_gguf.py::test_a_file_is_refused"),
    Mutation("the older key of a factor is dropped", "gguf_header:_scaling", 'metadata.get(f"{arch}.rope.scale_linear", 1.0)', "1.0", "test_gguf.py::test_a_file_is_refused"),
    Mutation("a factor of one is refused", "gguf_header:_scaling", '(kind == "linear" and unscaled)', "False", "test_gguf.py::test_positions_that_are_not_scaled_are_read"),
    Mutation("special tokens with the id -1 are looked up", "without_absent_tokens", "if not absent:", "if True:", "test_gguf.py::test_special_tokens_that_a_file_does_not_have_are_left_out"),
    Mutation("a big-endian file is damaged", "gguf_header:_check_version", "if version and version % (1 << 16) == 0:", "if False:", "test_gguf.py::test_a_file_is_refused"),
    Mutation("a file of a future version is damaged", "gguf_header:_check_version", "if version not in VERSIONS:", "if False:", "test_gguf.py::test_a_file_is_refused"),
    Mutation("a file is known by its suffix alone", "gguf_of", "if is_gguf(path):", "if False:", "test_gguf.py::test_a_file_is_known_by_its_content_whatever_its_name"),
    Mutation("a file of another format is taken for a hub id", "gguf_of", "if path.is_file():", "if False:", "test_gguf.py::test_a_file_of_another_format_is_refused"),
    Mutation("a file's suffix in capitals is not known", "gguf_of", "if path.suffix.lower() == \".gguf\":", "if path.suffix == \".gguf\":", "test_gguf.py::test_a_name_of_a_file_may_be_in_capitals"),
    Mutation("a repository's name in capitals is not known", "gguf_of", "model.lower().endswith", "model.endswith", "test_gguf.py::test_a_repository_of_files_is_refused_with_the_ways_to_name_one"),
    Mutation("blocks of the embedding alone count", "TensorTable.in_blocks", " if tensor.name != EMBEDDING", "", "test_gguf.py::test_a_file_whose_embedding_alone_is_in_blocks_counts_as_floats"),
)

"""Errors that `test_byte_rows.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("codes are cut off instead of rounded", "byte_rows:packed", ".nan_to_num(0).round()", ".nan_to_num(0)", "test_byte_rows.py::test_numbers_are_read_back_within_half_a_step_of_their_group"),
    Mutation("scales of odd heads are read at another place", "byte_rows:numbers_of", "groups = -(-rows.shape[-1] // packed_size(GROUP))", "groups = rows.shape[-1] // packed_size(GROUP)", "test_byte_rows.py::test_numbers_are_read_back_within_half_a_step_of_their_group"),
    Mutation("infinite numbers become zeros", "byte_rows:packed", "(groups.abs().amax(-1) / MOST_CODE)", "(groups.abs().amax(-1).nan_to_num(posinf=0) / MOST_CODE)", "test_byte_rows.py::test_zeros_stay_zeros_and_a_group_with_nan_or_infinity_is_nan_when_it_is_read"),
    Mutation("compiled codes are cut off instead of rounded", "cached_rows.h", "/ divisor + WHOLE", "/ divisor - 0.25f + WHOLE", "test_byte_rows.py::test_a_compiled_layer_writes_the_rows_that_torch_would"),
    Mutation("compiled layers forget NaN", "cached_rows.h", "largest / MOST_CODE + zero", "largest / MOST_CODE", "test_byte_rows.py::test_a_compiled_layer_writes_nan_for_a_group_that_is_not_finite"),
    Mutation("a group's scale is the next one's", "cached_rows.h", "__builtin_memcpy(&scale, row + size + first / SCALED * sizeof scale, sizeof scale);", "__builtin_memcpy(&scale, row + size + (first + SCALED < size ? 1 : 0) * sizeof scale, sizeof scale);", "test_byte_rows.py::test_attention_over_bytes_has_the_bits_of_attention_over_their_numbers"),
    Mutation("halves of a group change places", "cached_rows.h", "lanes(codes + LANES) * scale, lanes(codes) * scale", "lanes(codes) * scale, lanes(codes + LANES) * scale", "test_byte_rows.py::test_attention_over_bytes_has_the_bits_of_attention_over_their_numbers"),
    Mutation("the last own column is not read", "attention.h", "mixing.opened(rest, a.prefix + a.own - rest)", "mixing.opened(rest, a.prefix + a.own - rest - 1)", "test_byte_rows.py::test_attention_over_bytes_has_the_bits_of_attention_over_their_numbers"),
    Mutation("rows of the cache that takes them are packed twice", "KVCache.stored", " and rows.dtype != BYTES", "", "test_byte_rows.py::test_rows_keep_their_bytes_when_other_caches_take_them"),
    Mutation("selectors get bytes", "KVCache.keys_by_layer", "                keys = numbers_of(keys, torch.float32)\n", "                pass\n", "test_byte_rows.py::test_keys_for_selectors_are_numbers"),
    Mutation("latents stay rounded", "CacheLayer.update", "if latent and dtype != BYTES:", "if False:", "test_byte_rows.py::test_models_with_latents_or_sinks_take_rounded_caches"),
    Mutation("sinks are attended with a rounded cache", "attention_interface:attention", "return split(q, keys, values, layout", "return split(q, k, v, layout", "test_byte_rows.py::test_models_with_latents_or_sinks_take_rounded_caches"),
    Mutation("heads that kernels refuse are attended as bytes", "CpuKernels.attention", "return split(q, numbers_of(k, q.dtype), numbers_of(v, q.dtype), layout", "return split(q, k.to(q.dtype), v.to(q.dtype), layout", "test_byte_rows.py::test_torch_attends_to_heads_that_the_kernels_do_not_take"),
    Mutation("scales take no memory", "row_bytes", "return packed_size(size)\n", "return size\n", "test_byte_rows.py::test_logits_change_little_and_the_cache_is_about_a_quarter"),
    Mutation("a prefix file without a cache's dtype fits any cache", "prefix_file:_check", "(UNSAID | dict(needed.identity)).items()", "needed.identity.items()", "test_byte_rows.py::test_a_prefix_file_belongs_to_caches_of_one_dtype"),
    Mutation("transformers' rows are compared with bytes", "_same_rows", "numbers_of(our_values[:, :, held - rows:held], torch.float32)", "our_values[:, :, held - rows:held].float()", "test_byte_rows.py::test_generate_of_transformers_recognises_a_cache_of_the_prompts_beginning"),
    Mutation("a LongSpec head reads bytes", "LongSpecCache.expand", "everywhere(q, numbers_of(last_keys, q.dtype),", "everywhere(q, last_keys.to(q.dtype),", "test_byte_rows.py::test_methods_that_read_the_targets_cache_decode_the_ids_of_plain_decoding"),
    Mutation("rearranged rows are attended", "attention_interface:attention", "if k.dtype == BYTES and not", "if False and not", "test_byte_rows.py::test_rows_that_a_model_rearranges_are_refused"),
    Mutation("bytes are kept where no kernel reads them", "targets:_check_kernels", "if settings.kv_dtype in ROUNDED:", "if settings.kv_dtype == \"bfloat16\":", "test_byte_rows.py::test_bytes_are_refused_where_no_kernel_reads_them"),
)

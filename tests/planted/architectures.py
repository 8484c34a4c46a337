"""Errors that `test_architectures.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("experts' gates and ups change places", "experts:", 'PARTS = ("gate", "up", "down")', 'PARTS = ("up", "gate", "down")', "test_architectures.py::test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model"),
    Mutation("sizes of experts are those of one known model", "restore_entries", "if value is not None:", "if False:", "test_architectures.py::test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model"),
    Mutation("queries of Granite keep llama.cpp's order", "_in_halves", "if part in name:", "if False:", "test_architectures.py::test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model"),
    Mutation("gpt-oss reads its scaled positions as plain ones", "_gpt_oss", 'if metadata.get("rope.scaling.type") == "yarn":', "if False:", "test_architectures.py::test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model"),
    Mutation("keys of latents stay transposed", "_Filler.fill_latents", "keys.transpose(1, 2)", "keys.transpose(1, 2).flip(1)", "test_architectures.py::test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model"),
    Mutation("a router's correction is lost", "_Filler.fill", "module._buffers[last] = torch.tensor(changed.weights)", "pass", "test_architectures.py::test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model"),
    Mutation("routers with a correction take a softmax", "_deepseek", "SIGMOID if corrected else 0", "0", "test_architectures.py::test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model"),
    Mutation("attention with sinks meets a cache in bfloat16", "attention_interface:attention", "split(q, numbers_of(k, q.dtype), numbers_of(v, q.dtype), layout, scale, window, sinks=sinks)", "split(q, k, v, layout, scale, window, sinks=sinks)", "test_architectures.py::test_attention_with_sinks_takes_a_cache_in_bfloat16"),
    Mutation("a tensor that is not known is left out", "parameters_of", "if unknown := [name for name, parameter in named.items() if parameter is None]:", "if unknown := []:", "test_architectures.py::test_files_that_longgraft_reads_by_itself_are_refused_as_floats_or_where_they_are_not_known"),
    Mutation("a layer without experts is decoded", "_Filler._stack", "if tensor is None:", "if False:", "test_architectures.py::test_a_file_without_a_tensor_is_refused"),
    Mutation("value heads keep llama.cpp's order", "gguf_architectures:_grouped", "return heads.swapaxes(0, 1).reshape(weights.shape)", "return weights", "test_architectures.py::test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model"),
    Mutation("a projection reads value heads in another order", "ReorderedWeight.product", "x[..., self._columns]", "x", "test_architectures.py::test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model"),
    Mutation("norms of hybrids keep the one that files add", "_delta_net", "return weights - 1", "return weights", "test_architectures.py::test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model"),
    Mutation("ups of fused experts are gates", "_Filler._stack", 'first = half if part == "up" else 0', "first = 0", "test_architectures.py::test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model"),
    Mutation("tensors on the disk lie over one another", "MappedMemory.zeros", "first, size = self.size,", "first, size = 0,", "test_architectures.py::test_experts_of_a_model_that_is_larger_than_the_memory_are_read_from_the_disk"),
    Mutation("a full disk is noticed by a crash", "gguf_blocks:_on_disk", "if size > room:", "if False:", "test_architectures.py::test_experts_of_a_model_that_is_larger_than_the_memory_are_read_from_the_disk"),
)

"""Errors that `test_kernels.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("a compiler contracts as it likes", "attention.h", "own[r][i] = step<typename A::Product>(own[r][i], (Steps)column[i], weight);", "own[r][i] = R == 1 ? (Sums)weight * column[i] + own[r][i] : step<typename A::Product>(own[r][i], (Steps)column[i], weight);", "test_kernels.py::test_a_nodes_logits_have_the_same_bits_in_a_tree_and_in_plain_decoding"),
    Mutation("few rows see one column before their window", "Layout.by_position", "- (window or 0) + 1).clamp(min=0)", "- (window or 0)).clamp(min=0)", "test_kernels.py::test_attention_equals_the_reference"),
    Mutation("all threads get the compiled products", "ModuleOverride._in_thread", "if threading.get_ident() == self._thread\n", "if self._thread\n", "test_kernels.py::test_another_thread_gets_torchs_products_meanwhile"),
    Mutation("a module's own forward is taken away", "ModuleOverride.__call__", 'for own, _ in self._ours if "forward" not in own]', "for own, _ in self._ours]", "test_kernels.py::test_a_module_with_a_forward_of_its_own_keeps_it"),
    Mutation("a norm's weight is not counted from one", "cpu_kernels.cpp", "(single(weight[i]) + norm.plus) * own", "single(weight[i]) * own", "test_kernels.py::test_norms_equal_torchs"),
    Mutation("merged chunks forget the larger score", "attention.h", "fused(lanes(state + d), mine, lanes(next + d) * theirs", "fused(lanes(state + d), Sums{} + 1.0f, lanes(next + d) * theirs", "test_kernels.py::test_attention_equals_the_reference"),
    Mutation("ancestors are ordered by column instead of depth", "Layout._order", "slots = self.column_depths[columns]", "slots = columns", "test_kernels.py::test_a_nodes_attention_has_the_same_bits_in_a_tree_and_alone"),
    Mutation("chunks begin where a pass does", "attention.h", "begin = chunk * CHUNK, stop = begin + CHUNK", "begin = chunk * CHUNK + (a.rows > 1 ? 0 : 16), stop = begin + CHUNK - (a.rows > 1 ? 0 : 16)", "test_kernels.py::test_attention_equals_the_reference"),
    Mutation("a step's second input is lost", "products.h", "k < A_STEP && i * A_STEP + k < in", "k < 1 && i * A_STEP + k < in", "test_kernels.py::test_products_equal_torchs"),
    Mutation("sums depend on the number of rows", "tiles.h", "sums[r * VECTORS + v] = own[r][v];", "sums[r * VECTORS + v] = R % 2 ? own[r][v] * 1.0000002f : own[r][v];", "test_kernels.py::test_a_rows_product_has_the_same_bits_beside_any_other_rows"),
    Mutation("an answer trusts packed weights", "Target.forward", "                    self.forget_changed()", "                    pass", "test_kernels.py::test_weights_changed_behind_torchs_back_are_noticed_by_the_next_answer"),
    Mutation("a changed weight stays packed as it was", "CpuKernels._packed_of", "found is None or found.state != state", "found is None", "test_kernels.py::test_a_changed_weight_is_packed_again"),
    Mutation("rows that are not contiguous are normed by torch", "CompiledModules._replacement", "rows := x.contiguous()", "rows := x", "test_kernels.py::test_compiled_products_and_norms_give_the_same_bits_in_a_tree_with_one_thread"),
    Mutation("bits of another node are compared", "check_bits", "if not torch.equal(report.logits[-1], alone):", "if not torch.equal(report.logits[0], alone):", "test_kernels.py::test_verify_compares_bits_of_random_trees_with_plain_decodings"),
    Mutation("a text that is not read is not reported", "Loaded._about", "if reads and", "if not reads and", "test_kernels.py::test_a_session_without_a_compiler_decodes_and_gives_the_reason"),
    Mutation("ties of bfloat16 are rounded up", "vectors.h", "(bits + 0x7fff + (bits >> 16 & 1))", "(bits + 0x8000)", "test_kernels.py::test_bfloat16_results_are_rounded_to_the_nearest_with_ties_to_even_and_keep_nan"),
    Mutation("a power of two has one term fewer", "vectors.h", "Sums{} + 1.535336188319500e-4f", "Sums{}", "test_kernels.py::test_softmax_is_precise_for_any_difference_of_scores"),
    Mutation("weights without lows read some", "integer_weights.h", "if constexpr (!FORM.lows || FORM.groups == 1) return low_;", "if constexpr (FORM.groups == 1) return low_;", "test_kernels.py::test_compiled_code_stays_within_its_memory"),
    Mutation("spread queries reach torch's flash kernel", "backends:split", "if q.stride(3) != 1:", "if False:", "test_kernels.py::test_unsuitable_queries_keys_or_values_are_attended_by_torch"),
    Mutation("spread queries reach the compiled attention", "CpuKernels.attention", "and q.stride(3) == 1 ", "", "test_kernels.py::test_unsuitable_queries_keys_or_values_are_attended_by_torch"),
    Mutation("heads of half a vector reach the compiled attention", "CpuKernels.attention", "size % self._lanes == 0 and ", "", "test_kernels.py::test_unsuitable_queries_keys_or_values_are_attended_by_torch"),
    Mutation("keys by row reach the compiled attention", "CpuKernels.attention", "and fits(k, v, dtype=k.dtype)", "", "test_kernels.py::test_unsuitable_queries_keys_or_values_are_attended_by_torch"),
    Mutation("query heads are read at the rows' distance", "CpuKernels.attention", "q.stride(1), q.stride(2), k.stride(1)", "q.stride(2), q.stride(1), k.stride(1)", "test_kernels.py::test_attention_takes_queries_in_any_arrangement"),
    Mutation("a wheel's library is loaded by any processor", "prebuilt", " and level.needs <= features()", "", "test_kernels.py::test_a_processor_loads_the_best_library_of_a_wheel_that_it_can_run_and_else_one_built_here"),
    Mutation("a library that cannot be loaded is not built", "loaded", "            break", "            raise", "test_kernels.py::test_a_processor_loads_the_best_library_of_a_wheel_that_it_can_run_and_else_one_built_here"),
    Mutation("a pair begins where own columns do", "attention.h", "own / A::PER_STEP * A::PER_STEP : shared", "own : shared", "test_kernels.py::test_a_nodes_attention_has_the_same_bits_in_a_tree_and_alone"),
    Mutation("a pair reads behind what was written", "attention.h", "2 * s + 1 < n ? value + apart : value", "value + apart", "test_kernels.py::test_a_nodes_attention_has_the_same_bits_in_a_tree_and_alone"),
    Mutation("pairs are in another order than their places", "attention.h", "d % 8 / 4 * LANES + d % OUTPUTS / 8 * 4 + d % 4", "d % OUTPUTS", "test_kernels.py::test_attention_equals_the_reference"),
)

"""Errors that `test_pretend.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "torch chooses the kernel for one row",
        "everywhere",
        'if q.device.type == "cuda" and q.shape[3] % 8 == 0:',
        "if False:",
        "test_pretend.py::test_plain_decoding_uses_one_named_attention_kernel_per_layer",
    ),
    Mutation(
        "a kernel's rows are taken for dense",
        "backends:split",
        "out.to(q.dtype).reshape(",
        "out.to(q.dtype).view(",
        "test_pretend.py::test_grouped_heads_decode_in_float32_where_kernels_return_transposed_rows",
    ),
    Mutation(
        "copies to the device are waited for",
        "sent",
        "tensor.pin_memory().to(device, non_blocking=True)",
        "tensor.to(device)",
        "test_pretend.py::test_inputs_of_a_plain_step_are_sent_in_one_copy_without_waiting",
    ),
    Mutation(
        "frequencies are sent at every use",
        "Rope.cos_sin",
        "self._frequencies_on(positions.device, dim)",
        "self.inverse_frequencies(dim).to(positions.device)",
        "test_pretend.py::test_a_step_stays_within_its_limits_of_waits_and_launches",
    ),
    Mutation(
        "a number is sent to the device inside a recording",
        "AdjacencyMatrix.update",
        "self._latest.index_fill_(0, tokens, -1)",
        "self._latest[tokens] = -1",
        "test_pretend.py::test_a_step_stays_within_its_limits_of_waits_and_launches",
    ),
)

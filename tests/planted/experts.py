"""Errors that `test_experts.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a row's experts all get its first share",
        "experts.h",
        "Sums{} + shares[c], sum",
        "Sums{} + shares[0], sum",
        "test_experts.py::test_a_row_gets_the_sum_of_its_experts",
    ),
    Mutation(
        "an expert reads the first rows",
        "experts.h",
        "groups.order[first + r] / choices.chosen",
        "r",
        "test_experts.py::test_a_row_gets_the_sum_of_its_experts",
    ),
    Mutation(
        "a gate is not clamped",
        "gates.h",
        "gate = gate > limit ? Sums{} + limit : gate;",
        "",
        "test_experts.py::test_a_row_gets_the_sum_of_its_experts",
    ),
    Mutation(
        "experts lie one tile apart",
        "StackedWeight.first_row",
        "return expert * self._padded",
        "return expert * 16",
        "test_experts.py::test_a_row_gets_the_sum_of_its_experts",
    ),
    Mutation(
        "all experts have the first one's bias",
        "StackedWeight.described",
        "else biases[expert]",
        "else biases[0]",
        "test_experts.py::test_a_row_gets_the_sum_of_its_experts",
    ),
    Mutation(
        "an unknown gate is read as clamped",
        "gate_of_experts",
        "if torch.allclose(gated, expected):\n        return",
        "if True:\n        return",
        "test_experts.py::test_the_form_of_a_gate_is_found",
    ),
    Mutation(
        "torch multiplies in a router",
        "_Products.__torch_function__",
        "if function is F.linear and not kwargs:",
        "if False:",
        "test_experts.py::test_a_router_gives_a_row_the_same_bits_beside_any_other_rows",
    ),
)

"""Errors that `test_engines.py` must notice; those in `benchmarks/` are planted by hand."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("the processor's name needs torch", "provenance:", "if TYPE_CHECKING:\n", "if True:\n", "test_engines.py::test_commands_need_neither_torch_nor_transformers"),
)

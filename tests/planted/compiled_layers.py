"""Errors that `test_compiled_layers.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a cache in half precision is requested and not made",
        "KVCache._buffer",
        "dtype=self.dtype)",
        "dtype=None)",
        "test_compiled_layers.py::test_a_cache_in_half_precision_changes_little_and_is_half_as_large",
    ),
    Mutation(
        "prefix files do not tell caches apart",
        "Target.identity",
        'identity["cache"] = str(self.cache_dtype)[6:]',
        "pass",
        "test_compiled_layers.py::test_a_cache_in_half_precision_changes_little_and_is_half_as_large",
    ),
    Mutation(
        "a layer is tried at position 0 alone",
        "Trial.of",
        "[None] * APART",
        "[None] * 0",
        "test_compiled_layers.py::test_families_that_look_alike_are_told_apart_whatever_is_decoded_first",
    ),
    Mutation(
        "a layer's parts are checked only once",
        "Parts.unchanged",
        "modules.get(name) is part and not hooked(part)",
        "True",
        "test_compiled_layers.py::test_a_layer_whose_parts_change_after_load_runs_its_own_code",
    ),
    Mutation(
        "an answer keeps its first weights",
        "_Layer._is_described",
        "self._described is None or self._state != state",
        "self._described is None",
        "test_compiled_layers.py::test_weights_changed_within_an_answer_count_in_its_next_pass",
    ),
    Mutation(
        "a compiled layer is trusted untried",
        "_Layer._tried",
        "return trial.agrees(computed, expected, self.form.blocks or cache_dtype is not None)",
        "return True",
        "test_compiled_layers.py::test_layers_that_compute_something_else_keep_their_own_code",
    ),
    Mutation(
        "hooks of a layer's parts are skipped",
        "hooked",
        "module._forward_hooks or ",
        "",
        "test_compiled_layers.py::test_layers_that_compute_something_else_keep_their_own_code",
    ),
    Mutation(
        "an answer trusts compiled layers",
        "CompiledModules.forget_changed",
        "            layer.forget()",
        "            pass",
        "test_compiled_layers.py::test_changed_weights_count_in_the_next_answer",
    ),
    Mutation(
        "a compiled layer rotates by the wrong table",
        "cpu_kernels.cpp",
        "rotate(k, static_cast<const T*>(cos), static_cast<const T*>(sin)",
        "rotate(k, static_cast<const T*>(sin), static_cast<const T*>(sin)",
        "test_compiled_layers.py::test_a_compiled_layer_gives_the_results_of_its_own_code",
    ),
    Mutation(
        "a wheel's best library lacks bfloat16 products",
        "build:",
        '"-mavx512vnni", "-mavx512bf16")',
        '"-mavx512vnni")',
        "test_compiled_layers.py::test_the_library_that_a_wheel_brings_for_this_processor_has_the_bits_of_a_local_build",
    ),
    Mutation(
        "floats have a cache in half precision",
        "usual_cache_dtype",
        "integers and dtype == torch.float32",
        "dtype == torch.float32",
        "test_compiled_layers.py::test_keys_and_values_are_in_half_precision_beside_weights_in_integers",
    ),
    Mutation(
        "a cache of floats stays beside weights in integers",
        "usual_cache_dtype",
        "return torch.bfloat16",
        "return None",
        "test_compiled_layers.py::test_keys_and_values_are_in_half_precision_beside_weights_in_integers",
    ),
    Mutation(
        "capped scores are attended over a converted cache",
        "usual_cache_dtype",
        'getattr(text, "attn_logit_softcapping", None) or ',
        "",
        "test_compiled_layers.py::test_keys_and_values_are_in_half_precision_beside_weights_in_integers",
    ),
)

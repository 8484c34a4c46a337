"""Errors that `test_models.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a head that ships is not found",
        "shipped_head",
        "return shipped(entry.head)",
        "return None",
        "test_models.py::test_auto_drafter_is_the_head_that_ships",
    ),
    Mutation(
        "a named model is called by its path",
        "_files_of_gguf",
        "return Files(name, ",
        "return Files(str(described(name, sha256, gguf)), ",
        "test_models.py::test_load_sweep_server_and_doctor_accept_a_name",
    ),
    Mutation(
        "doctor downloads a model to look at it",
        "not_here",
        "if entry is None or here(entry)",
        "if entry is not None or here(entry)",
        "test_models.py::test_doctor_says_before_a_download_whether_a_model_fits",
    ),
    Mutation(
        "soft caps are left out",
        "usual_cache_dtype",
        'getattr(text, "attn_logit_softcapping", None) or ',
        "",
        "test_models.py::test_keys_beside_integers_are_in_bfloat16_if_compiled_kernels_attend",
    ),
    Mutation(
        "odd heads are attended in bfloat16",
        "usual_cache_dtype",
        " or head_size(text) % MOST_LANES",
        "",
        "test_models.py::test_keys_beside_integers_are_in_bfloat16_if_compiled_kernels_attend",
    ),
    Mutation(
        "the default drafts with a head that loses",
        "_without_slow_head",
        "if not is_default or not ships:",
        "if True:",
        "test_models.py::test_auto_drafter_is_the_head_that_ships",
    ),
    Mutation(
        "a head cannot be named by its model",
        "head_path",
        "shipped_head(str(drafter)) or drafter",
        "drafter",
        "test_models.py::test_auto_drafter_is_the_head_that_ships",
    ),
)

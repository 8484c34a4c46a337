"""Errors that `test_heads.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a key of a DFlash drafter counts without a value",
        "layouts:detect",
        'config.get("dflash_config") or',
        '"dflash_config" in config or',
        "test_heads.py::test_a_key_of_another_kind_without_a_value_counts_as_absent",
    ),
    Mutation(
        "a key of Medusa heads counts without a value",
        "layouts:detect",
        'config.get("medusa_num_heads")',
        '"medusa_num_heads" in config',
        "test_heads.py::test_a_key_of_another_kind_without_a_value_counts_as_absent",
    ),
    Mutation(
        "a key of multi-token prediction counts without a value",
        "layouts:detect",
        'config.get("num_nextn_predict_layers")',
        '"num_nextn_predict_layers" in config',
        "test_heads.py::test_a_key_of_another_kind_without_a_value_counts_as_absent",
    ),
    Mutation(
        "a type of speculators counts without a value",
        "head_config",
        'bool(config.get("speculators_model_type"))',
        '"speculators_model_type" in config',
        "test_heads.py::test_norm_before_residual_is_usual_where_a_config_has_a_type_of_speculators",
    ),
    Mutation(
        "a head has as many layers as its config says",
        "refuse_contradictions",
        'if own_number or config.get("speculators_model_type"):',
        "if True:",
        "test_heads.py::test_entries_that_published_configs_omit_or_have_wrong_come_from_the_tensors",
    ),
    Mutation(
        "the layers of a large head are not compared with its config",
        "refuse_contradictions",
        "own_number or ",
        "",
        "test_heads.py::test_the_layers_of_a_head_of_several_layers_are_compared_with_its_config",
    ),
    Mutation(
        "a stated length is forgotten",
        "lengthened",
        "max(stated, int(original * factor))",
        "int(original * factor)",
        "test_heads.py::test_a_head_has_the_positions_that_yarn_lengthens_to",
    ),
    Mutation(
        "YaRN lengthens no head",
        "head_config",
        "positions_of(stated, rope)",
        "stated",
        "test_heads.py::test_a_head_has_the_positions_that_yarn_lengthens_to",
    ),
    Mutation(
        "a head with full attention has a window",
        "layouts:_window",
        ' or kinds == {"full_attention"}',
        "",
        "test_heads.py::test_a_speculators_head_has_the_window_of_its_layers",
    ),
    Mutation(
        "a file with one tensor is a file of tensors",
        "files:_read",
        "or not all(isinstance(tensor, Tensor) for",
        "or not any(isinstance(tensor, Tensor) for",
        "test_heads.py::test_a_head_that_is_no_file_of_tensors_alone_is_refused",
    ),
    Mutation(
        "a drafter in GGUF is looked for on the hub",
        "folder_of",
        'folder.name.lower().endswith("gguf") or ',
        "",
        "test_heads.py::test_a_drafter_in_gguf_is_refused_before_it_is_looked_for",
    ),
)

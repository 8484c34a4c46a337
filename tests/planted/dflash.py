"""Errors that `test_dflash.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a block's own rows are kept",
        "DFlashCache._block",
        "        states = self.network(",
        "        self.cache.length += isinstance(layout, Layout)\n        states = self.network(",
        "test_dflash.py::test_asking_again_gives_the_same_tree",
    ),
    Mutation(
        "a block is cut behind its first unsure token",
        "sure",
        "int(unsure[0])",
        "1 + int(unsure[0])",
        "test_dflash.py::test_a_block_is_cut_before_its_first_unsure_token",
    ),
    Mutation(
        "a drafter's layers are counted as outputs",
        "block_config",
        "tuple(i + 1 for i in outputs)",
        "outputs",
        "test_dflash.py::test_loading_returns_the_saved_drafter",
    ),
    Mutation(
        "a null entry of a DFlash drafter is refused",
        "files:_refuse_others",
        'not in ("silu", None)',
        '!= "silu"',
        "test_dflash.py::test_an_entry_that_is_null_counts_as_absent",
    ),
    Mutation(
        "a drafter's norms ignore its config",
        "block_config",
        'rms_eps=checked(config.get("rms_norm_eps"), Positive | None, "rms_norm_eps") or 1e-6',
        "rms_eps=1e-6",
        "test_dflash.py::test_a_config_decides_the_norms_and_names_the_drafter_it_is_not",
    ),
    Mutation(
        "another drafter is refused without its name",
        "files:_refuse_others",
        "({architectures or 'no architectures'} in ",
        "(no architectures in ",
        "test_dflash.py::test_a_config_decides_the_norms_and_names_the_drafter_it_is_not",
    ),
)

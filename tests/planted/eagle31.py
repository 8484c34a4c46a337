"""Errors that `test_eagle31.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a raw head's norm_output is not read",
        "layouts:_norm_output",
        "return stated and _norms_features(named)",
        "return False",
        "test_eagle31.py::test_a_head_of_each_producer_computes_what_the_paper_says",
    ),
    Mutation(
        "a raw head's norm_output is read without norms",
        "layouts:_norm_output",
        "return stated and _norms_features(named)",
        "return stated",
        "test_eagle31.py::test_norm_output_of_a_raw_layout_is_read_by_the_norms_beside_it_and_said",
    ),
    Mutation(
        "TensorRT-LLM's name of the normed state is unknown",
        "layouts:_norm_output",
        '"return_hidden_post_norm"',
        '"post_norm"',
        "test_eagle31.py::test_a_head_of_each_producer_computes_what_the_paper_says",
    ),
    Mutation(
        "vLLM's raw heads are read as SpecForge's",
        "layouts:_norm_output",
        'if layout == "speculators":',
        'if "speculators_model_type" in config:',
        "test_eagle31.py::test_a_head_without_norms_is_read_as_vllm_reads_its_layout",
    ),
    Mutation(
        "norm_output cannot be overridden",
        "layouts:_overridden",
        "norm_output = overrides.norm_output",
        "norm_output = config.norm_output",
        "test_eagle31.py::test_norm_output_of_a_raw_layout_is_read_by_the_norms_beside_it_and_said",
    ),
    Mutation(
        "an export forgets norm_output",
        "official_config",
        '"fc_norm", "norm_output")',
        '"fc_norm")',
        "test_eagle31.py::test_an_exported_head_gives_the_same_second_level",
    ),
    Mutation(
        "nobody says how norm_output was read",
        "with_method",
        "        notes = (*notes, network.notice)\n",
        "        pass\n",
        "test_eagle31.py::test_a_trained_head_has_norms_of_its_own_and_says_so",
    ),
    Mutation(
        "the norms of features are all the first one",
        "Eagle3Network.fuse",
        "norm(part) for norm, part",
        "self.fc_norm[0](part) for norm, part",
        "test_eagle31.py::test_a_head_of_each_producer_computes_what_the_paper_says",
    ),
)

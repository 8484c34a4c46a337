"""Errors that `test_families.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "states continue with several tokens untested",
        "StatefulModules.run",
        "not _continues(call)",
        "False",
        "test_families.py::test_the_families_of_the_readme_are_exact",
    ),
    Mutation(
        "the first request decides how states continue",
        "_continues",
        "numbers(1, 2 * TRIED, *value.shape[2:], dtype=value.dtype, seed=0).to(value.device)",
        "value[:, nodes[0] % call.rows]",
        "test_families.py::test_the_first_prompt_does_not_decide_how_jamba_reads",
    ),
    Mutation(
        "latents of several requests are swapped",
        "packed_cache:_PackedLayer.update",
        "torch.cat(keys, dim=2)",
        "torch.cat(keys[::-1], dim=2)",
        "test_families.py::test_requests_of_latent_attention_share_a_pass",
    ),
    Mutation(
        "final states of Cohere give logits that are not scaled",
        "Target.logits",
        "logits = logits * factor",
        "pass",
        "test_families.py::test_logits_of_final_states_are_scaled_as_in_the_family[cohere-more1]",
    ),
    Mutation(
        "final states of Granite give logits that are not scaled",
        "Target.logits",
        "logits = logits / divisor",
        "pass",
        "test_families.py::test_logits_of_final_states_are_scaled_as_in_the_family[granite-more2]",
    ),
    Mutation(
        "one token's time step has no limit",
        "_ModuleCall",
        "if nodes.shape[1] == 1 else",
        "if False else",
        "test_families.py::test_hybrids_read_chunks_of_any_size_as_the_models_own_forward[granitemoehybrid]",
    ),
    Mutation(
        "a sink weighs as much as nothing",
        "backends:split",
        "torch.sigmoid(lse.float() - per_row)",
        "torch.sigmoid(lse.float() + per_row.abs() + 9)",
        "test_families.py::test_the_families_of_the_readme_are_exact",
    ),
    Mutation(
        "a sink ignores the prefix",
        "backends:split",
        "lse = torch.logaddexp(far_lse.float(), lse.float())",
        "lse = lse.float()",
        "test_families.py::test_the_families_of_the_readme_are_exact",
    ),
    Mutation(
        "streams are sliced as tokens",
        "inputs_of.take.hook",
        "if taken[index].ndim != 3:",
        "if False:",
        "test_families.py::test_layers_whose_input_has_several_streams_are_not_read",
    ),
    Mutation(
        "latents take the memory of all heads",
        "cache_size:cache_bytes_per_token",
        "if rank:",
        "if False:",
        "test_families.py::test_a_cache_takes_the_bytes_that_its_configuration_says",
    ),
)

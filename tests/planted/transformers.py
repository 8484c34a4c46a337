"""Errors that `test_transformers.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "custom_generate drops top-k",
        "transformers_generate:_sampling",
        '"top_k": config.top_k',
        '"top_k": 0',
        "test_transformers.py::test_each_setting_of_generate_reaches_our_draws",
    ),
    Mutation(
        "custom_generate drops min-p",
        "transformers_generate:_sampling",
        '"min_p": config.min_p',
        '"min_p": 0.0',
        "test_transformers.py::test_each_setting_of_generate_reaches_our_draws",
    ),
    Mutation(
        "custom_generate drops top-p",
        "transformers_generate:_sampling",
        '"top_p": config.top_p',
        '"top_p": 1.0',
        "test_transformers.py::test_each_setting_of_generate_reaches_our_draws",
    ),
    Mutation(
        "max_length counts new tokens",
        "custom_generate",
        "config.max_length - input_ids.shape[1]",
        "config.max_length",
        "test_transformers.py::test_a_limit_of_the_whole_length_counts_the_prompt",
    ),
    Mutation(
        "custom_generate forgets the repetition penalty",
        "transformers_generate:_sampling",
        'settings = {"repetition_penalty": config.repetition_penalty}',
        "settings = dict[str, float]()",
        "test_transformers.py::test_a_repetition_penalty_decodes_the_ids_of_transformers_generate",
    ),
    Mutation(
        "custom_generate takes negative end tokens",
        "custom_generate",
        "if 0 <= token <",
        "if -2 < token <",
        "test_transformers.py::test_end_tokens_outside_the_vocabulary_end_nothing",
    ),
    Mutation(
        "custom_generate ignores positions",
        "_check_request",
        "    _check_positions(kwargs, input_ids.shape[1])\n",
        "",
        "test_transformers.py::test_other_positions_are_refused",
    ),
    Mutation(
        "custom_generate ignores a given cache",
        "custom_generate",
        "            _check_cache(kwargs[name], session, input_ids)",
        "            pass",
        "test_transformers.py::test_a_given_cache_must_hold_the_beginning_of_the_prompt",
    ),
    Mutation(
        "rows of a given cache are not compared",
        "_same_rows",
        "(numbers - expected).norm() >",
        "0 >",
        "test_transformers.py::test_a_given_cache_must_hold_the_beginning_of_the_prompt",
    ),
    Mutation(
        "a window's rows are compared with the first ones",
        "_same_rows",
        "our_values[:, :, held - rows : held]",
        "our_values[:, :, :rows]",
        "test_transformers.py::test_a_given_cache_must_hold_the_beginning_of_the_prompt",
    ),
    Mutation(
        "custom_generate ignores token types",
        "transformers_generate:PASSED",
        '"use_cache", ',
        '"use_cache", "token_type_ids", ',
        "test_transformers.py::test_a_direct_call_refuses_what_transformers_would_not_pass",
    ),
)

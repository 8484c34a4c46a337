"""Errors that `test_cli.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the list of methods leaves out the zoo",
        "examine:methods",
        '"The zoo: methods to compare with": zoo,',
        "",
        "test_cli.py::test_methods_and_heads_are_listed",
    ),
    Mutation(
        "a bias that was given is forgotten",
        "LogitSettings.read",
        "dict(map(_bias, self.logit_bias)) or None",
        "None",
        "test_cli.py::test_json_prints_one_object_with_every_field",
    ),
    Mutation(
        "threads spin as long as they like",
        "app:main",
        '        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)',
        "        pass",
        "test_cli.py::test_commands_limit_how_long_threads_spin_unless_the_user_does",
    ),
    Mutation(
        "a request follows its files without a new line",
        "PromptOptions._single",
        '[*texts, "\\n", request]',
        "[*texts, request]",
        "test_cli.py::test_a_prompt_is_made_of_files_standard_input_messages_and_rows",
    ),
    Mutation(
        "the embedded model answers unasked",
        "generate:_opened",
        "        if not or_embedded:\n            raise\n",
        "",
        "test_cli.py::test_the_embedded_model_replaces_one_that_cannot_be_fetched_only_if_requested",
    ),
    Mutation(
        "the doctor does not lengthen",
        "doctor:examine",
        "most_positions(config) or UNBOUNDED",
        "text.max_position_embeddings",
        "test_cli.py::test_a_context_that_yarn_lengthens_is_allowed_by_all_commands",
    ),
    Mutation(
        "a sweep does not lengthen",
        "Reader.open",
        "most_positions(config) or UNBOUNDED",
        "config.max_position_embeddings",
        "test_cli.py::test_a_context_that_yarn_lengthens_is_allowed_by_all_commands",
    ),
    Mutation(
        "the command forgets its stop tokens",
        "Answers._decoded",
        ",\n            stop_token_ids=self.ends.stop_token_ids",
        "",
        "test_cli.py::test_stop_token_ids_end_an_answer",
    ),
    Mutation(
        "an end token of text is taken apart",
        "end_tokens:_ids",
        "isinstance(token, int) and not isinstance(token, bool)",
        "token is not None",
        "test_cli.py::test_an_end_token_that_is_text_is_one_message",
    ),
    Mutation(
        "the doctor counts a cache for every layer",
        "doctor:_target",
        "cache_bytes_per_token(text, cache)",
        "2 * text.num_hidden_layers * text.num_key_value_heads * 32",
        "test_cli.py::test_doctor_counts_the_cache_of_layers_that_attend",
    ),
    Mutation(
        "a calibration refuses bounds of its retrieval",
        "examine:calibrate",
        "    loaded = assemble(pair.model, pair.drafter, replace(settings, method=DENSE, calibration=None))\n",
        "    _, loaded = open_session(pair, replace(settings, method=DENSE, calibration=None))\n",
        "test_cli.py::test_verify_doctor_and_calibrate_run_on_a_toy_pair",
    ),
)

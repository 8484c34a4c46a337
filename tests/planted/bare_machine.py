"""Errors that `test_bare_machine.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "heads travel",
        "pack.sh",
        'mv "$root/$path" "$aside/$path"',
        'cp "$root/$path" "$aside/$path"',
        "test_bare_machine.py::test_pack_sets_weights_aside_and_brings_them_back",
    ),
    Mutation(
        "transfers have no limit",
        "pack.sh",
        'carry less" >&2\n        exit 1\n',
        'carry less" >&2\n',
        "test_bare_machine.py::test_pack_fails_above_the_limit_of_a_transfer",
    ),
)

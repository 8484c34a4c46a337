"""Errors that `test_docstring_examples.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "an example says another depth than its tree has",
        "ProposalTree",
        "        [0, 1, 1, 2]\n",
        "        [0, 1, 2, 2]\n",
        "test_docstring_examples.py::test_the_example_in_a_docstring_shows_what_it_says",
    ),
    Mutation(
        "a public name loses its example",
        "GenerationRequest",
        '        >>> import longgraft\n        >>> session = longgraft.load(tell=False)\n        >>> request = GenerationRequest(session.encode("if __name__ =="), max_new_tokens=32, stop=(":",))\n        >>> "".join(step.text for step in session.open(request))\n',
        "",
        "test_docstring_examples.py::test_every_public_name_has_an_example",
    ),
)

"""Errors that `test_products.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a path has no sibling",
        "products",
        "        offer(parent, rank + 1)\n",
        "",
        "test_products.py::test_nodes_of_a_product_tree_are_the_most_probable_of_all_paths",
    ),
)

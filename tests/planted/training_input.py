"""Errors that `test_training_input.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a number above a bound may be the bound",
        "recipe:Rate",
        "Gt(0)",
        "Ge(0)",
        "test_training_input.py::test_every_number_of_a_recipe_has_bounds_and_is_refused_beyond_them",
    ),
    Mutation(
        "products are in bfloat16 on every processor",
        "Recipe.in_bf16",
        'device.type != "cpu" or bool(BF16_FEATURES & features())',
        "True",
        "test_training_input.py::test_products_are_in_bfloat16_on_processors_that_have_them_unless_asked_otherwise",
    ),
)

"""Errors that `test_training_target.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a finished training takes any settings",
        "Trainer._compare",
        "if self.changed and had_ended and",
        "if False and",
        "test_training_target.py::test_a_finished_run_with_other_settings_is_refused_and_its_recipe_stays",
    ),
    Mutation(
        "a finished training gets another recipe",
        "Trainer.run",
        "if self.progress() < 1.0 or not file.exists():",
        "if True:",
        "test_training_target.py::test_a_finished_run_with_other_settings_is_refused_and_its_recipe_stays",
    ),
    Mutation(
        "threads are a setting of steps",
        "recipe:OF_NO_STEP",
        '"threads",',
        "",
        "test_training_target.py::test_a_finished_run_with_other_settings_is_refused_and_its_recipe_stays",
    ),
    Mutation(
        "a checkpoint does not know its text",
        "Trainer.__init__",
        '"training text": texts',
        '"training text": ""',
        "test_training_target.py::test_a_finished_run_with_other_settings_is_refused_and_its_recipe_stays",
    ),
    Mutation(
        "a recipe of an older version is forgotten",
        "Trainer._made_before",
        "if before is None and",
        "if False and",
        "test_training_target.py::test_a_finished_run_with_other_settings_is_refused_and_its_recipe_stays",
    ),
    Mutation(
        "a training that ends early counts as ended before",
        "Trainer._compare",
        "had_ended and",
        "True and",
        "test_training_target.py::test_an_unfinished_run_ends_early_with_fewer_tokens_and_keeps_its_recipe",
    ),
    Mutation(
        "a resumed training does not note what changed",
        "Trainer.run",
        "if self.changed else {}",
        "if False else {}",
        "test_training_target.py::test_a_finished_run_goes_on_with_more_tokens_and_notes_what_changed",
    ),
)

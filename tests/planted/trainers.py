"""Errors that `test_trainers.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a resumed optimizer has forgotten its moments",
        "Trainer._take",
        "            optimizer.load_state_dict(moments)\n",
        "",
        "test_trainers.py::test_a_resumed_run_has_exactly_the_losses_of_an_uninterrupted_one",
    ),
    Mutation(
        "a measured drafter copies the target's layers",
        "as_decoded",
        "network, {id(module): module for module in target.model.modules()})",
        "network)",
        "test_trainers.py::test_a_measured_network_shares_the_targets_layers_and_the_trained_one_is_unchanged",
    ),
    Mutation(
        "a resumed run keeps the checkpoint's rates",
        "Trainer._take",
        'group["peak"] = peak',
        "pass",
        "test_trainers.py::test_a_resumed_run_has_the_rates_of_its_recipe_and_not_of_the_checkpoint",
    ),
    Mutation(
        "a warm start skips weights in blocks",
        "_copy_target_layer",
        " | {name: weight[:] for name, weight in block_weights(layer)}",
        "",
        "test_trainers.py::test_a_gguf_target_is_trained_on_as_it_is_decoded",
    ),
    Mutation(
        "a target in blocks is cast while it is trained on",
        "DrafterTrainer._computed",
        " and not any(block_weights(self.target.model))",
        "",
        "test_trainers.py::test_a_gguf_target_is_trained_on_as_it_is_decoded",
    ),
    Mutation(
        "a run does not follow the clock",
        "Trainer.run",
        "        self._end_at(until)\n",
        "",
        "test_trainers.py::test_a_run_ends_in_time_to_write_its_result",
    ),
    Mutation(
        "a jump of positions is passed over",
        "frozen:observed",
        "bool((positions == torch.arange(tokens.shape[1])).all())",
        "True",
        "test_trainers.py::test_a_gguf_targets_features_are_those_of_its_own_code_also_after_a_jump",
    ),
    Mutation(
        "a target in blocks is read by its own code",
        "frozen:observed",
        'target.weights != "float"',
        'target.weights == "float"',
        "test_trainers.py::test_a_gguf_target_is_trained_on_as_it_is_decoded",
    ),
    Mutation(
        "features come in the order of the layers",
        "frozen:_as_decoded",
        "for layer in layers], dim=-1)",
        "for layer in sorted(layers)], dim=-1)",
        "test_trainers.py::test_a_gguf_targets_features_are_those_of_its_own_code_also_after_a_jump",
    ),
)

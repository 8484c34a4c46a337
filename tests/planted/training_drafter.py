"""Errors that `test_training_drafter.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the gradient of nats omits the target's shares",
        "_Distilled.forward",
        "gradient = ours.div_(summed).sub_(share)",
        "gradient = ours.div_(summed)",
        "test_training_drafter.py::test_the_gradients_of_a_loss_are_those_of_its_formula",
    ),
    Mutation(
        "every epoch has rows of its own",
        "TokenStream._tokens",
        "epoch if self._repeated is None else 0",
        "epoch",
        "test_training_drafter.py::test_later_epochs_read_the_targets_features_from_disk",
    ),
    Mutation(
        "features of other layers are taken",
        "FeatureStore.__init__",
        "list(layers)",
        "[]",
        "test_training_drafter.py::test_later_epochs_read_the_targets_features_from_disk",
    ),
    Mutation(
        "the layer's output is not scaled as its stream",
        "_copy_target_layer",
        "copied = copied * scale",
        "pass",
        "test_training_drafter.py::test_a_fresh_head_begins_as_the_targets_layer_that_reads_the_last_feature",
    ),
    Mutation(
        "a new head's normed features are scaled twice",
        "fresh:build_network",
        "feature_pass = 1.0",
        "pass",
        "test_training_drafter.py::test_a_fresh_head_begins_as_the_targets_layer_that_reads_the_last_feature",
    ),
    Mutation(
        "excerpts count as what the model wrote",
        "vocabulary:written_tokens",
        "first = max(start, end - document.own - document.ended)",
        "first = start",
        "test_training_drafter.py::test_a_vocabulary_is_counted_over_what_the_model_wrote",
    ),
    Mutation(
        "the file of the vocabulary is not read",
        "fresh:_counted",
        "if recipe.vocabulary is None:",
        "if True:",
        "test_training_drafter.py::test_a_head_is_trained_with_the_vocabulary_of_another_file_and_says_what_it_covers",
    ),
    Mutation(
        "context counts as covered",
        "vocabulary:covered",
        "coded[coded >= 0]",
        "np.where(coded < 0, ~coded, coded)",
        "test_training_drafter.py::test_the_share_that_a_vocabulary_covers_is_of_learnt_tokens_by_type",
    ),
    Mutation(
        "logits of a pass are compared with the model's own",
        "check_logits",
        "target.model.get_decoder()(tokens, use_cache=False).last_hidden_state",
        "observed(target, (0,), tokens, tokens)[1]",
        "test_training_drafter.py::test_a_target_whose_passes_round_activations_is_trained",
    ),
)

"""Initialises an EAGLE-3 head: its sizes and weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from longgraft.config.options import checked
from longgraft.kernels.block_weight import block_weights
from longgraft.models.files import files_of
from longgraft.target_model.model import Target
from longgraft.yarn_drafters.network import Eagle3Network, HeadConfig
from longgraft.yarn_drafters.training.corpus import EncodedCorpus
from longgraft.yarn_drafters.training.recipe import DrafterRecipe, Size
from longgraft.yarn_drafters.training.vocabulary import draft_vocabulary, written_tokens


def head_shape(recipe: DrafterRecipe, target: Target) -> HeadConfig:
    """Returns the recipe's sizes, and the target's for those that the recipe does not set."""
    c = target.config
    hidden = target.config.hidden_size

    def size(name: str, name_in_target: str, usual: int | None = None) -> int:
        value = getattr(recipe, name) or getattr(c, name_in_target, None) or usual
        return checked(value, Size, f"{name}, which the recipe does not set, of {target.name}'s config")

    heads = size("heads", "num_attention_heads")
    kv_heads = size("kv_heads", "num_key_value_heads", heads)
    head_dim = size("head_dim", "head_dim", hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise ValueError(
            f"heads is {heads}, kv_heads {kv_heads} and head_dim {head_dim}. Set them in the "
            "recipe: the first a multiple of the second, the last even."
        )
    layers = feature_layers(recipe.feature_layers or _usual_layers(c.num_hidden_layers), target)
    return HeadConfig(
        hidden_size=hidden,
        target_hidden_size=hidden,
        intermediate_size=size("intermediate", "intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=target.vocab_size,
        draft_vocab_size=min(recipe.usual("draft_vocab"), target.vocab_size),
        feature_layers=layers,
        max_positions=recipe.usual("max_positions"),
        rope=recipe.usual("rope"),
        rms_eps=getattr(c, "rms_norm_eps", 1e-5),
        fc_norm=recipe.usual("fc_norm"),
        norm_output=recipe.usual("norm_output"),
    )


def build_network(recipe: DrafterRecipe, target: Target, corpus: EncodedCorpus, eos: Sequence[int]) -> Eagle3Network:
    """Returns a new float32 head.

    Its output layer starts as the target's rows of the draft vocabulary, and its embedding is the target's.
    With `warm_start` its first layer starts as the target's layer that reads the last feature.
    """
    config = head_shape(recipe, target)
    hidden = target.config.hidden_size
    torch.manual_seed(recipe.seed)
    network = Eagle3Network(config)
    for parameter in network.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    d2t, t2d = draft_vocabulary(_counted(recipe, target, corpus), target.vocab_size, config.draft_vocab_size, eos)
    network.d2t.copy_(d2t)
    network.t2d.copy_(t2d)
    with torch.no_grad():
        # The last feature is close to the input of the target's output layer, so fc passes it through from
        # the start, scaled down: a target's features are large (here 10 to 20), and would drown what the
        # layer adds to them. A norm before fc has scaled them already.
        network.fc.weight.mul_(0.2)
        feature_pass = recipe.usual("feature_pass")
        if config.fc_norm:
            feature_pass = 1.0
        network.fc.weight[:, -hidden:] += feature_pass * torch.eye(hidden)
        network.lm_head.weight.copy_(target.head.weight[t2d.to(target.device)])
        take_norm(network.norm, getattr(target.model.get_decoder(), "norm", None))
        if recipe.usual("warm_start"):
            _copy_target_layer(network, target.layers[config.feature_layers[-1]], recipe.usual("feature_pass"))
    return network


def _counted(recipe: DrafterRecipe, target: Target, corpus: EncodedCorpus) -> np.ndarray:
    """Returns the tokens that the draft vocabulary is counted over."""
    if recipe.vocabulary is None:
        return corpus.tokens
    tokenizer = files_of(target.name).tokenizer
    return written_tokens([Path(recipe.vocabulary)], tokenizer)


def _copy_target_layer(network: Eagle3Network, layer: nn.Module, scale: float) -> None:
    """Copies the target's layer that reads the last feature into the head's first layer.

    Args:
        scale: Factor of the head's residual stream, and so of the matrices that write to it.  Matrices of
            other names or shapes keep their initial values, and so do the columns for the embedding, which
            the target's layer does not have.
    """
    first = network.midlayer
    target_weights = layer.state_dict() | {name: weight[:] for name, weight in block_weights(layer)}
    for name, parameter in first.named_parameters():
        if parameter.ndim == 2 and name in target_weights:
            copied = target_weights[name].float()
            part = parameter[:, -copied.shape[1] :]  # the columns for the state in cat(embedding, state)
            if part.shape != copied.shape:
                continue
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                copied = copied * scale
            part.copy_(copied)
    modules = dict(layer.named_modules())
    take_norm(first.hidden_norm, modules.get("input_layernorm"))
    take_norm(first.post_attention_layernorm, modules.get("post_attention_layernorm"))


@torch.no_grad()
def take_norm(head_norm: nn.Module, norm: nn.Module | None) -> None:
    """Copies a target's norm into `head_norm`.

    Applied to ones, an RMSNorm gives its scale, also for families that store scale - 1.  A LayerNorm gives
    zeros; then `head_norm` gets ones.
    """
    if norm is not None:
        like = next(norm.parameters())
        scale = norm(torch.ones_like(like)[None])[0]
        if not scale.min() > 0:
            scale = torch.ones_like(scale)
        head_norm.get_parameter("weight").copy_(scale)


def feature_layers(layers: Sequence[int], target: Target) -> tuple[int, ...]:
    """Returns these layers; raises ValueError unless the target has each and each is named once."""
    n = target.config.num_hidden_layers
    if len(set(layers)) < len(layers) or not all(0 <= layer < n for layer in layers):
        raise ValueError(
            f"feature_layers is {tuple(layers)}, and {target.name} has {n} layers. Set "
            f"feature_layers in the recipe to different numbers below {n}."
        )
    return tuple(layers)


def _usual_layers(n: int) -> tuple[int, ...]:
    """Returns EAGLE's feature layers, or others for a shallow target, for which they must differ."""
    if n > 7:
        return (2, n // 2, n - 3)
    return (1, n // 2, n - 1)

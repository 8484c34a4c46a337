"""Detects a checkpoint's public EAGLE-3 layout and reads its config by the rules of that layout.

Every rule comes from its producer's training or serving code.  Producers give the same names different
meanings, and a wrong reading only shows as low acceptance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from annotated_types import Ge

from longgraft.config.options import Checked, Count, Positive, checked
from longgraft.config.settings import HeadOverrides
from longgraft.yarn_drafters.contradictions import attention_heads, refuse_contradictions, refuse_unread
from longgraft.yarn_drafters.network import HeadConfig
from longgraft.yarn_drafters.rope import Rope
from longgraft.yarn_drafters.scaling import positions_of, rope_of, scaling

Shapes = Mapping[str, Sequence[int]]
Layers = tuple[Annotated[int, Ge(0)], ...]
Words = tuple[str, ...]
PREFIXES = ("module.", "draft_model.", "model.")


@dataclass(frozen=True)
class TargetShape(Checked):
    """The target model's sizes that a head must fit: layers N, hidden size Ht, vocabulary V."""

    layers: Count
    hidden: Count
    vocab: Count

    @classmethod
    def of(cls, config: Any) -> TargetShape:
        """Returns the shape of a model with this transformers configuration."""
        text = config.get_text_config(decoder=True)
        try:
            return cls(text.num_hidden_layers, text.hidden_size, text.vocab_size)
        except ValueError as error:
            raise ValueError(f"The target's config.json: {error} Fetch it again.") from error


def plain_name(name: str) -> str:
    """Returns a tensor's name without the wrappers' prefixes."""
    while any(name.startswith(prefix) for prefix in PREFIXES):
        name = name.split(".", 1)[1]
    return name


def our_name(name: str, layout: str) -> str:
    """Returns the name in `Eagle3Network`: speculators' first layer is layers.0, ours is midlayer."""
    if layout != "speculators":
        return name
    if name.startswith("layers.0."):
        return "midlayer." + name.removeprefix("layers.0.")
    return re.sub(r"^layers\.(\d+)\.", lambda m: f"layers.{int(m[1]) - 1}.", name)


def speculators_name(name: str) -> str:
    """Returns speculators' name: the inverse of `our_name`."""
    name = re.sub(r"^layers\.(\d+)\.", lambda m: f"layers.{int(m[1]) + 1}.", name)
    return re.sub(r"^midlayer\.", "layers.0.", name)


def detect(config: Mapping[str, Any], shapes: Shapes) -> str:
    """Returns "eagle3", "angelslim", "specforge", "specpv" or "speculators"; raises ValueError for other drafters.

    A key of another kind of drafter counts as absent if its value is null, 0 or empty: configs that were
    copied from a target list such keys.
    """
    architectures = " ".join(checked(config.get("architectures"), Words | None, "architectures") or ())
    kind = config.get("speculators_model_type")
    if kind:
        if kind != "eagle3":
            raise ValueError(f"This is a speculators {kind!r} drafter; an EAGLE-3 head is needed.")
        return "speculators"
    if config.get("dflash_config") or re.search("DFlash|DSpark|Domino", architectures):
        raise ValueError(f"This is a DFlash drafter ({architectures}); an EAGLE-3 head is needed.")
    if config.get("medusa_num_heads") or any(re.match(r"(medusa_head\.)?\d+\.\d+\.", name) for name in shapes):
        raise ValueError("These are Medusa heads; an EAGLE-3 head is needed.")
    if config.get("num_nextn_predict_layers") or any(name.startswith(("mtp.", "mtp_layers.")) for name in shapes):
        raise ValueError("This is a multi-token-prediction head; an EAGLE-3 head is needed.")
    if "midlayer.self_attn.q_proj.weight" in shapes:
        rope = scaling(config)
        # SpecPV's fork once wrote rope_type alone, beside its own key "finetuned".
        if "mscale" not in rope and (rope.get("type") == "yarn" or "finetuned" in rope):
            return "specpv"
        if "Eagle3LlamaForCausalLM" in architectures:
            return "angelslim"
        # Only mainline SpecForge trains with llama3 or mscale, and it read rope_theta before it had either.
        if config.get("eagle_config") is not None or rope["rope_type"] == "llama3" or "mscale" in rope:
            return "specforge"
        return "eagle3"
    if "layers.0.hidden_norm.weight" in shapes:
        return "speculators"
    if "layers.0.self_attn.q_proj.weight" in shapes and "fc.weight" in shapes:
        raise ValueError(
            "This is an EAGLE-1 or EAGLE-2 head (fc over embedding and one feature, no "
            "hidden_norm); an EAGLE-3 head is needed."
        )
    raise ValueError(
        f"No known drafter layout has these tensors: {', '.join(sorted(shapes)[:8])} ...\n"
        "An EAGLE-3 head has midlayer.* (or layers.0.hidden_norm), fc, norm and lm_head."
    )


def head_config(config: Mapping[str, Any], shapes: Shapes, target: TargetShape, overrides: HeadOverrides) -> HeadConfig:
    """Returns the head's configuration: sizes from tensors, meanings from the layout.

    Args:
        shapes: Plain name -> shape.
    """
    layout = detect(config, shapes)
    inner = _object(config, "transformer_layer_config") or config
    named = {our_name(name, layout): tuple(shape) for name, shape in shapes.items()}
    _refuse_shapes(named, target)
    refuse_unread(config, inner, named)
    hidden, wide = named["fc.weight"]
    heads, head_dim, kv_heads = attention_heads(
        inner, named["midlayer.self_attn.q_proj.weight"][0], named["midlayer.self_attn.k_proj.weight"][0]
    )
    speculators = layout == "speculators"
    rope = rope_of(inner, layout)
    has_type = bool(config.get("speculators_model_type"))
    stated = checked(inner.get("max_position_embeddings"), Count | None, "max_position_embeddings") or 2048
    config_of_head = HeadConfig(
        hidden_size=hidden,
        target_hidden_size=target.hidden,
        intermediate_size=named["midlayer.mlp.gate_proj.weight"][0],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=target.vocab,
        draft_vocab_size=named["lm_head.weight"][0],
        feature_layers=_feature_layers(config, wide // target.hidden, target, overrides),
        max_positions=positions_of(stated, rope),
        rope=rope,
        layers=1 + len({name.split(".")[1] for name in named if re.match(r"layers\.\d+\.", name)}),
        rms_eps=checked(inner.get("rms_norm_eps"), Positive | None, "rms_norm_eps") or 1e-6,  # EAGLE's, and Llama's
        # Only in speculators' files do these names have this meaning.  Without the first, vLLM takes true in
        # a speculators config and false in a raw one.
        norm_before_residual=speculators and _flag(config, "norm_before_residual", has_type),
        norm_output=_norm_output(config, named, layout),
        norm_before_fc="input_norm.weight" in named,
        fc_norm="fc_norm.0.weight" in named,
        qk_norm="midlayer.self_attn.q_norm.weight" in named,
        attention_bias="midlayer.self_attn.q_proj.bias" in named,
        fc_bias="fc.bias" in named,
        window=_window(inner) if speculators else None,
        layout=layout,
    )
    refuse_contradictions(config, inner, config_of_head, target.layers)
    return _overridden(config_of_head, overrides)


def _refuse_shapes(named: Shapes, target: TargetShape) -> None:
    """Raises ValueError if the tensors that determine the sizes are missing or do not fit this target."""
    for name in (
        "fc.weight",
        "midlayer.self_attn.q_proj.weight",
        "midlayer.self_attn.k_proj.weight",
        "midlayer.mlp.gate_proj.weight",
        "lm_head.weight",
    ):
        if name not in named:
            raise ValueError(
                f"The head has no {name}; every EAGLE-3 head needs one. The file is cut or of "
                f"another kind (found: {', '.join(sorted(named)[:6])} ...)."
            )
        if len(named[name]) != 2 or not all(named[name]):
            raise ValueError(
                f"{name} has shape {tuple(named[name])}; a matrix is needed. The file is damaged: download it again."
            )
    hidden, wide = named["fc.weight"]
    q_width = named["midlayer.self_attn.q_proj.weight"][1]
    if q_width != 2 * hidden:
        raise ValueError(
            f"q_proj takes {q_width:,} inputs; embedding and feature of {hidden:,} each need "
            f"{2 * hidden:,}. The file is of another kind: an EAGLE-3 head is needed."
        )
    if wide % target.hidden:
        raise ValueError(
            f"fc takes {wide:,} inputs, which is no multiple of the target's hidden size "
            f"{target.hidden:,}: this head belongs to another target."
        )


def _object(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return checked(config.get(name), dict | None, name) or {}


def _flag(config: Mapping[str, Any], name: str, usual: bool) -> bool:
    stated = checked(config.get(name), bool | None, name)
    if stated is None:
        return usual
    return stated


def _norm_output(config: Mapping[str, Any], named: Shapes, layout: str) -> bool:
    """Returns True if the next level reads the normed state, as in EAGLE-3.1."""
    stated = _flag(config, "norm_output", False)
    if layout == "speculators":  # vLLM and speculators
        return stated
    if _flag(_object(config, "eagle_config"), "return_hidden_post_norm", False):  # TensorRT-LLM
        return True
    # In SpecForge's EAGLE-3 files the same name only says that the output layer reads a normed state, as always.
    return stated and _norms_features(named)


def _norms_features(named: Shapes) -> bool:
    """Returns True if the head has norms before fc, of each feature (EAGLE-3.1) or of all together."""
    return "fc_norm.0.weight" in named or "input_norm.weight" in named


def norm_notice(config: Mapping[str, Any], head: HeadConfig) -> str:
    """Returns a sentence on how `norm_output` was read, if its producers disagree on the name; else ""."""
    if head.layout == "speculators" or not _flag(config, "norm_output", False):
        return ""
    if head.norm_output:
        return (
            "the head's config says norm_output and it has norms before fc, as in EAGLE-3.1: each level "
            "reads the normed state of the one before. SpecForge's heads of May to September 2026 were "
            "trained without that: for those give HeadOverrides(norm_output=False)"
        )
    return (
        "the head's config says norm_output: each level reads the state before the norm, as SpecForge "
        "trained it. For the normed state give HeadOverrides(norm_output=True)"
    )


def _window(config: Mapping[str, Any]) -> int | None:
    """Returns the attention window that a head was trained with; with full attention such a head would collapse."""
    kinds = set(checked(config.get("layer_types") or ["sliding_attention"], Words, "layer_types"))
    if not config.get("sliding_window") or not config.get("use_sliding_window", True) or kinds == {"full_attention"}:
        return None
    if kinds != {"sliding_attention"}:
        raise ValueError(
            f"The head's layers are of several kinds ({', '.join(sorted(kinds))}); one window for all is supported."
        )
    return checked(config["sliding_window"], Count, "sliding_window")


def _feature_layers(
    config: Mapping[str, Any], count: int, target: TargetShape, overrides: HeadOverrides
) -> tuple[int, ...]:
    """Returns indices into transformers' hidden_states: layer inputs."""
    n = target.layers
    nested = _object(config, "eagle_config")
    # AngelSlim and SpecForge count layer outputs; vLLM, speculators and we count layer inputs.
    outputs = _ids(config, "aux_hidden_states_layer_ids") or _ids(nested, "eagle_aux_hidden_state_layer_ids")
    inputs = _ids(config, "eagle_aux_hidden_state_layer_ids") or tuple(i + 1 for i in outputs)
    layers = overrides.feature_layers or inputs or (2, n // 2, n - 3)
    if len(layers) != count or len(set(layers)) != count or not all(0 <= i < n for i in layers):
        raise ValueError(
            f"The head's fc joins {count} features, and the layers {layers} of {n} were found "
            f"for them. Give {count} different indices below {n}: load(..., "
            "head=HeadOverrides(feature_layers=...))."
        )
    return layers


def _ids(config: Mapping[str, Any], name: str) -> tuple[int, ...]:
    return checked(config.get(name), Layers | None, name) or ()


def _overridden(config: HeadConfig, overrides: HeadOverrides) -> HeadConfig:
    rope = config.rope
    if overrides.yarn is not None:
        factor, original = overrides.yarn
        rope = Rope(rope.base, "yarn", factor, original)
        config = replace(config, max_positions=max(config.max_positions, int(factor * original)))
    if overrides.rope_base is not None:
        rope = replace(rope, base=overrides.rope_base)
    norm_output = config.norm_output
    if overrides.norm_output is not None:
        norm_output = overrides.norm_output
    return replace(
        config,
        rope=rope,
        max_positions=overrides.max_positions or config.max_positions,
        window=overrides.window or config.window,
        norm_output=norm_output,
    )

"""Which public EAGLE-3 layout a checkpoint has, and what its config means in it.

Knows config.json and tensor names and shapes; reads no file.  Every rule was read off its producer's training or
serving code: they use the same names with different meanings, and wrong guesses only show as low acceptance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longgraft.settings import HeadOverrides
from longgraft.yarn_drafters.network import HeadConfig
from longgraft.yarn_drafters.rope import Rope

Shapes = Mapping[str, Sequence[int]]
PREFIXES = ("module.", "draft_model.", "model.")


@dataclass(frozen=True)
class TargetShape:
    """What a head must fit: layers N, hidden size Ht, vocabulary V."""

    layers: int
    hidden: int
    vocab: int

    @classmethod
    def of(cls, config: Any) -> TargetShape:
        """Of a transformers configuration."""
        text = config.get_text_config(decoder=True)
        return cls(text.num_hidden_layers, text.hidden_size, text.vocab_size)


def plain_name(name: str) -> str:
    """A tensor's name without the wrappers' prefixes."""
    while any(name.startswith(prefix) for prefix in PREFIXES):
        name = name.split(".", 1)[1]
    return name


def our_name(name: str, layout: str) -> str:
    """The name in `Eagle3Network`.  speculators counts the first layer as layers.0, we as midlayer."""
    if layout != "speculators":
        return name
    if name.startswith("layers.0."):
        return "midlayer." + name.removeprefix("layers.0.")
    return re.sub(r"^layers\.(\d+)\.", lambda m: f"layers.{int(m[1]) - 1}.", name)


def speculators_name(name: str) -> str:
    """`our_name`, turned round."""
    name = re.sub(r"^layers\.(\d+)\.", lambda m: f"layers.{int(m[1]) + 1}.", name)
    return re.sub(r"^midlayer\.", "layers.0.", name)


def detect(config: Mapping[str, Any], shapes: Shapes) -> str:
    """"eagle3", "angelslim", "specforge", "specpv" or "speculators"; ValueError names any other drafter."""
    architectures = " ".join(config.get("architectures") or ())
    kind = config.get("speculators_model_type")
    if kind is not None:
        if kind != "eagle3":
            raise ValueError(f"This is a speculators {kind!r} drafter; an EAGLE-3 head is needed.")
        return "speculators"
    if "dflash_config" in config or re.search("DFlash|DSpark|Domino", architectures):
        raise ValueError(f"This is a DFlash drafter ({architectures}); an EAGLE-3 head is needed.")
    if "medusa_num_heads" in config or any(re.match(r"(medusa_head\.)?\d+\.\d+\.", name) for name in shapes):
        raise ValueError("These are Medusa heads; an EAGLE-3 head is needed.")
    if "num_nextn_predict_layers" in config or any(name.startswith(("mtp.", "mtp_layers.")) for name in shapes):
        raise ValueError("This is a multi-token-prediction head; an EAGLE-3 head is needed.")
    if "midlayer.self_attn.q_proj.weight" in shapes:
        scaling = _scaling(config)
        # SpecPV's fork once wrote rope_type alone, beside its own key "finetuned".
        if "mscale" not in scaling and (scaling.get("type") == "yarn" or "finetuned" in scaling):
            return "specpv"
        if "Eagle3LlamaForCausalLM" in architectures:
            return "angelslim"
        # Mainline SpecForge alone trains with llama3 or mscale, and since before either it honours rope_theta.
        if "eagle_config" in config or scaling["rope_type"] == "llama3" or "mscale" in scaling:
            return "specforge"
        return "eagle3"
    if "layers.0.hidden_norm.weight" in shapes:
        return "speculators"
    if "layers.0.self_attn.q_proj.weight" in shapes and "fc.weight" in shapes:
        raise ValueError("This is an EAGLE-1 or EAGLE-2 head (fc over embedding and one feature, no hidden_norm); "
                         "an EAGLE-3 head is needed.")
    raise ValueError(f"No known drafter layout has these tensors: {', '.join(sorted(shapes)[:8])} ...\n"
                     "An EAGLE-3 head has midlayer.* (or layers.0.hidden_norm), fc, norm and lm_head.")


def head_config(config: Mapping[str, Any], shapes: Shapes, target: TargetShape,
                overrides: HeadOverrides) -> HeadConfig:
    """Sizes from tensors, meanings from the layout.  shapes: plain names -> shapes."""
    layout = detect(config, shapes)
    inner = config.get("transformer_layer_config") or config
    named = {our_name(name, layout): tuple(shape) for name, shape in shapes.items()}
    for name in ("fc.weight", "midlayer.self_attn.q_proj.weight", "midlayer.self_attn.k_proj.weight",
                 "midlayer.mlp.gate_proj.weight", "lm_head.weight"):
        if name not in named:
            raise ValueError(f"The head has no {name}; every EAGLE-3 head needs one. The file is cut or of another "
                             f"kind (found: {', '.join(sorted(shapes)[:6])} ...).")
        if len(named[name]) != 2:
            raise ValueError(f"{name} has shape {named[name]}; a matrix is needed. The file is damaged.")
    hidden, wide = named["fc.weight"]
    q_rows, q_width = named["midlayer.self_attn.q_proj.weight"]
    if q_width != 2 * hidden:
        raise ValueError(f"q_proj takes {q_width} inputs; embedding and feature of {hidden} each need {2 * hidden}.")
    if wide % target.hidden:
        raise ValueError(f"fc takes {wide} inputs, which is no multiple of the target's hidden size "
                         f"{target.hidden:,}: this head belongs to another target.")
    if inner.get("num_attention_heads") is None:
        raise ValueError("config.json has no num_attention_heads, which no tensor tells.")
    _refuse_unread(config, inner, named)
    heads = int(inner["num_attention_heads"])
    head_dim = q_rows // heads      # configs' head_dim is wrong in several uploads
    features = _feature_layers(config, layout, wide // target.hidden, target, overrides)
    result = HeadConfig(
        hidden_size=hidden, target_hidden_size=target.hidden,
        intermediate_size=named["midlayer.mlp.gate_proj.weight"][0], heads=heads,
        kv_heads=named["midlayer.self_attn.k_proj.weight"][0] // head_dim, head_dim=head_dim,
        vocab_size=target.vocab, draft_vocab_size=named["lm_head.weight"][0], feature_layers=features,
        max_positions=int(inner.get("max_position_embeddings") or 2048), rope=_rope(inner, layout),
        layers=1 + len({name.split(".")[1] for name in named if re.match(r"layers\.\d+\.", name)}),
        rms_eps=float(inner.get("rms_norm_eps", 1e-5)),
        # Only speculators' files mean these: elsewhere the same words stand for something else.  Where the
        # first is missing, vLLM takes true in a speculators config and false in a raw one.
        norm_before_residual=layout == "speculators" and bool(
            config.get("norm_before_residual", "speculators_model_type" in config)),
        norm_output="speculators_model_type" in config and bool(config.get("norm_output", False)),
        norm_before_fc="input_norm.weight" in named, fc_norm="fc_norm.0.weight" in named,
        qk_norm="midlayer.self_attn.q_norm.weight" in named,
        attention_bias="midlayer.self_attn.q_proj.bias" in named, fc_bias="fc.bias" in named,
        window=_window(inner) if layout == "speculators" else None, layout=layout)
    if (stated := inner.get("vocab_size")) not in (None, target.vocab) and result.draft_vocab_size != target.vocab:
        raise ValueError(f"The head was made for a vocabulary of {stated:,} and the target has {target.vocab:,}: "
                         "it belongs to another target.")
    return _overridden(result, overrides)


def _refuse_unread(config: Mapping[str, Any], inner: Mapping[str, Any], named: Shapes) -> None:
    """ValueError for what a config says and this network would silently not do."""
    nested = config.get("eagle_config") or {}
    for flag, tensor in (("norm_before_fc", "input_norm.weight"), ("fc_norm", "fc_norm.0.weight")):
        if (config.get(flag) or nested.get(flag)) and tensor not in named:
            raise ValueError(f"config.json says {flag}, and there is no {tensor}. The file is cut: download it again.")
    for key, known in (("hidden_act", "silu"), ("logit_scale", 1)):
        if inner.get(key, known) not in (known, None):
            raise ValueError(f"The head's {key} is {inner[key]!r}; only {known!r} is supported.")
    if nested.get("use_aux_hidden_state") is False:
        raise ValueError("This head reads the target's last hidden state alone (use_aux_hidden_state is false); "
                         "a head over several layers is needed.")


def _window(config: Mapping[str, Any]) -> int | None:
    """Of a head that was trained with a window over its own cache: with full attention it would collapse."""
    kinds = set(config.get("layer_types") or ["sliding_attention"])
    if not config.get("sliding_window") or not config.get("use_sliding_window", True) or kinds == {"full_attention"}:
        return None
    if kinds != {"sliding_attention"}:
        raise ValueError(f"The head's layers are of several kinds ({', '.join(sorted(kinds))}); one window for all is "
                         "supported.")
    return int(config["sliding_window"])


def _feature_layers(config: Mapping[str, Any], layout: str, count: int, target: TargetShape,
                    overrides: HeadOverrides) -> tuple[int, ...]:
    """Indices into transformers' hidden_states: layer inputs."""
    n = target.layers
    nested = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    outputs = config.get("aux_hidden_states_layer_ids") or nested     # AngelSlim, SpecForge: layer outputs
    inputs = config.get("eagle_aux_hidden_state_layer_ids")           # vLLM, speculators and ours: layer inputs
    found = overrides.feature_layers or inputs or (outputs and [i + 1 for i in outputs]) or (2, n // 2, n - 3)
    layers = tuple(int(i) for i in found)
    if len(layers) != count or len(set(layers)) != count or not all(0 <= i < n for i in layers):
        raise ValueError(f"The head's fc joins {count} features, and the layers {layers} of {n} were found for them. "
                         f"Give {count} different indices below {n}: "
                         "load(..., head=HeadOverrides(feature_layers=...)).")
    return layers


def _rope(config: Mapping[str, Any], layout: str) -> Rope:
    """The base by layout: EAGLE, AngelSlim and SpecPV were trained at 10000 whatever the config says;
    SpecForge since 2025-10-30 and speculators at the config's, 10000 where it has none.  SpecForge heads
    of an earlier date look the same and need HeadOverrides(rope_base=10000.0)."""
    given = _scaling(config)
    kind = given["rope_type"]
    needed = {"linear": ("factor",), "yarn": ("factor", "original_max_position_embeddings"),
              "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor")}
    if missing := [key for key in needed.get(kind, ()) if given.get(key) is None]:
        raise ValueError(f"The head's {kind} rope has no {', '.join(missing)}. Add what it was trained with to "
                         "rope_scaling in config.json.")
    base = float(config.get("rope_theta") or given.get("rope_theta") or 10000.0)
    if layout in ("eagle3", "angelslim", "specpv"):
        base = 10000.0
    original = int(given.get("original_max_position_embeddings") or 2048)
    if kind == "default":
        return Rope(base)
    if kind == "linear":
        return Rope(base, kind, float(given["factor"]))
    if kind == "llama3":
        return Rope(base, kind, float(given["factor"]), original,
                    low_freq_factor=float(given["low_freq_factor"]), high_freq_factor=float(given["high_freq_factor"]))
    if kind == "yarn":
        return Rope(base, kind, float(given["factor"]), original, float(given.get("beta_fast") or 32.0),
                    float(given.get("beta_slow") or 1.0), attention_factor=_attention_factor(given))
    raise ValueError(f"The head's rope type is {kind!r}. Known: default, linear, llama3, yarn.")


def _scaling(config: Mapping[str, Any]) -> dict[str, Any]:
    """rope_scaling, or rope_parameters of transformers v5, with a rope_type in any case."""
    given = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    return given | {"rope_type": given.get("rope_type") or given.get("type") or "default"}


def _attention_factor(given: Mapping[str, Any]) -> float | None:
    """SpecForge's mscale / mscale_all_dim ratio, transformers' attention_factor, or None for YaRN's own."""
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])
    if given.get("mscale") is None or given.get("mscale_all_dim") is None:
        return None

    def scaled(mscale: float) -> float:
        return 0.1 * mscale * math.log(float(given["factor"])) + 1.0

    return scaled(float(given["mscale"])) / scaled(float(given["mscale_all_dim"]))


def _overridden(config: HeadConfig, overrides: HeadOverrides) -> HeadConfig:
    rope = config.rope
    if overrides.yarn is not None:
        factor, original = overrides.yarn
        rope = Rope(rope.base, "yarn", factor, original)
        config = replace(config, max_positions=max(config.max_positions, int(factor * original)))
    if overrides.rope_base is not None:
        rope = replace(rope, base=overrides.rope_base)
    return replace(config, rope=rope, max_positions=overrides.max_positions or config.max_positions,
                   window=overrides.window or config.window)

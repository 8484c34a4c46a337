"""Reads EAGLE-3 checkpoints strictly, and writes them in the official layout, also in bytes, or in speculators'."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longgraft.config.settings import HeadOverrides
from longgraft.files.whole_files import write_weights
from longgraft.yarn_drafters.byte_weights import QUANTIZATION, in_bytes
from longgraft.yarn_drafters.files import folder_of, read_config, read_tensors
from longgraft.yarn_drafters.layouts import (
    TargetShape,
    head_config,
    norm_notice,
    our_name,
    plain_name,
    speculators_name,
)
from longgraft.yarn_drafters.network import Eagle3Network
from longgraft.yarn_drafters.rope import Rope

NO_OVERRIDES = HeadOverrides()


def load_head(
    path: str | Path,
    target: TargetShape,
    overrides: HeadOverrides = NO_OVERRIDES,
    dtype: torch.dtype | None = torch.float32,
    device: torch.device | str = "cpu",
) -> Eagle3Network:
    """Loads an EAGLE-3 head.

    Args:
        path: Folder or hub id.
        target: Shape of the target model that the head must fit.
        overrides: Settings that replace those of config.json.
        dtype: Number type of the weights; None keeps the file's, and takes bfloat16 if it has weights in
            bytes.
        device: Device of the weights.

    Returns:
        The network.  Its embedding is None if the file has none; then the caller shares the target's.

    Raises:
        ValueError: the files are incomplete, damaged or contradictory.
    """
    folder = folder_of(path)
    config = read_config(folder)
    loaded = read_tensors(folder)
    tensors = {plain_name(name): tensor for name, tensor in loaded.items()}
    if len(tensors) < len(loaded):
        raise ValueError(
            f"Drafter {path}: some tensors exist twice, with and without a prefix such as model. Keep one of each."
        )
    try:
        shape = head_config(config, {name: tensor.shape for name, tensor in tensors.items()}, target, overrides)
        tensors = {our_name(name, shape.layout): tensor for name, tensor in tensors.items()}
        has_embedding = "embed_tokens.weight" in tensors
        if not has_embedding and shape.hidden_size != target.hidden:
            raise ValueError(
                f"The head ships no embedding, its hidden size is {shape.hidden_size:,} and the "
                f"target's is {target.hidden:,}: the target's embedding does not fit."
            )
        _vocabulary(tensors, shape.draft_vocab_size, target.vocab)
        with torch.device("meta"):
            network = Eagle3Network(shape, has_embedding)
        check_tensors(network, tensors)
        if dtype is None and config.get("quantization_config"):
            dtype = torch.bfloat16
        cast_tensors = dict(tensors)
        for name, tensor in tensors.items():
            if dtype is not None and tensor.is_floating_point():
                cast_tensors[name] = tensor.to(dtype)
        check_finite(tensors, cast_tensors)
    except ValueError as error:
        raise ValueError(f"Drafter {path}: {error}") from error
    network.load_state_dict(cast_tensors, strict=True, assign=True)
    if overrides.norm_output is None:
        network.notice = norm_notice(config, shape)
    else:
        network.notice = ""
    return network.to(device).eval().requires_grad_(False)


def official_config(network: Eagle3Network) -> dict[str, Any]:
    """Returns config.json in the official EAGLE-3 layout; raises ValueError if that layout cannot describe the head."""
    c = network.config
    if c.norm_before_residual or c.qk_norm or c.layers > 1 or c.window:
        raise ValueError(f"A head of layout {c.layout!r} with these options has no official EAGLE-3 form.")
    if c.norm_output and not (c.fc_norm or c.norm_before_fc):
        raise ValueError(
            "A head that feeds back the normed state and has no norms before fc has no official "
            "EAGLE-3 form: readers of that layout would feed back the state before the norm. "
            "Export it as speculators."
        )
    read_as = Rope(10000.0, c.rope.kind, c.rope.factor, c.rope.original)
    if c.rope != read_as or c.rope.kind not in ("default", "yarn"):
        raise ValueError(
            f"A head with {c.rope} has no official EAGLE-3 form: readers take base 10000, and "
            "of YaRN only factor and original length. Train it so."
        )
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": c.vocab_size,
        "draft_vocab_size": c.draft_vocab_size,
        "hidden_size": c.hidden_size,
        "target_hidden_size": c.target_hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "max_position_embeddings": c.max_positions,
        "rms_norm_eps": c.rms_eps,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "rope_theta": c.rope.base,
        "eagle_aux_hidden_state_layer_ids": list(c.feature_layers),
        "torch_dtype": str(network.fc.weight.dtype).removeprefix("torch."),
    }
    if c.rope.kind == "yarn":
        config["rope_scaling"] = {
            "type": "yarn",
            "rope_type": "yarn",
            "factor": float(c.rope.factor),
            "original_max_position_embeddings": c.rope.original,
        }
    return config | {flag: True for flag in ("norm_before_fc", "fc_norm", "norm_output") if getattr(c, flag)}


def save_head(network: Eagle3Network, folder: str | Path) -> None:
    """Writes config.json and model.safetensors with the keys of `yuhuili/EAGLE3-*`, in the weights' own dtype."""
    write_weights(Path(folder), official_config(network), network.state_dict())


def save_in_bytes(network: Eagle3Network, folder: str | Path) -> None:
    """Writes the official layout with the linear weights as bytes, which takes about half the space.

    Beside a target in blocks, a head's weights are rounded to the same bytes when it is loaded.
    """
    config = official_config(network) | {"torch_dtype": "bfloat16", "quantization_config": dict(QUANTIZATION)}
    write_weights(Path(folder), config, in_bytes(network))


def save_speculators(
    network: Eagle3Network, folder: str | Path, verifier: str, architectures: Sequence[str] = (), positions: int = 0
) -> None:
    """Writes the layout of speculators and vLLM: layers.0 for midlayer, flags and sizes in transformer_layer_config.

    Args:
        network: The head.
        folder: Output folder.
        verifier: Hub id of the target model, which a server loads together with the head.
        architectures: Model classes of the target.
        positions: The target's maximum number of positions.  The larger of this and the head's own maximum is
            written, because a server's rotary tables would otherwise overflow.
    """
    c = network.config
    if c.attention_bias or c.fc_bias:
        raise ValueError("A head with biases has no speculators form.")
    rope: dict[str, Any] = {"rope_type": c.rope.kind, "rope_theta": c.rope.base}
    if c.rope.kind != "default":
        rope["factor"] = float(c.rope.factor)
    if c.rope.kind in ("yarn", "llama3"):
        rope["original_max_position_embeddings"] = c.rope.original
    if c.rope.kind == "yarn":
        rope |= {"beta_fast": c.rope.beta_fast, "beta_slow": c.rope.beta_slow, "attention_factor": c.rope.magnitude}
    if c.rope.kind == "llama3":
        rope |= {"low_freq_factor": c.rope.low_freq_factor, "high_freq_factor": c.rope.high_freq_factor}
    dtype = str(network.fc.weight.dtype).removeprefix("torch.")
    layer: dict[str, Any] = {
        "model_type": "qwen3" if c.qk_norm else "llama",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "max_position_embeddings": max(c.max_positions, positions),
        "rms_norm_eps": c.rms_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rope_parameters": rope,
        "torch_dtype": dtype,
    }
    if c.window:
        layer |= {
            "sliding_window": c.window,
            "use_sliding_window": True,
            "layer_types": ["sliding_attention"] * c.layers,
        }
    config = {
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "architectures": ["Eagle3Speculator"],
        "torch_dtype": dtype,
        "transformer_layer_config": layer,
        "draft_vocab_size": c.draft_vocab_size,
        "target_hidden_size": c.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(c.feature_layers),
        "norm_before_residual": c.norm_before_residual,
        "norm_output": c.norm_output,
        "norm_before_fc": c.norm_before_fc,
        "fc_norm": c.fc_norm,
        "embed_requires_grad": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": verifier, "architectures": list(architectures)},
        },
    }
    write_weights(Path(folder), config, {speculators_name(name): t for name, t in network.state_dict().items()})


def _vocabulary(tensors: dict[str, Tensor], draft: int, target: int) -> None:
    """Checks and completes d2t (offsets) and t2d in place."""
    if "d2t" not in tensors:
        if draft != target:
            raise ValueError(
                f"The head has {draft:,} output rows, no d2t, and the target {target:,} tokens: "
                "there is no map between the vocabularies. Add the d2t that the head was made "
                "with."
            )
        tensors["d2t"] = torch.zeros(draft, dtype=torch.int64)
    d2t = tensors["d2t"]
    member = tensors.get("t2d")
    if d2t.shape != (draft,) or d2t.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"d2t is {_kind(d2t)}; lm_head's {draft:,} rows need as many int64. Cast only the "
            "weights to another dtype, or download the head again."
        )
    d2t = d2t.long()
    ids = d2t + torch.arange(draft)
    absolute = member is not None and bool(torch.equal(d2t, member.nonzero().flatten())) and not torch.equal(ids, d2t)
    if absolute:
        ids = d2t
    first = int(ids.min())
    last = int(ids.max())
    if not bool((ids.diff() > 0).all()) or first < 0 or last >= target:
        raise ValueError(
            f"d2t does not map to ascending target ids below {target:,} (it goes from {first:,} "
            f"to {last:,}): this head belongs to another target, or d2t was never set."
        )
    if member is not None and (member.shape != (target,) or not torch.equal(member.nonzero().flatten(), ids)):
        raise ValueError(
            f"t2d, {_kind(member)}, and d2t name different tokens, or another vocabulary than "
            f"the target's {target:,}: this head belongs to another target, or one of them was "
            "never set."
        )
    tensors["d2t"] = ids - torch.arange(draft)
    tensors["t2d"] = torch.zeros(target, dtype=torch.bool).scatter(0, ids, True)


def check_tensors(network: nn.Module, tensors: dict[str, Tensor], kind: str = "an EAGLE-3 head") -> None:
    """Raises ValueError unless the tensors' names, shapes and kinds of numbers are exactly the network's."""
    wanted = network.state_dict()
    missing = sorted(set(wanted) - set(tensors))
    unknown = sorted(set(tensors) - set(wanted))
    if missing or unknown:
        raise ValueError(
            f"the weights do not fit {kind}: missing {', '.join(missing) or 'nothing'}; unknown "
            f"{', '.join(unknown) or 'nothing'}. The file is cut or of another kind: download "
            "it again."
        )
    for name, tensor in wanted.items():
        named = tensors[name]
        if named.shape != tensor.shape or named.is_floating_point() != tensor.is_floating_point():
            raise ValueError(
                f"{name} is {_kind(named)}; {_kind(tensor)} is needed. The file is damaged or "
                "of another kind: download it again."
            )


def check_finite(tensors: dict[str, Tensor], cast_tensors: dict[str, Tensor]) -> None:
    """Raises ValueError if tensors hold NaN or infinity, in the file or after conversion to our dtype."""
    broken = [name for name, tensor in cast_tensors.items() if not bool(tensor.isfinite().all())]
    if not broken:
        return
    if all(bool(tensors[name].isfinite().all()) for name in broken):
        raise ValueError(
            f"{', '.join(broken)}: values too large for {cast_tensors[broken[0]].dtype}. Use bfloat16 or float32."
        )
    raise ValueError(
        f"NaN or infinite weights in {', '.join(broken)}. The file is damaged, or its training diverged: use another."
    )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"

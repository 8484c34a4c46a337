"""Toy models with random float32 weights, run on one thread.  Tests compare their answers, which mean nothing."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import torch

from longgraft.kernels.cpu import CpuKernels
from longgraft.protocol.observation import Wants
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Report, Segment
from longgraft.yarn_drafters.network import Eagle3Network, HeadConfig
from longgraft.yarn_drafters.rope import Rope

VOCAB = 96
SMALL = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=None,
)


FAMILIES = {  # configuration; a seed with which greedy answers vary but also repeat; further entries
    "llama": ("LlamaConfig", 9, {}),
    "qwen3": ("Qwen3Config", 4, {"head_dim": 16}),
    "mistral-window": ("MistralConfig", 4, {"sliding_window": 24}),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        6,
        {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    "qwen2": ("Qwen2Config", 5, {}),
    # With tied embeddings, each token would be the most probable one after itself.
    "gemma2": ("Gemma2Config", 29, {"head_dim": 16, "sliding_window": 24, "tie_word_embeddings": False}),
    "gemma3": ("Gemma3TextConfig", 19, {"head_dim": 16, "sliding_window": 24, "tie_word_embeddings": False}),
}
HYBRID = {  # every other layer is recurrent; there is one family for each of the three kinds of such layers
    "lfm2": (
        "Lfm2Config",
        4,
        {
            "layer_types": ["conv", "full_attention"] * 2,
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": False,
        },
    ),
    "qwen3-next": (
        "Qwen3NextConfig",
        7,
        {
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
    ),
    "granite-4": (
        "GraniteMoeHybridConfig",
        12,
        {
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_d_state": 16,
            "mamba_chunk_size": 16,
            "num_local_experts": 0,
            "shared_intermediate_size": 48,
            "tie_word_embeddings": False,
        },
    ),
}
QUIET = ("self_attn", "conv", "linear_attn", "mamba")  # layers that mix tokens
SHARED: dict[str, torch.nn.Module] = {}  # models that `toy_model` has made


def once(make):
    """Keeps what a function makes for all tests of a process.

    It is made outside inference mode, in which the first test may run: no other test could compute gradients with
    tensors that were made within.
    """
    return cache(torch.inference_mode(False)(make))


@once
def toy_model(family: str = "llama"):
    """Returns a random model with few near ties, few repeats, and loops that a lookup can find.

    Its MLPs have large weights, so that the last token matters most.  The weights of its attention are smaller, so that
    the other tokens matter too.
    """
    import transformers

    torch.set_num_threads(1)
    name, seed, extra = (FAMILIES | HYBRID)[family]
    torch.manual_seed(seed)
    config = getattr(transformers, name)(**SMALL, **extra)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in name and parameter.shape[1] > 1:  # no short convolution
                parameter.mul_(8.0 if any(part in name for part in QUIET) else 25.0)
    SHARED[family] = model
    return model


def hidden_states(model, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns the embeddings and each layer's output, [B, n, H], for ids [B, n], as transformers reports them.

    It runs a copy, because a model that reported them once keeps transformers' hooks (`output_capturing.py`).
    """
    return deepcopy(model)(ids, output_hidden_states=True).hidden_states


@once
def toy_network(seed: int = 0, **more: bool) -> Eagle3Network:
    """Returns a random EAGLE-3 head for `toy_model`, with half the vocabulary.  more: options of `HeadConfig`"""
    torch.manual_seed(seed)
    config = HeadConfig(
        hidden_size=32,
        target_hidden_size=32,
        intermediate_size=48,
        heads=4,
        kv_heads=2,
        head_dim=8,
        vocab_size=VOCAB,
        draft_vocab_size=VOCAB // 2,
        feature_layers=(1, 2, 3),
        max_positions=512,
        rope=Rope(kind="yarn", factor=4.0, original=128),
        **more,
    )
    network = Eagle3Network(config, own_embedding=True).eval()
    ids = torch.arange(0, VOCAB, 2)
    network.d2t.copy_(ids - torch.arange(len(ids)))
    network.t2d[ids] = True
    return network


def toy_target(family: str = "llama", attention: str = "auto", kernels: CpuKernels | None = None) -> Target:
    return Target(toy_model(family), family, attention, kernels)


@once
def small_model(vocab: int, seed: int = 0, layers: int = 2) -> Target:
    """Returns a small random Llama with large weights, so that its answers vary."""
    import transformers

    torch.manual_seed(100 + seed)
    config = transformers.LlamaConfig(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in name:
                parameter.mul_(15.0)
    return Target(model.eval(), "small")


def read(target: Target, segment: Segment, wants: Wants = Wants()) -> Report:  # noqa: B008 - frozen
    """Runs one pass over one segment and returns its report."""
    (report,) = target.run([segment], wants)
    return report

"""Every causal family of the installed transformers is decoded exactly, or refused before a weight is read.

Exact means that the reports of a tree pass and of the prompt's chunks equal the model's own forward over each path.
The models have tiny random weights, and windows so small that they matter.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toys.configurations import VOCAB, random_model, tiny
from toys.models import read
from toys.trees import path_to, random_tree
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from longgraft.prefill.chunked import chunk_size
from longgraft.protocol.observation import Wants
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.target_model.supported import why_not
from longgraft.trees.tree import ProposalTree

PROMPT = 40
UNBUILT = {"gemma3n": "requires the timm library"}  # families that transformers cannot build here, and its error


def variants(family: str) -> list[PretrainedConfig]:
    """Returns the usual configuration and, if possible, one with and without a window in turn and with shared keys."""
    usual = tiny(CONFIG_MAPPING[family])
    fields = set(type(usual).__dataclass_fields__)
    kinds = set(getattr(usual, "layer_types", None) or ())
    if why_not(usual) or not fields >= {"layer_types", "sliding_window"} or any("hybrid" in kind for kind in kinds):
        return [usual]
    more = {"num_kv_shared_layers": 2} if "num_kv_shared_layers" in fields else {}
    return [usual, tiny(type(usual), layer_types=["sliding_attention", "full_attention"] * 3, **more)]


def forward(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Returns the model's own logits [n, V]."""
    with torch.no_grad():
        return model(
            input_ids=ids[None], attention_mask=torch.ones(1, len(ids), dtype=torch.int64), use_cache=False
        ).logits[0]


def assert_exact(config: PretrainedConfig) -> None:
    """Compares the prompt's top-k, a tree's logits, and the logits after one of its paths was kept."""
    model = random_model(config)
    target, cache = Target(model), Target(model).cache(128)
    assert chunk_size(target, Wants()) >= 16
    tree, best = random_tree(16, 1), []
    prompt = torch.randint(3, VOCAB - 1, (PROMPT,), generator=torch.Generator().manual_seed(3))
    for chunk in prompt.split(17):
        best.append(read(target, Segment(ProposalTree.chain(chunk), cache, "none"), Wants(topk=4)).topk)
        cache.keep(torch.arange(len(chunk)))
    logits = read(target, Segment(tree, cache)).logits
    for leaf in set(range(len(tree))) - set(tree.parents.tolist()):
        path = path_to(tree, leaf)
        expected = forward(model, torch.cat([prompt, tree.tokens[path]]))
        torch.testing.assert_close(logits[path], expected[PROMPT:], atol=1e-3, rtol=1e-3)
    own = expected[:PROMPT]
    torch.testing.assert_close(own.gather(1, torch.cat(best).long()), own.topk(4).values, atol=1e-3, rtol=1e-3)
    cache.keep(torch.tensor(path))
    after = read(target, Segment(ProposalTree.chain(prompt[:3]), cache, "last")).logits[-1]
    expected = forward(model, torch.cat([prompt, tree.tokens[path], prompt[:3]]))[-1]
    torch.testing.assert_close(after, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "family, more",
    [
        ("llama", {}),
        ("qwen2", {"use_sliding_window": False}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("qwen3_moe", {}),
        ("mistral", {}),
        ("mistral", {"sliding_window": None}),
        ("gemma2", {}),
        ("gemma3_text", {}),
        ("gemma3", {}),
        ("qwen2_moe", {}),
        ("phimoe", {}),  # these two mask by windows that their layers do not pass on
        # recurrent states (Jamba's cannot continue with several tokens); latents; sinks
        ("lfm2_moe", {}),
        ("qwen3_next", {}),
        ("granitemoehybrid", {}),
        ("jamba", {}),
        ("mamba2", {}),
        ("deepseek_v3", {}),
        ("gpt_oss", {}),
        ("mimo_v2_flash", {}),
    ],
)
def test_the_families_of_the_readme_are_exact(family, more):
    config = tiny(CONFIG_MAPPING[family], **more)
    assert why_not(config) == ""
    assert_exact(config)


LIMITED = {  # transformers limits a Mamba 2 module's time step in its code for several tokens but not for one
    "granitemoehybrid": {"time_step_limit": (0.3, 0.6)},
    "nemotron_h": {"time_step_min": 0.3},
    "zamba2": {"time_step_min": 0.3},
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "family",
    [
        "bamba",
        "falcon_h1",
        "falcon_mamba",
        "granitemoehybrid",
        "jamba",
        "kimi_linear",
        "lfm2",
        "lfm2_moe",
        "mamba",
        "mamba2",
        "nemotron_h",
        "olmo_hybrid",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "zamba",
        "zamba2",
    ],
)
def test_hybrids_read_chunks_of_any_size_as_the_models_own_forward(family):
    model = random_model(tiny(CONFIG_MAPPING[family], **LIMITED.get(family, {})))
    prompt = torch.randint(3, VOCAB - 1, (PROMPT,), generator=torch.Generator().manual_seed(3))
    expected = forward(model, prompt)
    for size in (1, 7, PROMPT):
        target, cache, logits = Target(model), Target(model).cache(64), []
        for chunk in prompt.split(size):
            logits.append(read(target, Segment(ProposalTree.chain(chunk), cache)).logits)
            cache.keep(torch.arange(len(chunk)))
        torch.testing.assert_close(torch.cat(logits), expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("family", ["deepseek_v3", "kimi_linear", "minicpm3"])
def test_requests_of_latent_attention_share_a_pass(family):
    target, tree = Target(random_model(tiny(CONFIG_MAPPING[family]))), random_tree(16, 1)

    def segments() -> list[Segment]:
        caches = [target.cache(64) for _ in range(2)]
        for cache, length in zip(caches, (9, 30), strict=True):
            read(target, Segment(ProposalTree.chain(torch.arange(3, 3 + length)), cache, "none"))
            cache.keep(torch.arange(length))
        return [Segment(tree, caches[0]), Segment(ProposalTree.chain(torch.arange(30, 35)), caches[1])]

    for shared, alone in zip(target.forward(segments(), Wants()), segments(), strict=True):
        torch.testing.assert_close(shared.logits, read(target, alone).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "gemma3_text",
        "gpt_oss",
        "qwen3_moe",
        "mellum",
        "lfm2",
        "lfm2_moe",
        "qwen3_5_text",
        "qwen3_next",
        "granitemoehybrid",
        "deepseek_v2",
        "deepseek_v3",
        "glm4_moe_lite",
        "kimi_linear",
        "minicpm3",
    ],
)
def test_a_cache_takes_the_bytes_that_its_configuration_says(family):
    """`doctor` and the prefix cache compute with them."""
    target = Target(random_model(tiny(CONFIG_MAPPING[family])))
    cache = target.cache(64)
    read(target, Segment(ProposalTree.chain(torch.arange(3, 9)), cache))
    assert cache.bytes() == cache.capacity * target.cache_bytes_per_token()


def test_the_first_prompt_does_not_decide_how_jamba_reads():
    """Its code for several tokens forgets the state before them, which a prompt of zeros cannot show."""
    model = random_model(tiny(CONFIG_MAPPING["jamba"]))
    model.get_input_embeddings().weight.data[5] = 0
    target = Target(model)
    for prompt in torch.full((12,), 5), torch.arange(20, 32):
        cache = target.cache(64)
        for chunk in prompt.split(6):
            logits = read(target, Segment(ProposalTree.chain(chunk), cache)).logits
            cache.keep(torch.arange(len(chunk)))
    torch.testing.assert_close(logits, forward(model, prompt)[6:], atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("llama", {}),
        ("cohere", {"logit_scale": 0.25}),
        ("granite", {"logits_scaling": 4.0}),
        ("gemma2", {"final_logit_softcapping": 2.0}),
    ],
)
def test_logits_of_final_states_are_scaled_as_in_the_family(family, more):
    model, ids = random_model(tiny(CONFIG_MAPPING[family], **more)), torch.arange(3, 9)
    with torch.no_grad():
        states = model.get_decoder()(ids[None], use_cache=False).last_hidden_state[0]
        torch.testing.assert_close(Target(model).logits(states), forward(model, ids))


@pytest.mark.parametrize(
    "family",
    [
        "cohere2",
        "deepseek_v3",
        "gemma2",
        "gemma3",
        "glm4",
        "gpt2",
        "gpt_neox",
        "gpt_oss",
        "granite",
        "lfm2",
        "llama",
        "mistral",
        "mixtral",
        "olmo3",
        "qwen3_next",
        "phi3",
        "phimoe",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "stablelm",
        "starcoder2",
    ],
)
def test_exact_families_are_not_refused_with_their_default_configuration(family):
    assert why_not(CONFIG_MAPPING[family]()) == ""


@pytest.mark.slow
@pytest.mark.parametrize("family", MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
def test_every_causal_family_is_exact_or_refused_for_a_reason(family):
    if family in UNBUILT:
        with pytest.raises(ImportError, match=UNBUILT[family]):
            random_model(tiny(CONFIG_MAPPING[family]))
        return
    for config in variants(family):
        if not why_not(config):
            assert_exact(config)


def test_layers_whose_input_has_several_streams_are_not_read():
    model = random_model(next(iter(variants("gemma3n_text"))))
    target = Target(model)
    segment = Segment(ProposalTree.root_only(3), target.cache(16))
    assert target.forward([segment], Wants(final=True))[0].final.shape == (1, target.config.hidden_size)
    with pytest.raises(ValueError, match=r"the input of layer 1 is \[.*Use a method that reads no layers"):
        target.forward([segment], Wants(layers=(1,)))

"""EAGLE-3.1 heads: a norm for each feature, and the normed state for the next level, as every producer writes them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from toys.training import DRAFTER, files_of_a_toy_run

from longgraft import load
from longgraft.config.settings import HeadOverrides
from longgraft.yarn_drafters.checkpoint import load_head, save_head, save_speculators
from longgraft.yarn_drafters.layouts import TargetShape
from longgraft.yarn_drafters.network import Eagle3Network, HeadConfig
from longgraft.yarn_drafters.training.drafter import DrafterTrainer

TARGET = TargetShape(layers=12, hidden=32, vocab=64)
SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "rms_norm_eps": 1e-5,
    "draft_vocab_size": 64,
    "max_position_embeddings": 2048,
}
RAW = SIZES | {"architectures": ["LlamaForCausalLMEagle3"]}
BOTH = {"fc_norm": True, "norm_output": True}


def network(own_embedding=False, **more) -> Eagle3Network:
    """Returns a head in which every norm has weights of its own."""
    torch.manual_seed(0)
    made = Eagle3Network(HeadConfig(32, 32, 48, 4, 2, 8, 64, 64, (2, 6, 9), 2048, **more), own_embedding).eval()
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim == 1:
                weight.uniform_(0.5, 2.0)
    made.t2d.fill_(True)
    return made


def written(folder, config, made, prefix="", renamed=("", "")):
    """Writes a head's tensors under a producer's names."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {prefix + name.replace(*renamed, 1): tensor.contiguous() for name, tensor in made.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def two_levels(head: Eagle3Network) -> torch.Tensor:
    """Returns the logits of a head's second level."""
    head.share_embedding(torch.nn.Embedding.from_pretrained(torch.linspace(-1, 1, 64 * 32).view(64, 32).sin()))
    features, tokens = torch.linspace(-3, 5, 3 * 96).view(1, 3, 96).cos(), torch.arange(3)[None]
    state = head.fuse(features)
    for _ in range(2):
        state = head(state, tokens, head.cos_sin(tokens), lambda _, q, k, v: q)
    return head.logits(state)


def by_the_paper(made: Eagle3Network, norm_output: bool) -> torch.Tensor:
    """Returns the same logits by the formulas of arXiv 2605.09992, from the parts of a head without these options."""
    plain = network()
    plain.load_state_dict({name: t for name, t in made.state_dict().items() if "fc_norm" not in name}, strict=False)
    plain.share_embedding(torch.nn.Embedding.from_pretrained(torch.linspace(-1, 1, 64 * 32).view(64, 32).sin()))
    features, tokens = torch.linspace(-3, 5, 3 * 96).view(1, 3, 96).cos(), torch.arange(3)[None]
    parts = [
        part / (part.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
        for part, norm in zip(features.split(32, -1), made.fc_norm, strict=True)
    ]
    state = plain(plain.fc(torch.cat(parts, -1)), tokens, plain.cos_sin(tokens), lambda _, q, k, v: q)
    state = plain(plain.norm(state) if norm_output else state, tokens, plain.cos_sin(tokens), lambda _, q, k, v: q)
    return plain.lm_head(plain.norm(state))


PRODUCERS = {
    "SpecForge since 2026-09": (RAW | BOTH, "", ("", "")),
    "NeMo Automodel": (RAW | BOTH, "model.", ("", "")),
    "vLLM": (RAW | BOTH, "", ("midlayer.", "layers.0.")),
    "TensorRT-LLM": (RAW | {"fc_norm": True, "eagle_config": {"return_hidden_post_norm": True}}, "", ("", "")),
    "speculators": (
        {
            "speculators_model_type": "eagle3",
            "architectures": ["Eagle3Speculator"],
            "draft_vocab_size": 64,
            "transformer_layer_config": SIZES,
            "norm_before_residual": False,
            **BOTH,
        },
        "",
        ("midlayer.", "layers.0."),
    ),
}


@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_head_of_each_producer_computes_what_the_paper_says(producer, tmp_path):
    config, prefix, renamed = PRODUCERS[producer]
    made = network(**BOTH)
    loaded = load_head(written(tmp_path / "head", config, made, prefix, renamed), TARGET)
    assert (loaded.config.fc_norm, loaded.config.norm_output) == (True, True)
    torch.testing.assert_close(two_levels(loaded), by_the_paper(made, True))


@pytest.mark.parametrize(
    "more, override, normed, said",
    [
        (BOTH, None, True, "HeadOverrides(norm_output=False)"),
        (BOTH, False, False, ""),
        ({"fc_norm": True}, None, False, ""),
        ({"norm_output": True}, None, False, "HeadOverrides(norm_output=True)"),
        ({"norm_output": True}, True, True, ""),
        ({"norm_before_fc": True, "norm_output": True}, None, True, "norms before"),
    ],
)
def test_norm_output_of_a_raw_layout_is_read_by_the_norms_beside_it_and_said(more, override, normed, said, tmp_path):
    made = network(**{name: value for name, value in more.items() if name != "norm_output"})
    loaded = load_head(written(tmp_path / "head", RAW | more, made), TARGET, HeadOverrides(norm_output=override))
    assert loaded.config.norm_output == normed and (said in loaded.notice if said else not loaded.notice)
    if made.fc_norm:
        torch.testing.assert_close(two_levels(loaded), by_the_paper(made, normed))


def test_a_head_without_norms_is_read_as_vllm_reads_its_layout(tmp_path):
    named = written(tmp_path / "head", RAW | {"norm_output": True}, network(), renamed=("midlayer.", "layers.0."))
    assert load_head(named, TARGET).config.norm_output


@pytest.mark.parametrize("save", [save_head, lambda head, folder: save_speculators(head, folder, "x/y")])
def test_an_exported_head_gives_the_same_second_level(save, tmp_path):
    made = network(True, **BOTH)
    save(made, tmp_path / "out")
    loaded = load_head(tmp_path / "out", TARGET)
    assert torch.equal(two_levels(loaded), two_levels(made))
    assert json.loads((tmp_path / "out" / "config.json").read_text()).items() >= BOTH.items()
    assert {"fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"} < set(
        load_file(tmp_path / "out" / "model.safetensors")
    )


def test_a_head_that_other_readers_would_misread_is_not_written_in_the_official_layout(tmp_path):
    with pytest.raises(ValueError, match="Export it as speculators"):
        save_head(network(norm_output=True), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_trained_head_has_norms_of_its_own_and_says_so(tmp_path):
    target, text = files_of_a_toy_run(tmp_path)
    DrafterTrainer.train(replace(DRAFTER, total_tokens=256, adam_lr=0.1, **BOTH), target, [text], [], tmp_path / "out")
    head = tmp_path / "out" / "head"
    assert json.loads((head / "config.json").read_text()).items() >= BOTH.items()
    norms = [tensor for name, tensor in load_file(head / "model.safetensors").items() if "fc_norm" in name]
    assert len(norms) == 3 and not any(torch.equal(norm, torch.ones_like(norm)) for norm in norms)
    session = load(str(target), head, tell=False, method="eagle3", device="cpu")
    assert any("HeadOverrides(norm_output=False)" in line for line in session.about)


def test_a_head_with_norms_of_both_kinds_is_refused(tmp_path):
    made = network(fc_norm=True, norm_before_fc=True)
    with pytest.raises(ValueError, match="input_norm and fc_norm"):
        load_head(written(tmp_path / "head", RAW | BOTH, made), TARGET)

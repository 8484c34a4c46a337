"""Every public EAGLE-3 layout loads as what it is, strictly, and nothing else loads at all."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from longgraft.settings import HeadOverrides
from longgraft.yarn_drafters.checkpoint import load_head, save_head, save_speculators
from longgraft.yarn_drafters.known_heads import find_head, known_targets
from longgraft.yarn_drafters.layouts import TargetShape
from longgraft.yarn_drafters.network import Eagle3Network, HeadConfig
from longgraft.yarn_drafters.rope import Rope

TARGET = TargetShape(layers=12, hidden=32, vocab=64)
BASE = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "rms_norm_eps": 1e-5,
        "draft_vocab_size": 24, "max_position_embeddings": 2048}


def network(own_embedding=False, **more) -> Eagle3Network:
    torch.manual_seed(0)
    config = HeadConfig(32, 32, 48, 4, 2, 8, 64, 24, (2, 6, 9), 2048, **more)
    made = Eagle3Network(config, own_embedding)
    ids = torch.arange(1, 49, 2)
    made.d2t.copy_(ids - torch.arange(24))
    made.t2d[ids] = True
    return made


def write(folder, config, tensors, binary=False):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if binary:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder


def test_eagle_s_own_layout_uses_base_10000_whatever_the_config_says(tmp_path):
    config = BASE | {"architectures": ["LlamaForCausalLM"], "rope_theta": 500000.0}
    loaded = load_head(write(tmp_path, config, network().state_dict(), binary=True), TARGET)
    assert loaded.config.layout == "eagle3" and loaded.config.rope == Rope(10000.0)
    assert loaded.config.feature_layers == (2, 6, 9) and loaded.embed_tokens is None
    assert torch.equal(loaded.fc.weight, network().fc.weight)


def test_angelslim_s_ids_are_layer_outputs_and_its_head_dim_is_wrong(tmp_path):
    config = BASE | {"architectures": ["Eagle3LlamaForCausalLM"], "aux_hidden_states_layer_ids": [1, 4, 8],
                     "rope_theta": 1e6, "head_dim": 80, "tie_word_embeddings": True}
    loaded = load_head(write(tmp_path, config, network(own_embedding=True).state_dict()), TARGET)
    assert loaded.config.layout == "angelslim" and loaded.config.feature_layers == (2, 5, 9)
    assert loaded.config.rope.base == 10000.0 and loaded.config.head_dim == 8
    assert loaded.embed_tokens is not None


def test_specforge_s_ids_are_layer_outputs_and_prefixes_are_stripped(tmp_path):
    config = BASE | {"architectures": ["LlamaForCausalLMEagle3"], "rope_theta": 1e6, "norm_output": True,
                     "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]}}
    tensors = {f"draft_model.{name}": tensor for name, tensor in network().state_dict().items()}
    loaded = load_head(write(tmp_path, config, tensors), TARGET)
    assert loaded.config.feature_layers == (2, 6, 9) and loaded.config.rope.base == 1e6
    assert not loaded.config.norm_output        # the word means something else there


def test_specpv_s_yarn_is_read_and_its_base_is_10000(tmp_path):
    scaling = {"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048}
    config = BASE | {"architectures": ["LlamaForCausalLMEagle3"], "rope_theta": 1e6, "rope_scaling": scaling,
                     "max_position_embeddings": 65536}
    loaded = load_head(write(tmp_path, config, network().state_dict()), TARGET)
    assert loaded.config.layout == "specpv" and loaded.config.max_positions == 65536
    assert loaded.config.rope == Rope(10000.0, "yarn", 32.0, 2048)


def test_speculators_options_are_honoured(tmp_path):
    made = network(True, norm_before_residual=True, norm_before_fc=True, qk_norm=True, norm_output=True)
    tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in made.state_dict().items()}
    config = {"speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"], "draft_vocab_size": 24,
              "transformer_layer_config": BASE | {"rope_theta": 1e6}, "norm_before_residual": True,
              "norm_output": True, "eagle_aux_hidden_state_layer_ids": [1, 5, 10]}
    c = load_head(write(tmp_path, config, tensors), TARGET).config
    assert c.layout == "speculators" and c.feature_layers == (1, 5, 10) and c.rope.base == 1e6
    assert c.norm_before_residual and c.norm_before_fc and c.qk_norm and c.norm_output


def test_saving_and_loading_give_the_same_logits(tmp_path):
    made = network(rope=Rope(kind="yarn", factor=8.0, original=256)).eval()
    save_head(made, tmp_path)
    loaded = load_head(tmp_path, TARGET)
    hidden, tokens = torch.randn(1, 5, 32), torch.arange(5)[None]
    embedding = torch.nn.Embedding(64, 32)
    outs = []
    for head in (made, loaded):
        head.share_embedding(embedding)
        outs.append(head.logits(head(hidden, tokens, tokens, lambda _, q, k, v: q)))
    assert torch.equal(*outs) and loaded.config.rope == made.config.rope
    assert loaded.config.feature_layers == (2, 6, 9)


def test_overrides_win(tmp_path):
    save_head(network(), tmp_path)
    config = load_head(tmp_path, TARGET, HeadOverrides(5e5, (16.0, 4096), (3, 7, 9), 32768)).config
    assert config.rope == Rope(5e5, "yarn", 16.0, 4096) and config.feature_layers == (3, 7, 9)
    assert config.max_positions == 32768


def mend(tmp_path, change=None, config=None):
    """A good head with one thing changed."""
    save_head(network(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    if change:
        change(tensors)
    read = json.loads((tmp_path / "config.json").read_text()) | (config or {})
    return write(tmp_path, read, tensors)


@pytest.mark.parametrize("change, said", [
    (lambda t: t.pop("norm.weight"), "missing norm.weight"),
    (lambda t: t.update(extra=torch.zeros(2)), "unknown extra"),
    (lambda t: t.update({"norm.weight": torch.zeros(31)}), "norm.weight is .31,."),
    (lambda t: t.update(d2t=torch.arange(24) * 9), "ascending target ids below 64"),
    (lambda t: t.update(d2t=torch.zeros(24, dtype=torch.int64)), "name different tokens"),
    (lambda t: t.pop("fc.weight"), "has no fc.weight"),
    (lambda t: t.update({"fc.weight": torch.zeros(32, 90)}), "no multiple of the target's hidden size"),
])
def test_what_does_not_fit_is_refused(tmp_path, change, said):
    with pytest.raises(ValueError, match=said):
        load_head(mend(tmp_path, change), TARGET)


def test_an_absolute_d2t_is_recognised(tmp_path):
    ids = torch.arange(1, 49, 2)
    loaded = load_head(mend(tmp_path, lambda t: t.update(d2t=ids.clone())), TARGET)
    assert torch.equal(loaded.target_ids(torch.arange(24)), ids)


def test_other_targets_and_other_drafters_are_refused(tmp_path):
    for target, said in [(TargetShape(12, 32, 128), "another target|another vocabulary"),
                         (TargetShape(5, 32, 64), "Give 3 different indices")]:
        with pytest.raises(ValueError, match=said):
            load_head(mend(tmp_path), target)
    for config, said in [({"architectures": ["DFlashDraftModel"]}, "DFlash"), ({"medusa_num_heads": 4}, "Medusa"),
                         ({"num_nextn_predict_layers": 1}, "multi-token"),
                         ({"speculators_model_type": "dspark"}, "dspark")]:
        with pytest.raises(ValueError, match=said):
            load_head(mend(tmp_path, config=config), TARGET)


def test_the_dflash_drafter_of_the_recorded_outputs_is_refused(golden):
    with pytest.raises(ValueError, match="DFlash"):
        load_head(golden / "models/dflash_rand", TargetShape(8, 128, 512))


@pytest.mark.parametrize("dim", [64, 80, 128])
@pytest.mark.parametrize("kind, more", [
    ("yarn", {"factor": 32.0, "original_max_position_embeddings": 2048}),
    ("yarn", {"factor": 16.0, "original_max_position_embeddings": 4096}),
    ("llama3", {"factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0})])
def test_frequencies_are_those_of_transformers(dim, kind, more):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(hidden_size=4 * dim, num_attention_heads=4, head_dim=dim, max_position_embeddings=65536,
                         rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **more})
    theirs, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    ours = Rope(10000.0, kind, more["factor"], more["original_max_position_embeddings"])
    torch.testing.assert_close(ours.inverse_frequencies(dim), theirs, rtol=1e-6, atol=0)
    assert ours.magnitude == pytest.approx(factor)


def test_the_longest_trained_head_of_a_target_is_found():
    assert find_head("meta-llama/Llama-3.1-8B-Instruct").trained_length == 65536
    assert find_head("models/Qwen3-8B/").head == "TanBaby/EAGLE3-Qwen3-8B-YARN-64K"
    assert find_head("someone/else") is None and "Qwen/Qwen3-32B" in known_targets()


@pytest.mark.parametrize("more", [{}, {"norm_before_fc": True, "window": 512}, {"norm_output": True, "layers": 2},
                                  {"rope": Rope(kind="yarn", factor=8.0, original=256)}, {"qk_norm": True}])
def test_an_exported_speculators_head_says_the_same(tmp_path, more):
    made = network(True, **more).eval()
    save_speculators(made, tmp_path, "Qwen/Qwen3-8B", ["Qwen3ForCausalLM"])
    loaded = load_head(tmp_path, TARGET)
    hidden, tokens = torch.randn(1, 5, 96), torch.arange(5)[None]
    outs = [head.logits(head(head.fuse(hidden), tokens, tokens, lambda _, q, k, v: q)) for head in (made, loaded)]
    torch.testing.assert_close(*outs)
    assert loaded.config.layout == "speculators" and loaded.config.window == made.config.window
    assert loaded.config.feature_layers == made.config.feature_layers
    assert any(name.startswith("layers.0.") for name in load_file(tmp_path / "model.safetensors"))


def test_windows_of_some_layers_only_are_refused(tmp_path):
    save_speculators(network(True, window=512, layers=2), tmp_path, "x/y")
    config = json.loads((tmp_path / "config.json").read_text())
    config["transformer_layer_config"]["layer_types"][1] = "full_attention"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="several kinds"):
        load_head(tmp_path, TARGET)


def test_what_a_missing_norm_before_residual_means(tmp_path):
    """vLLM: true in a speculators config, false in a raw one."""
    made = network(True)
    tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in made.state_dict().items()}
    speculators = {"speculators_model_type": "eagle3", "transformer_layer_config": BASE}
    assert load_head(write(tmp_path / "a", speculators, tensors), TARGET).config.norm_before_residual
    assert not load_head(write(tmp_path / "b", BASE, tensors), TARGET).config.norm_before_residual

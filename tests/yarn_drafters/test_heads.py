"""Every public EAGLE-3 layout loads correctly and strictly, and nothing else loads at all."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from longgraft.cli.train import export
from longgraft.config.settings import HeadOverrides
from longgraft.yarn_drafters.checkpoint import load_head, save_head, save_speculators
from longgraft.yarn_drafters.known_heads import find_head, known_targets
from longgraft.yarn_drafters.layouts import TargetShape
from longgraft.yarn_drafters.network import Eagle3Network, HeadConfig
from longgraft.yarn_drafters.rope import Rope
from longgraft.yarn_drafters.scaling import rope_of

TARGET = TargetShape(layers=12, hidden=32, vocab=64)
BASE = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "rms_norm_eps": 1e-5,
    "draft_vocab_size": 24,
    "max_position_embeddings": 2048,
}


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


SAID = {"rope_theta": 1e6}  # which only some layouts use
YARN_64K = {"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048}
NORMS = {"norm_before_residual": True, "norm_before_fc": True, "qk_norm": True, "norm_output": True}
LAYOUTS = {  # config, (our prefix, prefix in the file), options of the head, expected configuration
    "eagle3": (
        BASE | SAID | {"architectures": ["LlamaForCausalLM"]},
        ("", ""),
        {},
        {"rope": Rope(10000.0), "feature_layers": (2, 6, 9), "norm_before_residual": False},
    ),
    "angelslim": (
        BASE
        | SAID
        | {
            "architectures": ["Eagle3LlamaForCausalLM"],
            "head_dim": 80,  # a wrong one
            "aux_hidden_states_layer_ids": [1, 4, 8],
            "tie_word_embeddings": True,
        },
        ("", ""),
        {"own_embedding": True},
        {"rope": Rope(10000.0), "feature_layers": (2, 5, 9), "head_dim": 8},
    ),
    "specforge": (
        BASE
        | SAID
        | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "norm_output": True,  # unused key
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]},
        },
        ("", "draft_model."),
        {},
        {"rope": Rope(1e6), "feature_layers": (2, 6, 9), "norm_output": False},
    ),
    "specpv": (
        BASE
        | SAID
        | {"architectures": ["LlamaForCausalLMEagle3"], "rope_scaling": YARN_64K, "max_position_embeddings": 65536},
        ("", ""),
        {},
        {"rope": Rope(10000.0, "yarn", 32.0, 2048), "max_positions": 65536},
    ),
    "speculators": (
        {
            "speculators_model_type": "eagle3",
            "architectures": ["Eagle3Speculator"],
            "draft_vocab_size": 24,
            "transformer_layer_config": BASE | SAID,
            "norm_output": True,
            "eagle_aux_hidden_state_layer_ids": [1, 5, 10],
        },
        ("midlayer.", "layers.0."),
        {"own_embedding": True, **NORMS},
        {"rope": Rope(1e6), "feature_layers": (1, 5, 10), **NORMS},
    ),
}


def test_an_absent_epsilon_is_that_of_the_producers_code(tmp_path):
    assert load_head(mend(tmp_path, config={"rms_norm_eps": None}), TARGET).config.rms_eps == 1e-6


@pytest.mark.parametrize(("layout", "factor"), [("specforge", 0.1 * 0.5 * math.log(32) + 1), ("speculators", None)])
def test_an_mscale_alone_is_read_as_its_producer_reads_it(layout, factor):
    """SpecForge takes 0 for mscale_all_dim; transformers ignores the one without the other."""
    assert rope_of({"rope_scaling": YARN_64K | {"mscale": 0.5}}, layout).attention_factor == factor


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("binary", [False, True])
def test_each_layout_is_read_as_its_authors_meant(tmp_path, layout, binary):
    """Layer ids may be of outputs or inputs, rope bases may be unused, and norms may be missing from the config."""
    config, (old, new), made, read = LAYOUTS[layout]
    tensors = {name.replace(old, new, 1): tensor for name, tensor in network(**made).state_dict().items()}
    loaded = load_head(write(tmp_path, config, tensors, binary), TARGET)
    assert loaded.config.layout == layout and torch.equal(loaded.fc.weight, network(**made).fc.weight)
    assert {name: getattr(loaded.config, name) for name in read} == read
    assert (loaded.embed_tokens is not None) == made.get("own_embedding", False)
    ids = torch.arange(1, 49, 2)
    tensors = {name: ids if name.endswith("d2t") else tensor for name, tensor in tensors.items()}  # absolute
    other = load_head(write(tmp_path / "absolute", config, tensors), TARGET)
    assert torch.equal(other.target_ids(torch.arange(24)), ids) and torch.equal(loaded.target_ids(ids // 2), ids)


@pytest.mark.parametrize(
    ("stated", "rope", "allowed"),
    [(2048, YARN_64K, 65536), (131072, YARN_64K, 131072), (2048, {"type": "linear", "factor": 8.0}, 2048)],
)
def test_a_head_has_the_positions_that_yarn_lengthens_to(tmp_path, stated, rope, allowed):
    config = BASE | SAID | {"max_position_embeddings": stated, "rope_scaling": rope}
    assert load_head(write(tmp_path, config, network().state_dict()), TARGET).config.max_positions == allowed


def test_saving_and_loading_give_the_same_logits(tmp_path):
    made = network(rope=Rope(kind="yarn", factor=8.0, original=256)).eval()
    save_head(made, tmp_path)
    loaded = load_head(tmp_path, TARGET)
    hidden, tokens = torch.randn(1, 5, 32), torch.arange(5)[None]
    embedding = torch.nn.Embedding(64, 32)
    outs = []
    for head in (made, loaded):
        head.share_embedding(embedding)
        outs.append(head.logits(head(hidden, tokens, head.cos_sin(tokens), lambda _, q, k, v: q)))
    assert torch.equal(*outs) and loaded.config.rope == made.config.rope
    assert loaded.config.feature_layers == (2, 6, 9)


def test_overrides_replace_entries_of_the_config(tmp_path):
    save_head(network(), tmp_path)
    config = load_head(tmp_path, TARGET, HeadOverrides(5e5, (16.0, 4096), (3, 7, 9), 32768)).config
    assert config.rope == Rope(5e5, "yarn", 16.0, 4096) and config.feature_layers == (3, 7, 9)
    assert config.max_positions == 32768


def mend(tmp_path, change=None, config=None):
    """Writes a good head with one thing changed, and returns its folder."""
    save_head(network(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    if change:
        change(tensors)
    read = json.loads((tmp_path / "config.json").read_text()) | (config or {})
    return write(tmp_path, read, tensors)


def cast(name, dtype):
    return lambda t: t.update({name: t[name].to(dtype)})


def spoil(name, value):
    return lambda t: t[name].view(-1)[3:4].fill_(value)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda t: t.pop("norm.weight"), "missing norm.weight"),
        (lambda t: t.update(extra=torch.zeros(2)), "unknown extra"),
        (lambda t: t.update({"norm.weight": torch.zeros(31)}), r"norm.weight is float32 \(31,\); float32 \(32,\)"),
        (lambda t: t.update({"model.norm.weight": t["norm.weight"].clone()}), "exist twice"),
        (lambda t: t.update(d2t=torch.arange(24) * 9), "ascending target ids below 64"),
        (lambda t: t.update(d2t=torch.full((24,), 2**63 - 1)), "ascending target ids below 64"),
        (lambda t: t.update(d2t=torch.zeros(24, dtype=torch.int64)), "name different tokens"),
        (lambda t: t["t2d"].logical_not_(), "name different tokens"),
        (lambda t: t.update(t2d=torch.cat([t["t2d"], torch.zeros(1, dtype=torch.bool)])), "name different tokens"),
        (cast("d2t", torch.float32), "d2t is float32 .24,.; lm_head's 24 rows need as many int64"),
        (lambda t: t.update(d2t=t["d2t"][:5].clone()), "d2t is int64 .5,."),
        (lambda t: t.pop("d2t"), "no map between the vocabularies"),
        (lambda t: t.pop("fc.weight"), "has no fc.weight"),
        (lambda t: t.update({"fc.weight": torch.zeros(32, 90)}), "no multiple of the target's hidden size"),
        (lambda t: t.update({"fc.weight": torch.zeros(96)}), "fc.weight has shape .96,.; a matrix"),
        (lambda t: t.update({"lm_head.weight": torch.zeros(0, 32)}), "lm_head.weight has shape .0, 32."),
        (lambda t: t.update({"midlayer.self_attn.q_proj.weight": torch.zeros(32, 32)}), "q_proj takes 32 inputs"),
        (lambda t: t.update({"midlayer.self_attn.k_proj.weight": torch.zeros(20, 64)}), "k_proj has 20 rows"),
        (lambda t: t.update({"midlayer.self_attn.k_proj.weight": torch.zeros(24, 64)}), "k_proj has 24 rows"),
        (cast("midlayer.mlp.up_proj.weight", torch.int64), "up_proj.weight is int64 .*float32 .* is needed"),
        (cast("norm.weight", torch.float8_e4m3fn), "of a kind that no drafter has .*norm.weight"),
        (spoil("fc.weight", float("nan")), "NaN or infinite weights in fc.weight"),
        (spoil("midlayer.mlp.up_proj.weight", float("inf")), "NaN or infinite weights in midlayer.mlp.up_proj.weight"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path, change, said):
    with pytest.raises(ValueError, match=said) as refused:
        load_head(mend(tmp_path, change), TARGET)
    assert str(tmp_path) in str(refused.value)


def test_weights_that_half_precision_cannot_hold_are_refused(tmp_path):
    head = mend(tmp_path, spoil("lm_head.weight", 1e6))
    assert load_head(head, TARGET, dtype=torch.bfloat16).lm_head.weight.max() == 999424
    with pytest.raises(ValueError, match=r"lm_head.weight: values too large for torch.float16. Use bfloat16"):
        load_head(head, TARGET, dtype=torch.float16)


YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    "config, said",
    [
        ({"draft_vocab_size": 25}, "says draft_vocab_size 25, and lm_head has rows: 24"),
        ({"hidden_size": 64}, "says hidden_size 64, and fc has outputs: 32"),
        ({"intermediate_size": 32}, "says intermediate_size 32, and gate_proj has rows: 48"),
        ({"num_key_value_heads": 4}, "says num_key_value_heads 4, and k_proj has heads of 8: 2"),
        ({"num_attention_heads": 2}, "says num_key_value_heads 2, and k_proj has heads of 16: 1"),
        ({"num_attention_heads": 5}, "says 5 attention heads, and q_proj has 32 rows"),
        ({"num_attention_heads": 32}, "heads of one even size"),
        ({"target_hidden_size": 48}, "made for a target of hidden size 48"),
        ({"vocab_size": 65}, "made for a vocabulary of 65"),
        ({"num_attention_heads": 0}, "num_attention_heads of config.json is 0"),
        ({"num_attention_heads": None}, "num_attention_heads of config.json is missing"),
        ({"num_attention_heads": True}, "num_attention_heads of config.json is True; it must be a whole number"),
        ({"draft_vocab_size": "24"}, "draft_vocab_size is '24'"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"max_position_embeddings": -1}, "max_position_embeddings is -1"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0; it must be a number above 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"architectures": [5]}, r"architectures is \[5\]; it must be a list, each text"),
        ({"transformer_layer_config": [1]}, r"transformer_layer_config is \[1\]; it must be a table"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, "x"]}, r"layer_ids is \[1, 2, 'x'\]; it must be"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 40]}, "Give 3 different indices below 12"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 2]}, "Give 3 different indices below 12"),
        ({"rope_scaling": [1]}, r"rope_scaling is \[1\]; it must be a table"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope type is 'dynamic'. Known: default, linear, yarn, llama3"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn rope has no original_max_position_embeddings"),
        ({"rope_scaling": YARN | {"factor": 0.5}}, "factor is 0.5; it must be a number from 1 to 1,048,576"),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 0.5}}, "original_max_position_embeddings is 0.5"),
        ({"rope_scaling": YARN | {"beta_fast": -3}}, "beta_fast is -3"),
        ({"rope_scaling": YARN | {"beta_slow": 0}}, "beta_slow is 0"),
        ({"rope_scaling": YARN | {"mscale": -90.0, "mscale_all_dim": 1.0}}, "scale the head's attention"),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "original_max_position_embeddings": 64,
                    "low_freq_factor": 4.0,
                    "high_freq_factor": 4.0,
                }
            },
            "high_freq_factor 4; the latter",
        ),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"norm_before_fc": True}, "there is no input_norm.weight"),
    ],
)
def test_a_config_that_contradicts_its_tensors_or_itself_is_refused(tmp_path, config, said):
    with pytest.raises(ValueError, match=said) as refused:
        load_head(mend(tmp_path, config=config), TARGET)
    assert str(refused.value).startswith(f"Drafter {tmp_path}: ")


@pytest.mark.parametrize(
    "config, window",
    [
        ({"sliding_window": 4}, 4),
        ({"sliding_window": 4, "layer_types": ["full_attention"]}, None),
        ({"sliding_window": 4, "use_sliding_window": False}, None),
    ],
)
def test_a_speculators_head_has_the_window_of_its_layers(tmp_path, config, window):
    save_speculators(network(True), tmp_path, "x/y")
    read = json.loads((tmp_path / "config.json").read_text())
    read["transformer_layer_config"] |= {"use_sliding_window": True, "layer_types": None} | config
    (tmp_path / "config.json").write_text(json.dumps(read))
    assert load_head(tmp_path, TARGET).config.window == window


def test_a_head_that_is_no_file_of_tensors_alone_is_refused(tmp_path):
    folder = mend(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**tensors, "step": 3}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="does not hold named tensors"):
        load_head(folder, TARGET)


@pytest.mark.parametrize("name", ["owner/head-GGUF", "head.gguf"])
def test_a_drafter_in_gguf_is_refused_before_it_is_looked_for(name):
    with pytest.raises(ValueError, match=f"Drafter {name} is GGUF, which is not read for drafters"):
        load_head(name, TARGET)


@pytest.mark.parametrize(
    "config, said",
    [
        ({"sliding_window": -4}, "sliding_window is -4"),
        ({"sliding_window": 4, "layer_types": 3}, "layer_types is 3"),
        ({"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}, "several kinds"),
        ({"rope_theta": "many"}, "rope_theta is 'many'"),
        ({"rope_theta": 0.5}, "base is 0.5"),
        ({"num_hidden_layers": 3}, "says num_hidden_layers 3"),
        ({"hidden_size": 31}, "says hidden_size 31"),
    ],
)
def test_the_layers_of_a_speculators_config_are_checked_too(tmp_path, config, said):
    save_speculators(network(True), tmp_path, "x/y")
    read = json.loads((tmp_path / "config.json").read_text())
    read["transformer_layer_config"] |= config
    (tmp_path / "config.json").write_text(json.dumps(read))
    with pytest.raises(ValueError, match=said):
        load_head(tmp_path, TARGET)


@pytest.mark.parametrize(
    "config",
    [
        {"head_dim": 80, "tie_word_embeddings": True, "rope_theta": "dead here", "rope_scaling": None},
        {"draft_vocab_size": None, "num_key_value_heads": None, "intermediate_size": None, "hidden_size": None},
        {"sliding_window": None, "use_sliding_window": False, "max_position_embeddings": None, "vocab_size": None},
        {"num_hidden_layers": 40},
        {"num_hidden_layers": 12},
        {"norm_before_residual": None},
    ],
)
def test_entries_that_published_configs_omit_or_have_wrong_come_from_the_tensors(tmp_path, config):
    found = load_head(mend(tmp_path, config=config), TARGET).config
    assert found == load_head(mend(tmp_path, config=BASE), TARGET).config


@pytest.mark.parametrize(
    "key, nothing",
    [
        ("eagle_config", None),
        *product(
            ("num_nextn_predict_layers", "medusa_num_heads", "dflash_config", "speculators_model_type"),
            (None, 0, False, {}, ""),
        ),
    ],
)
def test_a_key_of_another_kind_without_a_value_counts_as_absent(tmp_path, key, nothing):
    unread = {"norm_output": True}  # has no meaning in EAGLE-3's files without norms before fc
    found = load_head(mend(tmp_path, config=unread | {key: nothing}), TARGET).config
    assert found == load_head(mend(tmp_path), TARGET).config and found.layout == "eagle3"


@pytest.mark.parametrize(
    "kind, usual",
    [({"speculators_model_type": "eagle3"}, True), ({}, False), ({"speculators_model_type": None}, False)],
)
def test_norm_before_residual_is_usual_where_a_config_has_a_type_of_speculators(tmp_path, kind, usual):
    save_speculators(network(), tmp_path, "x/y")
    config = json.loads((tmp_path / "config.json").read_text())
    config = {
        key: value for key, value in config.items() if key not in ("speculators_model_type", "norm_before_residual")
    }
    (tmp_path / "config.json").write_text(json.dumps(config | kind))
    found = load_head(tmp_path, TARGET).config
    assert (found.layout, found.norm_before_residual) == ("speculators", usual)


def test_the_layers_of_a_head_of_several_layers_are_compared_with_its_config(tmp_path):
    tensors = network(layers=2).state_dict()
    assert load_head(write(tmp_path, BASE | {"num_hidden_layers": 2}, tensors), TARGET).config.layers == 2
    with pytest.raises(ValueError, match="says num_hidden_layers 3, and the tensors make layers: 2"):
        load_head(write(tmp_path, BASE | {"num_hidden_layers": 3}, tensors), TARGET)


@pytest.mark.parametrize("layers, prefix", [(1, "midlayer."), (1, "layers.0."), (2, "midlayer.")])
def test_a_raw_config_may_repeat_the_number_of_the_target_s_layers(layers, prefix, tmp_path):
    """Trainers make one layer and copy the target's config; AutoModel and ModelOpt call it layers.0."""
    made = network(layers=layers).state_dict()
    tensors = {name.replace("midlayer.", prefix): tensor for name, tensor in made.items()}
    config = BASE | {"num_hidden_layers": TARGET.layers, "eagle_config": {"use_aux_hidden_state": True}}
    assert load_head(write(tmp_path, config, tensors), TARGET).config.layers == layers
    typed = {"speculators_model_type": "eagle3", "transformer_layer_config": config, "draft_vocab_size": 24}
    if prefix == "layers.0.":
        with pytest.raises(ValueError, match="says num_hidden_layers 12, and the tensors make layers: 1"):
            load_head(write(tmp_path, typed, tensors), TARGET)


def cut(size):
    return lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:size])


def replaced(content):
    def change(folder):
        (folder / "model.safetensors").unlink()
        if isinstance(content, bytes):
            (folder / "pytorch_model.bin").write_bytes(content)
        else:
            torch.save(content, folder / "pytorch_model.bin")

    return change


def doubled(folder):
    save_file({"norm.weight": torch.ones(32)}, folder / "other.safetensors")


@pytest.mark.parametrize(
    "change, said",
    [
        (cut(0), "model.safetensors cannot be read: .*Download it again"),
        (cut(500), "model.safetensors cannot be read: .*Download it again"),
        (replaced(b""), "pytorch_model.bin cannot be read"),
        (replaced(b"<html>"), "pytorch_model.bin cannot be read"),
        (replaced(b"version https://git-lfs.github.com/spec/v1\noid sha256:00"), "a Git LFS pointer"),
        (
            replaced({"path": Path("x")}),
            "pytorch_model.bin cannot be read: .*Weights only load failed.*Download it again",
        ),
        (replaced([1]), "does not hold named tensors"),
        (replaced({"a": {"b": 1}}), "does not hold named"),
        (replaced({1: torch.ones(2)}), "quantised, sparse or unnamed.: 1"),
        (replaced({"fc.weight": torch.eye(3).to_sparse()}), "quantised, sparse or unnamed.: fc.weight"),
        (replaced({"fc.weight": torch.ones(3, device="meta")}), "quantised, sparse or unnamed.: fc.weight"),
        (doubled, "other.safetensors holds norm.weight, which another file of the folder holds too"),
        (lambda folder: (folder / "model.safetensors").unlink(), "neither .*safetensors nor pytorch_model.bin"),
        (lambda folder: (folder / "config.json").unlink(), "has no config.json. Give a folder"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda folder: (folder / "config.json").write_bytes(b"\xff{}"), "config.json cannot be read: .* not UTF-8"),
        (lambda folder: (folder / "config.json").write_text("[1]"), r"config.json holds \[1\]; a table is needed"),
        (lambda folder: (folder / "config.json").write_text("[" * 10**5), "config.json is nested too deeply"),
        (lambda folder: (folder / "config.json").write_text("9" * 5000), "config.json is not JSON .*4300 digits"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, change, said):
    save_head(network(), tmp_path)
    change(tmp_path)
    with pytest.raises(ValueError, match=said) as refused:
        load_head(tmp_path, TARGET)
    assert str(tmp_path) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("path", ["", "config.json", "/nowhere", "./nowhere"])
def test_a_path_that_is_not_a_folder_is_refused(path, tmp_path):
    with pytest.raises(ValueError, match=r"is not a folder\. Give a folder"):
        load_head(path, TARGET)


def test_a_target_without_a_size_is_refused():
    from transformers import LlamaConfig

    config = LlamaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=12)
    assert TargetShape.of(config) == TargetShape(12, 32, 64)
    config.vocab_size = 0
    with pytest.raises(ValueError, match=r"target's config.json: vocab is 0; .* Fetch it again\."):
        TargetShape.of(config)


@pytest.mark.parametrize(
    "overrides, said",
    [
        ({"rope_base": float("inf")}, "rope_base is inf"),
        ({"yarn": (0, 2048)}, r"yarn is \[0, 2048\]"),
        ({"yarn": (4.0,)}, r"yarn is \[4.0\]"),
        ({"window": 0}, "window is 0"),
        ({"feature_layers": (-1, 2, 3)}, r"feature_layers is \[-1, 2, 3\]"),
        ({"max_positions": 1.5}, "max_positions is 1.5"),
    ],
)
def test_overrides_of_the_wrong_kind_are_refused(overrides, said):
    with pytest.raises(ValueError, match=said):
        HeadOverrides(**overrides)


def test_other_targets_and_other_drafters_are_refused(tmp_path):
    for target, said in [
        (TargetShape(12, 32, 128), "another target|another vocabulary"),
        (TargetShape(5, 32, 64), "Give 3 different indices"),
    ]:
        with pytest.raises(ValueError, match=said):
            load_head(mend(tmp_path), target)
    for config, said in [
        ({"architectures": ["DFlashDraftModel"]}, "DFlash"),
        ({"medusa_num_heads": 4}, "Medusa"),
        ({"num_nextn_predict_layers": 1}, "multi-token"),
        ({"speculators_model_type": "dspark"}, "dspark"),
    ]:
        with pytest.raises(ValueError, match=said):
            load_head(mend(tmp_path, config=config), TARGET)


@pytest.mark.parametrize("dim", [64, 80, 128])
@pytest.mark.parametrize(
    "kind, more",
    [
        ("yarn", {"factor": 32.0, "original_max_position_embeddings": 2048}),
        ("yarn", {"factor": 16.0, "original_max_position_embeddings": 4096}),
        (
            "llama3",
            {"factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        ),
    ],
)
def test_frequencies_are_those_of_transformers(dim, kind, more):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=4 * dim,
        num_attention_heads=4,
        head_dim=dim,
        max_position_embeddings=65536,
        rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **more},
    )
    theirs, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    ours = Rope(10000.0, kind, more["factor"], more["original_max_position_embeddings"])
    torch.testing.assert_close(ours.inverse_frequencies(dim), theirs, rtol=1e-6, atol=0)
    assert ours.magnitude == pytest.approx(factor)


def test_the_longest_trained_head_of_a_target_is_found():
    assert find_head("meta-llama/Llama-3.1-8B-Instruct").trained_length == 65536
    assert find_head("models/Qwen3-8B/").head == "TanBaby/EAGLE3-Qwen3-8B-YARN-64K"
    assert find_head("someone/else") is None and "Qwen/Qwen3-32B" in known_targets()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"norm_before_fc": True, "window": 512},
        {"norm_output": True, "layers": 2},
        {"rope": Rope(kind="yarn", factor=8.0, original=256)},
        {"qk_norm": True},
    ],
)
def test_an_exported_speculators_head_gives_the_same_logits(tmp_path, more):
    made = network(True, **more).eval()
    save_speculators(made, tmp_path, "Qwen/Qwen3-8B", ["Qwen3ForCausalLM"])
    loaded = load_head(tmp_path, TARGET)
    hidden, tokens = torch.randn(1, 5, 96), torch.arange(5)[None]
    outs = [
        head.logits(head(head.fuse(hidden), tokens, head.cos_sin(tokens), lambda _, q, k, v: q))
        for head in (made, loaded)
    ]
    torch.testing.assert_close(*outs)
    assert loaded.config.layout == "speculators" and loaded.config.window == made.config.window
    assert loaded.config.feature_layers == made.config.feature_layers
    assert any(name.startswith("layers.0.") for name in load_file(tmp_path / "model.safetensors"))


def test_an_export_takes_the_names_that_drafter_takes(tmp_path):
    export("auto", tmp_path / "embedded", layout="eagle3")
    embedded = TargetShape(8, 256, 4096)
    assert load_head(tmp_path / "embedded", embedded).config.max_positions == 65536
    with pytest.raises(ValueError, match="belongs to another target"):
        export("smollm2", tmp_path / "other", "embedded")  # the head that ships for it, and not a folder of this name
    with pytest.raises(ValueError, match=r"No head of .*target is known. Give its folder or hub id"):
        LlamaConfig(vocab_size=64, num_hidden_layers=12).save_pretrained(tmp_path / "target")
        export("auto", tmp_path / "none", str(tmp_path / "target"))


def test_an_export_never_overwrites(tmp_path):
    LlamaConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=12, num_attention_heads=4, intermediate_size=48
    ).save_pretrained(tmp_path / "target")
    save_head(network(), tmp_path / "head")
    (tmp_path / "file").write_text("")
    (tmp_path / "file").chmod(0o755)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for out, said in [
        ("head", "exists already"),
        ("target", "exists already"),
        ("file", "exists already"),
        ("file/in", "cannot be written"),
    ]:
        for layout in ("eagle3", "speculators"):
            with pytest.raises(ValueError, match=said):
                export(tmp_path / "head", tmp_path / out, str(tmp_path / "target"), layout)
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    (tmp_path / "empty").mkdir()
    for out in ("new/deep", "empty"):
        export(tmp_path / "head", tmp_path / out, str(tmp_path / "target"), "speculators")
        assert load_head(tmp_path / out, TARGET).config.layout == "speculators"

"""A target is loaded whole, finite and as its configuration says, or refused in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import Parameter
from torch.testing._internal.two_tensor import TwoTensor
from toys.models import SMALL
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils import logging

import longgraft
from longgraft.runtime.devices import device_of, dtype_of
from longgraft.yarn_drafters.files import folder_of

TOKENIZER = Path(__file__).parents[2] / "yarn_drafters" / "embedded" / "target"
UP, LAST = "model.layers.2.mlp.up_proj.weight", "model.layers.3."


@pytest.fixture
def folder(tmp_path) -> Path:
    """A whole toy model of four layers, with its tokenizer."""
    return save(tmp_path)


def save(folder: Path, **entries) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(**SMALL | {"vocab_size": 4096} | entries)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder)
    return folder


def load(folder: Path, **options):
    return longgraft.load(folder, drafter=None, method="pld", tell=False, **options)


def change(folder: Path, edit) -> None:
    """Applies `edit` to the saved weights."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def declare(folder: Path, **entries) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | entries))


def test_loading_shows_no_progress_bar_and_leaves_that_of_transformers_enabled(folder, capfd):
    logging.enable_progress_bar()
    assert len(load(folder).generate("def", max_new_tokens=4).token_ids) == 4
    assert capfd.readouterr().err == ""
    assert logging.is_progress_bar_enabled()


def test_tied_weights_that_are_saved_once_are_not_missing(tmp_path):
    folder = save(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    assert len(load(folder).generate("def", max_new_tokens=4).token_ids) == 4


def weights(edit):
    return lambda folder: change(folder, edit)


def configuration(**entries):
    return lambda folder: declare(folder, **entries)


def content(of):
    """Returns a damage that replaces the content of the weights' file by of(content)."""
    return lambda folder: (folder / "model.safetensors").write_bytes(of((folder / "model.safetensors").read_bytes()))


def pickled(folder: Path) -> None:
    """Replaces tensors by pickled objects, which must not run."""
    (folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Path("x")}, folder / "pytorch_model.bin")


NOT_LOADED = "^Model '.*' could not be loaded: "
NOT_WHOLE = NOT_LOADED + r"it is no whole safetensors file\.\nGive"
NOT_FINITE = f"holds NaN or infinite numbers in {UP}, read as float32"


@pytest.mark.parametrize(
    "damage, message",
    [
        (weights(lambda tensors: tensors.pop(UP)), f"lack {UP}\\.\n.*fetch both again"),
        (
            weights(lambda tensors: tensors.update({LAST + "self_attn.q_proj.bias": torch.ones(32)})),
            f"hold {LAST}self_attn.q_proj.bias, which",
        ),
        (weights(lambda tensors: tensors[UP].view(-1)[7:8].fill_(float("nan"))), NOT_FINITE),
        (weights(lambda tensors: tensors[UP].view(-1)[7:8].fill_(float("inf"))), NOT_FINITE),
        (configuration(num_hidden_layers=6), r"lack model.layers.4\..* and 15 more"),
        (configuration(num_hidden_layers=2), r"hold model.layers.2\..* and 15 more, which its configuration"),
        (configuration(num_hidden_layers=0), NOT_LOADED + "its num_hidden_layers is 0, and 1 to 1,024 are possible"),
        (configuration(num_hidden_layers=10**9), NOT_LOADED + "its num_hidden_layers is 1,000,000,000, and 1 to"),
        (configuration(text_config={"vocab_size": 0}), NOT_LOADED + "its vocab_size is 0, and 1 to 16,777,216 are"),
        (configuration(intermediate_size=40), r"down_proj.weight is \[32, 48\] in the weights and \[32, 40\] by"),
        (configuration(num_attention_heads=0), NOT_LOADED + "its num_attention_heads is 0, and .*\n.*$"),
        (configuration(num_key_value_heads=0), NOT_LOADED + "its num_key_value_heads is 0, and"),
        (configuration(hidden_act="nope"), NOT_LOADED + ".*'nope' is missing or unknown.*\n.*$"),
        (configuration(hidden_size="a"), NOT_LOADED + ".*Field 'hidden_size' expected int.*\n.*$"),
        (configuration(model_type="nope"), NOT_LOADED + ".*does not recognize this architecture.*\n.*$"),
        (content(lambda whole: b""), NOT_WHOLE),
        (content(lambda whole: b"hello" * 1000), NOT_WHOLE),
        (content(lambda whole: whole[:9000]), NOT_WHOLE),
        (pickled, NOT_LOADED + r"UnpicklingError: Weights only load failed\.\n"),
    ],
)
def test_incomplete_or_contradictory_weights_are_refused_by_name(folder, damage, message):
    damage(folder)
    with pytest.raises(ValueError, match=message):
        load(folder)


@pytest.mark.parametrize("name", ["lm_head.bias", "model.norm.bias", "model.embed_tokens.scale"])
def test_a_tensor_that_a_module_outside_of_layers_does_not_take_is_refused(folder, name):
    change(folder, lambda tensors: tensors.update({name: torch.ones(32)}))
    with pytest.raises(ValueError, match=f"the weights hold {name}, which its configuration does not have"):
        load(folder)


def test_a_tensor_beside_the_layers_is_no_contradiction(folder):
    change(folder, lambda tensors: tensors.update({"score.weight": torch.ones(1, 32)}))
    load(folder)


def test_weights_that_float16_cannot_hold_are_refused_and_large_ones_are_not(folder):
    change(folder, lambda tensors: tensors[UP].fill_(3e38))  # their sum overflows, they do not
    load(folder)
    with pytest.raises(ValueError, match=r"infinite numbers in .*, read as float16"):
        load(folder, dtype="float16")


def test_a_gguf_file_beside_whole_weights_is_ignored_and_a_drafter_in_gguf_refused(folder, tmp_path):
    (folder / "m.gguf").write_bytes(b"GGUF")
    load(folder)
    (tmp_path / "only").mkdir()
    (folder / "m.gguf").rename(tmp_path / "only" / "m.gguf")
    for place in ("only", "only/m.gguf", "some/Model-GGUF"):
        with pytest.raises(ValueError, match=r"Drafter .* is GGUF"):
            folder_of(tmp_path / place)


def test_code_that_comes_with_a_model_is_never_run_nor_asked_about(folder):
    declare(folder, model_type="mine", auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"})
    (folder / "code.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    with pytest.raises(ValueError, match="'mine' comes with code of its own, which longgraft never runs") as error:
        load(folder)
    assert "trust" not in str(error.value)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])  # for the latter transformers makes one up
def test_a_model_without_its_tokenizer_is_refused(folder, model_type):
    declare(folder, model_type=model_type)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ValueError, match=r"^The tokenizer of '.*' could not be loaded: .*\n.*holds the tokenizer's"):
        load(folder)


def test_a_loaded_model_is_checked_as_well():
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL)).eval()
    with torch.no_grad():
        model.model.norm.weight[3] = float("nan")
    with pytest.raises(ValueError, match=r"LlamaForCausalLM holds NaN or infinite numbers in model\.norm\.weight"):
        load((model, None))


@pytest.mark.parametrize("whole", [True, False])
def test_quantised_weights_decode_and_are_checked_by_their_parts(whole):
    """torchao's weights are tensors made of tensors; those of bitsandbytes are rows of bytes."""
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL)).eval()
    for layer in model.model.layers[:2]:
        for part in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
            weight = part.weight.detach()
            part.forward = lambda x, weight=weight: torch.nn.functional.linear(x, weight)
            part.weight = Parameter(torch.zeros(7, 1, dtype=torch.uint8), requires_grad=False)
    scales = torch.ones(7, 1)
    scales[3] = 1.0 if whole else float("nan")
    part.weight = Parameter(TwoTensor(torch.ones(7, 1), scales), requires_grad=False)
    if whole:
        ids = [5, 9, 5, 9, 5]
        assert longgraft.load((model, None), method="pld").generate(ids, 8).token_ids == greedy_ids(model, ids, 8)
    else:
        with pytest.raises(ValueError, match=r"numbers in model\.layers\.1\.mlp\.down_proj\.weight\.b"):
            load((model, None))


def greedy_ids(model, ids: list[int], new: int) -> list[int]:
    for _ in range(new):
        with torch.no_grad():
            ids = [*ids, int(model(torch.tensor([ids])).logits[0, -1].argmax())]
    return ids[-new:]


@pytest.mark.parametrize(
    "given, message",
    [
        (lambda model: model, "^A LlamaForCausalLM was given as the model. Pass .model, tokenizer., a name of"),
        (lambda model: (model,), "^.LlamaForCausalLM. was given"),
        (lambda model: (None, model), "^.NoneType, Llama"),
        (lambda model: (model.to("meta"), None), "is on the meta device, so it has no weights"),
    ],
)
def test_an_invalid_pair_of_model_and_tokenizer_is_refused_without_printing_it(given, message):
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL)).eval()
    with pytest.raises(ValueError, match=message):
        longgraft.load(given(model), drafter=None, method="pld")


@pytest.mark.parametrize("name", ["", "gpu", "meta", "cpu:1", "cuda:-1", "cuda:99", "vulkan", "xpu"])
def test_missing_devices_are_refused_in_one_sentence_before_anything_is_read(name, tmp_path):
    with pytest.raises(ValueError, match=f"^Device '{name}' (is not usable here|does not exist)"):
        load(tmp_path / "absent", device=name)


def test_devices_and_dtypes_are_found_by_name():
    assert device_of("cpu") == device_of(torch.device("cpu")) == torch.device("cpu")
    assert device_of(None).type in ("cpu", "cuda")
    assert dtype_of("bfloat16") is dtype_of(torch.bfloat16) is torch.bfloat16
    for wrong in ("half", torch.int8):
        with pytest.raises(ValueError, match=r"is unknown\. Known: float32, bfloat16, float16"):
            dtype_of(wrong)


def test_a_hub_that_does_not_answer_is_asked_once_and_its_cache_read(monkeypatch):
    from huggingface_hub import constants

    asked = []

    def read(path, name):
        asked.append(constants.HF_HUB_OFFLINE)
        raise ValueError("not in the cache")

    monkeypatch.setattr("longgraft.models.files.hub_answers", lambda: asked.append("hub"))
    monkeypatch.setattr("longgraft.models.files.read_config", read)
    with pytest.raises(ValueError, match="not in the cache"):
        longgraft.load("somebody/something", None, tell=False)
    assert asked == ["hub", True] and not constants.HF_HUB_OFFLINE

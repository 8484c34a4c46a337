"""A GGUF file loads as the model it was written from, is dequantised once, or is refused in one sentence."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toys.commands import run
from toys.gguf_files import END, SPECIAL, TEMPLATE, TURN, divisor, write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

import longgraft
from longgraft.config.settings import Pair
from longgraft.loading import assemble
from longgraft.models import gguf_files, gguf_floats, gguf_header, gguf_tokenizer
from longgraft.models.files import files_of
from longgraft.models.gguf_tensors import FileTensor, TensorTable

IDS = torch.tensor([[1, 40, 50, 60, 70, 41, 90, 33]])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def file(tmp_path) -> Path:
    write_gguf(tmp_path / "toy.gguf")
    return tmp_path / "toy.gguf"


def load(model, **options):
    return longgraft.load(model, None, tell=False, method="pld", **options)


@pytest.mark.parametrize(("tied", "divided"), [(False, 0), (True, 0), (False, 8.0)])
def test_a_file_loads_as_the_model_it_was_written_from_bit_for_bit(tmp_path, tied, divided):
    """divided: Llama 3's rotary scaling, which transformers drops."""
    written = write_gguf(tmp_path / "toy.gguf", tied, divided=divided)
    target = load(tmp_path / "toy.gguf").target
    assert torch.equal(target.model(IDS).logits, written(IDS).logits)
    assert target.config.tie_word_embeddings == tied and target.max_positions == 512
    folder = files_of(str(tmp_path / "toy.gguf")).with_floats()
    assert torch.equal(AutoModelForCausalLM.from_pretrained(folder)(IDS).logits, written(IDS).logits)


def test_tokenizer_template_and_every_end_token_come_from_the_file(file):
    session = load(file)
    tokenizer = session.tokenizer
    assert session.eos == (END, TURN, SPECIAL.index("<|endoftext|>")) and tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.chat_template == TEMPLATE and tokenizer.convert_tokens_to_ids(list(SPECIAL)) == [0, 1, 2, 3]
    text = "the end\t of 123  “it”<|im_end|>"
    theirs = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    assert tokenizer(text).input_ids == theirs(text).input_ids and tokenizer.decode(tokenizer(text).input_ids) == text
    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.decode(session.encode(chat)) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (
            ("a", "<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_middle|>"),
            [1, 2, 3, 4, 5],
        ),
        (("<|end|>", "b", "<end_of_turn>"), [1, 0, 2]),
        (("<|end|>", "b", "<|return|>", "<|call|>"), [1, 2, 3]),
    ],
)  # gpt-oss: <|end|> ends a part of an answer
def test_ends_of_a_file_follow_the_names_of_its_tokens(tokens, ends):
    def field(value):
        return SimpleNamespace(contents=lambda: value)

    fields = {"tokenizer.ggml.eos_token_id": field(1), "tokenizer.ggml.tokens": field(list(tokens))}
    assert gguf_tokenizer.end_ids(SimpleNamespace(fields=fields)) == ends


def test_a_file_is_dequantised_once_per_dtype_wherever_it_is(file, tmp_path, cache, monkeypatch, capsys):
    first = load(file).generate("the", max_new_tokens=8).token_ids
    assert f"dequantising toy.gguf to float32, once: 0 MB in {cache}" in capsys.readouterr().err
    half = load(file, dtype="bfloat16")
    assert half.target.dtype == torch.bfloat16 and len(list(cache.glob("*-*"))) == 2
    monkeypatch.setattr(gguf_floats, "_write_floats", lambda *_: pytest.fail("a kept model was dequantised again"))
    shutil.copy(file, tmp_path / "copy.gguf")
    assert load(tmp_path / "copy.gguf").generate("the", max_new_tokens=8).token_ids == first
    assert load(file, dtype="float16").target.dtype == torch.float16
    assert len(list(cache.glob("*-*"))) == 2 and not (cache / "partial").exists()


def test_a_file_that_changed_is_another_model(file):
    before = files_of(str(file)).path
    write_gguf(file, tied=True)
    assert files_of(str(file)).path != before


def test_the_model_is_named_as_it_was_given_and_a_calibration_belongs_to_the_file(file):
    loaded = assemble(str(file), None, longgraft.loading.Settings(method="pld"))
    assert loaded.target.name == str(file) and loaded.identity["target"] == "toy.gguf"


def test_a_file_can_be_given_by_its_folder_or_by_the_flag(file, tmp_path):
    place = files_of(str(file)).path
    assert files_of(file.parent).path == place
    write_gguf(tmp_path / "other.gguf", tied=True)
    assert files_of(Pair(str(file.parent), gguf_file="toy.gguf").model).path == place
    with pytest.raises(ValueError, match=r"^.* holds 2 GGUF files: other.gguf, toy.gguf. Give one of them: --mod"):
        files_of(file.parent)
    with pytest.raises(ValueError, match=r"^--gguf-file was given without --model\."):
        Pair(gguf_file="toy.gguf")


def test_a_file_of_a_hub_repository_is_downloaded(file, monkeypatch):
    asked = []
    monkeypatch.setattr(gguf_files, "hub_answers", lambda: True)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *of: asked.append(of) or str(file))
    assert files_of(Pair("owner/repo-GGUF", gguf_file="sub/toy.gguf").model).name == "owner/repo-GGUF/sub/toy.gguf"
    assert asked == [("owner/repo-GGUF", "sub/toy.gguf")]
    with pytest.raises(ValueError, match=r"^Model 'owner/repo-GGUF' is a repository of GGUF files. Give one: --gguf-f"):
        files_of("owner/repo-GGUF")


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


REFUSED = {
    "of no known architecture": (
        lambda path: write_gguf(path, architecture="nope"),
        r"Model '.*' is of the architecture 'nope', and longgraft reads GGUF files of deepseek2, gemma2, ",
    ),
    "with a missing tensor": (
        lambda path: write_gguf(path, without="blk.1.ffn_up.weight"),
        r".*toy.gguf: the weights lack model.layers.1.mlp.up_proj.weight\.",
    ),
    "of a quantisation that cannot be read": (
        lambda path: write_gguf(path, odd="blk.1.ffn_up.weight"),
        r"Model .* could not be loaded: blk.1.ffn_up.weight is Q8_1, which the package gguf does not dequantise\. Give",
    ),
    "cut in its weights": (
        lambda path: [write_gguf(path), cut(path, 90_000)],
        r"GGUF file .* is cut or damaged \(.*\)\. Download it again\.",
    ),
    "cut in its header": (lambda path: [write_gguf(path), cut(path, 500)], r"GGUF file .* is cut or damaged"),
    "that is none": (
        lambda path: path.write_bytes(b"version https://git-lfs" + b"0" * 100),
        r"GGUF file .* is cut or damaged \(it is a Git LFS pointer, without the weights\)\. Download",
    ),
    "in parts": (
        lambda path: write_gguf(path, split__count=3),
        r".* is one of the 3 parts of a split model. Join them by llama.cpp's `llama-gguf-split --merge",
    ),
    "that is a vision projector": (
        lambda path: write_gguf(path, architecture="clip", general__type="mmproj"),
        r".* is a vision projector, no language model\. Give the model's own",
    ),
    "that is an adapter": (lambda path: write_gguf(path, general__type="adapter"), r".* is of type 'adapter', and"),
    "with scaled positions": (
        lambda path: write_gguf(path, llama__rope__scaling__type="yarn"),
        r"Model '.*' has rope scaling 'yarn', which transformers drops from GGUF",
    ),
    "with linearly scaled positions": (
        lambda path: write_gguf(path, llama__rope__scaling__factor=4.0),
        r"Model '.*' has rope scaling 'linear' by 4, which transformers drops",
    ),
    "with linearly scaled positions by an older key": (
        lambda path: write_gguf(path, llama__rope__scale_linear=2.0),
        r"Model '.*' has rope scaling 'linear' by 2, which transfo",
    ),
    "that is big-endian": (
        lambda path: path.write_bytes(b"GGUF\0\0\0\3" + b"\0" * 100),
        r"GGUF file .* is big-endian, and longgraft reads little-endian files\. Convert it by",
    ),
    "of a future version": (
        lambda path: path.write_bytes(b"GGUF\4\0\0\0" + b"\0" * 100),
        r"GGUF file .* is of version 4, and longgraft reads the versions 2 and 3\. Convert",
    ),
    "of the first version": (
        lambda path: path.write_bytes(b"GGUF\1\0\0\0" + b"\0" * 100),
        r"GGUF file .* is of version 1, and longgraft reads the versions 2 and 3\. Convert",
    ),
    "with positions scaled otherwise": (
        lambda path: write_gguf(path, divided=8.0, llama__rope__freq_base=7),
        r"Model '.*' has rope_freqs.weight, which transformers drops from GGUF",
    ),
    "with more layers than tensors": (
        lambda path: write_gguf(path, llama__block_count=41),
        r"GGUF file .* is cut or damaged \(llama.block_count says 41 layers, and there are tensors of 4\)\. Download",
    ),
    "with fewer layers than tensors": (
        lambda path: write_gguf(path, llama__block_count=3),
        r"GGUF file .* is cut or damaged \(llama.block_count says 3 layers, and there are tensors of 4\)\. Download",
    ),
    "without a number of layers": (
        lambda path: write_gguf(path, llama__block_count=[4]),
        r"GGUF file .* is cut or damaged \(llama.block_count says 0 layers, and there are tensors of 4\)",
    ),
    "that is not there": (lambda path: None, r"GGUF file .* does not exist\. Give a file, a folder"),
}


@pytest.mark.parametrize(
    "entries",
    [
        {"llama__rope__scaling__factor": 1.0},
        {"llama__rope__scale_linear": 0.0},
        {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 1.0},
        {"llama__rope__scaling__type": "none", "llama__rope__scaling__factor": 4.0},
    ],
)
def test_positions_that_are_not_scaled_are_read(entries, tmp_path):
    written = write_gguf(tmp_path / "toy.gguf", **entries)
    assert torch.equal(load(tmp_path / "toy.gguf").target.model(IDS).logits, written(IDS).logits)


def test_special_tokens_that_a_file_does_not_have_are_left_out(tmp_path):
    """The id -1, as unsigned number, stands for a token that is absent."""
    written = write_gguf(
        tmp_path / "toy.gguf",
        **{f"tokenizer__ggml__{name}_token_id": 2**32 - 1 for name in ("bos", "eos", "padding", "unknown", "eom")},
    )
    session = load(tmp_path / "toy.gguf")
    assert session.eos == (TURN, SPECIAL.index("<|endoftext|>"), SPECIAL.index("<|im_end|>"))
    tokenizer = session.tokenizer
    assert tokenizer.bos_token is None and tokenizer.pad_token is None and tokenizer.tokenize("the") == ["t", "he"]
    assert torch.equal(session.target.model(IDS).logits, written(IDS).logits)


def test_frequencies_in_float16_are_read_as_in_float32():
    rope = {"rope_type": "default", "rope_theta": 5e5}
    config = LlamaConfig(hidden_size=64, num_attention_heads=1, rope_parameters=rope)
    divisors = np.array([divisor(5e5 ** (n / 32), 8.0) for n in range(32)], np.float16)
    tensor = SimpleNamespace(name="rope_freqs.weight", data=divisors)
    gguf_header.restore_rope(config, SimpleNamespace(tensors=[tensor]), "toy")
    assert (config.rope_parameters["rope_type"], config.rope_parameters["factor"]) == ("llama3", 8.0)


def test_a_special_token_beyond_the_vocabulary_is_left_out_with_a_note(tmp_path, capsys):
    write_gguf(tmp_path / "toy.gguf", tokenizer__ggml__bos_token_id=7_000, tokenizer__ggml__unknown_token_id=2**32 - 1)
    assert load(tmp_path / "toy.gguf").tokenizer.bos_token is None
    notes = re.findall("longgraft: (.*) of toy.gguf is (.*), which is none of its", capsys.readouterr().err)
    assert notes == [("tokenizer.ggml.bos_token_id", "7,000")]


@pytest.mark.parametrize("name", ["sha256-4c27e0f5b5adf02ac956c7322bd2ee7636fe3f45a8512c9aba5385242cb6e09a", "toy.bin"])
def test_a_file_is_known_by_its_content_whatever_its_name(name, file, tmp_path):
    place = files_of(file).path
    (tmp_path / "blobs").mkdir()
    blob = file.rename(tmp_path / "blobs" / name)
    assert files_of(blob).path == place and files_of(blob.parent).path == place
    assert files_of(Pair(str(blob.parent), gguf_file=name).model).path == place
    assert load(blob).generate("the", max_new_tokens=4).token_ids


def test_a_name_of_a_file_may_be_in_capitals(file, tmp_path):
    with pytest.raises(ValueError, match=r"GGUF file .* does not exist"):
        files_of(tmp_path / "NONE.GGUF")
    place = files_of(file).path
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "notes.txt").write_text("none")
    assert files_of(file.rename(folder / "TOY.GGUF").parent).path == place


@pytest.mark.parametrize("name", ["owner/Toy-GGUF", "owner/toy-gguf"])
def test_a_repository_of_files_is_refused_with_the_ways_to_name_one(name):
    with pytest.raises(ValueError, match=f"--gguf-file FILE, or --model {name}/FILE"):
        files_of(name)


def test_a_file_whose_embedding_alone_is_in_blocks_counts_as_floats():
    embedding, norm = FileTensor("token_embd.weight", "Q8_0", (64, 32), 0, 34), FileTensor("a", "F32", (32,), 0, 4)
    matrix = FileTensor("blk.0.ffn_up.weight", "Q8_0", (64, 32), 0, 34)
    assert not TensorTable("llama", (embedding, norm)).in_blocks and TensorTable("llama", (embedding, matrix)).in_blocks
    assert TensorTable("llama", (embedding, norm)).packed_bytes == norm.packed_bytes == 128
    assert 64 * 32 < TensorTable("llama", (embedding, matrix)).packed_bytes < 2 * 64 * 32


def test_a_file_of_another_format_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"^Model '.*model.safetensors' is a file, and not a GGUF file\. Give a"):
        files_of(tmp_path / "model.safetensors")


@pytest.mark.parametrize("what", REFUSED)
def test_a_file_is_refused(what, tmp_path, cache):
    make, said = REFUSED[what]
    make(tmp_path / "toy.gguf")
    with pytest.raises(ValueError, match=f"^{said}") as error:
        files_of(tmp_path / "toy.gguf").with_floats()
    assert str(error.value).count("\n") <= 1
    assert not list(cache.glob("*-*")) and not (cache / "partial").exists()


def test_a_missing_extra_is_explained_in_one_sentence(file, monkeypatch, capsys):
    monkeypatch.setattr(gguf_header.importlib.util, "find_spec", lambda name: None)
    for model in (file, "smollm2"):  # the second is not fetched in vain
        code, _, err = run(capsys, monkeypatch, "doctor", "--model", model)
        assert code == 2 and re.fullmatch(
            r"longgraft: Model .* is GGUF, which needs .*: pip install "
            r"\"longgraft\[gguf\]\"\n",
            err,
        )

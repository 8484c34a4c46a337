"""Tiny GGUF files in the layout of real ones, and wheels that hold them, for pip to find in a folder."""

from __future__ import annotations

import base64
import hashlib
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from longgraft.models.catalogue import Entry, Wheel
from toys.models import SMALL
from toys.tokenizers import BYTES

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot|>")
MERGES = ("Ġ t", "h e", "Ġt he")
TOKENS = (*SPECIAL, *BYTES, *(merge.replace(" ", "") for merge in MERGES))
END, TURN = 2, 3
VOCABULARY = {
    "tokenizer__ggml__pre": "smollm",
    "tokenizer__ggml__bos_token_id": 1,
    "tokenizer__ggml__eos_token_id": END,
    "tokenizer__ggml__eot_token_id": TURN,
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_gguf(
    path: Path,
    tied: bool = False,
    without: str = "",
    odd: str = "",
    divided: float = 0,
    kind: str = "F32",
    special: Sequence[str] = SPECIAL,
    **entries,
) -> torch.nn.Module:
    """Writes a random Llama with a byte-level tokenizer, and returns the model in float32.

    kind: number format of the matrices; without: name of a tensor to leave out; odd: name of a tensor to write in a
    format that cannot be dequantised; divided: factor of Llama 3's rotary scaling, 0 for none; special: four special
    tokens; entries: metadata by
    key, with "__" for "."; it takes the place of the toy's own
    """
    torch.manual_seed(3)
    rope = (
        dict(
            rope_type="llama3",
            factor=divided,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=8192,
        )
        if divided
        else {}
    )
    config = LlamaConfig(
        **SMALL
        | {
            "vocab_size": len(TOKENS),
            "tie_word_embeddings": tied,
            "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"} | rope,
        }
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, entries.pop("architecture", "llama"))
    writer.add_name("a toy")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    add_vocabulary(writer, special)
    add_entries(writer, VOCABULARY | entries)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for key, tensor in model.state_dict().items():
        name = f"{names.get_name(key.removesuffix('.weight'))}.weight"
        if name == without or (tied and name == "output.weight"):
            continue
        if count := heads.get(key.split(".")[-2]):  # llama.cpp rotates neighbours, transformers rotates halves
            tensor = tensor.unflatten(0, (count, 2, -1)).transpose(1, 2).reshape(tensor.shape)
        if name == odd:
            writer.add_tensor(name, np.zeros((len(tensor), 40), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_1)
        else:
            type_ = gguf.GGMLQuantizationType[kind if tensor.ndim == 2 and tensor.shape[1] % 32 == 0 else "F32"]
            writer.add_tensor(name, gguf.quants.quantize(tensor.contiguous().numpy(), type_), raw_dtype=type_)
    if divided:
        writer.add_tensor("rope_freqs.weight", np.array([divisor(5e5 ** (n / 4), divided) for n in range(4)], "f"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def add_vocabulary(writer: gguf.GGUFWriter, special: Sequence[str] = SPECIAL) -> None:
    """Adds a byte-level tokenizer; `VOCABULARY` has the rest of its metadata.  special: four special tokens"""
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*special, *TOKENS[len(SPECIAL) :]])
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def write_vocabulary(path: Path, tokens: Sequence[str], **entries) -> None:
    """Writes a GGUF file that has a configuration and a vocabulary, and no weights.

    tokens: normal tokens, from the third id on; the first two are <unk> and <s>.  entries: as of `write_gguf`
    """
    writer = gguf.GGUFWriter(path, entries.pop("architecture", "llama"))
    for add in (
        writer.add_context_length,
        writer.add_embedding_length,
        writer.add_block_count,
        writer.add_feed_forward_length,
        writer.add_head_count,
        writer.add_head_count_kv,
    ):
        add(8)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_token_list(["<unk>", "<s>", *tokens])
    writer.add_token_types([3, 3, *(6 if token.startswith("<0x") else 1 for token in tokens)])
    add_entries(writer, {"tokenizer__ggml__bos_token_id": 1, "tokenizer__ggml__unknown_token_id": 0} | entries)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_entries(writer: gguf.GGUFWriter, entries: dict) -> None:
    """Adds metadata; an entry of None is left out."""
    add = {
        str: writer.add_string,
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        list: writer.add_array,
    }
    for key, value in entries.items():
        if value is not None:
            add[type(value)](key.replace("__", "."), value)


def divisor(inverse: float, factor: float) -> float:
    """Returns the divisor of one frequency, as llama.cpp's converter writes it."""
    wavelength = 2 * math.pi * inverse
    if wavelength < 8192 / 4:
        return 1.0
    smooth = (8192 / wavelength - 1) / (4 - 1)
    return factor if wavelength > 8192 else 1 / ((1 - smooth) / factor + smooth)


def write_wheel(folder: Path, package: str, file: str, content: bytes, code: str = "") -> Wheel:
    """Writes a wheel of version 1.0 whose package has one file of data, and this code in its `__init__.py`."""
    info = f"{package}-1.0.dist-info"
    files = {
        f"{package}/__init__.py": code.encode(),
        f"{package}/{file}": content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    hashes = {
        name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        for name, data in files.items()
    }
    record = "".join(f"{name},sha256={hashes[name]},{len(data)}\n" for name, data in files.items())
    path = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (files | {f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}).items():
            archive.writestr(name, data)
    return Wheel(f"{package}==1.0", f"{package}/{file}", len(content))


def toy_entry(folder: Path, content: bytes, parts: int = 2, code: str = "", **more) -> Entry:
    """Writes the wheels of a model into a folder, and returns the model's entry in the catalogue.

    Args:
        parts: Number of wheels.
        code: Content of every wheel's `__init__.py`.
        more: Fields of the entry.
    """
    folder.mkdir(exist_ok=True)
    cut = -(-len(content) // parts)
    wheels = tuple(
        write_wheel(folder, f"toy_part{n}", f"toy.gguf.part{n}", content[n * cut : (n + 1) * cut], code)
        for n in range(parts)
    )
    return Entry("toy", "a toy", 1, 512, "free", hashlib.sha256(content).hexdigest(), len(content), wheels, **more)

"""A crafted, cut or foreign GGUF file is refused in one sentence, before anything of a wrong size is read."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType, GGUFValueType
from toys.gguf_files import write_gguf, write_vocabulary
from toys.tokenizers import BYTES

from longgraft.models.files import files_of
from longgraft.models.gguf_header import open_gguf
from longgraft.models.gguf_reader import MOST_ELEMENTS
from longgraft.models.gguf_types import FOREIGN

F32 = GGMLQuantizationType.F32
ALIGNMENT = 32
HUGE = 1 << 40


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + values


def tensor(name: str = "a", shape: Sequence[int] = (4,), kind: int = F32, offset: int = 0, dimensions=None) -> bytes:
    dimensions = len(shape) if dimensions is None else dimensions
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", dimensions, *shape, kind, offset)


LLAMA = entry("general.architecture", GGUFValueType.STRING, text("llama"))


def gguf(*entries: bytes, tensors: Sequence[bytes] = (), count: int | None = None, weights: int = 64) -> bytes:
    """Returns a file with the architecture and these entries and tensors; count: of the tensors, by the header."""
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors) if count is None else count, 1 + len(entries))
    header += LLAMA + b"".join(entries) + b"".join(tensors)
    return header + bytes(-len(header) % ALIGNMENT + weights)


def listed(kind: int, count: int, values: bytes = b"") -> bytes:
    """Returns a file with one array."""
    return gguf(entry("list", GGUFValueType.ARRAY, array(kind, count, values)))


def number(key: str, value: int) -> bytes:
    return entry(key, GGUFValueType.UINT32, struct.pack("<I", value))


DAMAGED = {
    "an array of 2^40 strings": (listed(GGUFValueType.STRING, HUGE), "has 1,099,511,627,776 elements, too many"),
    "an array of 2^64 - 1 bytes": (listed(GGUFValueType.UINT8, 2**64 - 1), "elements, too many for the file"),
    "an array that is larger than its file": (listed(GGUFValueType.UINT64, 20), "has 20 elements, too many"),
    "an array of more strings than any vocabulary": (
        listed(GGUFValueType.STRING, MOST_ELEMENTS + 1, bytes(8 * MOST_ELEMENTS + 8)),
        "has 4,194,305 elements, too many for the file",
    ),
    "a string that ends beyond the file": (
        listed(GGUFValueType.STRING, 1, struct.pack("<Q", HUGE)),
        "an array ends beyond the file",
    ),
    "an array of arrays": (
        listed(GGUFValueType.ARRAY, HUGE, array(GGUFValueType.ARRAY, HUGE)),
        "an array of arrays, which llama.cpp does not read either",
    ),
    "an array of an unknown kind": (listed(99, 1), "99 is not a valid GGUFValueType"),
    "an entry of an unknown kind": (gguf(entry("new", 13, b"")), "13 is not a valid GGUFValueType"),
    "a text that ends beyond the file": (
        gguf(entry("long", GGUFValueType.STRING, struct.pack("<Q", HUGE))),
        r"an entry from byte \d+ on ends beyond the file's \d+",
    ),
    "a key that ends beyond the file": (gguf(struct.pack("<Q", 2**63)), "ends beyond the file's"),
    "a key twice": (gguf(number("a", 1), number("a", 2)), "its metadata has a twice"),
    "2^40 tensors": (gguf(tensors=[tensor()], count=HUGE), "(dimensions|ends beyond)"),
    "a tensor without dimensions": (gguf(tensors=[tensor(shape=())]), r"tensor a has the dimensions \[\], which none"),
    "a tensor of 2^31 dimensions": (gguf(tensors=[tensor(dimensions=2**31)]), "ends beyond the file"),
    "a tensor of 5 dimensions": (gguf(tensors=[tensor(shape=[1] * 5)]), r"dimensions \[1, 1, 1, 1, 1\], which none"),
    "a tensor of no numbers": (gguf(tensors=[tensor(shape=(4, 0))]), r"dimensions \[4, 0\], which none of its type"),
    "a tensor of half a block": (
        gguf(tensors=[tensor(shape=(40, 2), kind=GGMLQuantizationType.Q8_0)]),
        r"dimensions \[40, 2\], which none of its type",
    ),
    "a tensor whose size overflows": (gguf(tensors=[tensor(shape=(2**32, 2**32))]), "and is larger than the file"),
    "a tensor beyond the end": (gguf(tensors=[tensor(offset=64)]), "ends beyond the file"),
    "a tensor at an odd place": (gguf(tensors=[tensor(offset=8)]), "tensor a overlaps .*, or is not aligned"),
    "tensors at the same place": (gguf(tensors=[tensor(), tensor("b")]), "tensor b overlaps the one before it"),
    "a tensor twice": (gguf(tensors=[tensor(), tensor(offset=32)]), "duplicated tensor with name a"),
    "an alignment of 0": (gguf(number("general.alignment", 0)), "Invalid alignment"),
    "a number for a text": (gguf(number("tokenizer.ggml.pre", 7)), "tokenizer.ggml.pre is 7, of the wrong type"),
    "a text for a number": (
        gguf(entry("split.count", GGUFValueType.STRING, text("three"))),
        "split.count is 'three', of the wrong type",
    ),
    "2^32 - 1 layers": (
        gguf(number("llama.block_count", 2**32 - 1)),
        "llama.block_count says 4294967295 layers, and there are tensors of 0",
    ),
    "a text for a token": (
        gguf(entry("tokenizer.ggml.eos_token_id", GGUFValueType.STRING, text("</s>"))),
        "tokenizer.ggml.eos_token_id is '</s>', of the wrong type",
    ),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_file_is_refused_with_what_is_wrong(what, tmp_path):
    content, said = DAMAGED[what]
    path = tmp_path / "toy.gguf"
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=rf"^GGUF file .*toy.gguf is cut or damaged \(.*{said}.*\)\. Download it again"
    ):
        open_gguf(path, "toy")


def test_a_whole_file_of_these_parts_is_read(tmp_path):
    strings = array(GGUFValueType.STRING, 2, text("a") + text("b"))
    content = gguf(
        entry("words", GGUFValueType.ARRAY, strings),
        entry("none", GGUFValueType.ARRAY, array(GGUFValueType.STRING, 0)),
        number("split.count", 1),
        tensors=[tensor(offset=32), tensor("b", (2, 2))],
    )
    (tmp_path / "toy.gguf").write_bytes(content)
    reader = open_gguf(tmp_path / "toy.gguf", "toy")
    assert [(tensor.name, tensor.n_bytes) for tensor in reader.tensors] == [("a", 16), ("b", 16)]
    assert reader.fields["words"].contents() == ["a", "b"] and reader.fields["none"].contents() == []


def test_a_file_with_any_changed_byte_is_read_or_refused_in_one_sentence(tmp_path):
    """A fuzz test: no library's error, no endless loop, and no tensor beyond the file."""
    content = gguf(
        entry("words", GGUFValueType.ARRAY, array(GGUFValueType.STRING, 1, text("a"))),
        entry("sizes", GGUFValueType.ARRAY, array(GGUFValueType.INT32, 2, bytes(8))),
        number("split.count", 1),
        tensors=[tensor(shape=(2, 2)), tensor("b", offset=32)],
    )
    path = tmp_path / "toy.gguf"
    refused = 0
    for place in range(len(content) - 64):
        for bits in (0x01, 0xFF):
            changed = bytearray(content)
            changed[place] ^= bits
            path.write_bytes(changed)
            try:
                reader = open_gguf(path, "toy")
            except ValueError as error:
                refused += 1
                assert re.match(r"(GGUF file )?.*toy\.gguf .*\. [A-Z].*\.$", str(error)), str(error)
            else:
                assert all(tensor.data_offset + tensor.n_bytes <= len(content) for tensor in reader.tensors)
    assert refused > len(content)


@pytest.mark.parametrize(
    ("number", "said"),
    [(number, f"type {name} \\(number {number}\\), which {who} writes") for number, (name, who) in FOREIGN.items()]
    + [
        (99, "type 99, which ik_llama.cpp writes"),
        (57, "type 57, which a newer llama.cpp, or a fork of it, writes"),
    ],
)
def test_a_type_of_another_program_is_named_with_the_program(number, said, tmp_path):
    path = tmp_path / "toy.gguf"
    path.write_bytes(gguf(tensors=[tensor("blk.0.ffn_up.weight", (32,), kind=number)]))
    with pytest.raises(
        ValueError,
        match=f"^GGUF file .* cannot be read: its tensor blk.0.ffn_up.weight has {said} and longgraft does not read. "
        "Download a file of the model with types of llama.cpp, such as Q4_K_M or Q8_0.$",
    ):
        open_gguf(path, "toy")


@pytest.mark.parametrize("name", ["ggml-model-q4_0.bin", "old.gguf"])
@pytest.mark.parametrize(("magic", "old"), [(b"lmgg", "GGML"), (b"fmgg", "GGMF"), (b"tjgg", "GGJT"), (b"algg", "GGLA")])
def test_a_file_of_llama_cpps_earlier_formats_is_refused_by_its_format(magic, old, name, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / name).write_bytes(magic + bytes(200))
    with pytest.raises(
        ValueError, match=f"^.*{name} is a {old} file, a format of 2023 that .* Download the model as GGUF"
    ):
        files_of(tmp_path / name)


@pytest.mark.parametrize("key", ["embedding_length", "attention.head_count", "attention.head_count_kv"])
def test_a_file_with_a_size_of_0_is_refused_by_the_size(key, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "toy.gguf", **{f"llama__{key.replace('.', '__')}": 0})
    with pytest.raises(ValueError, match=rf"^GGUF file .* is cut or damaged \(llama.{key} is 0\). Download"):
        files_of(tmp_path / "toy.gguf")


def test_a_file_without_tensors_is_refused_as_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "cache"))
    write_vocabulary(
        tmp_path / "toy.gguf", [*BYTES, "ab"], tokenizer__ggml__model="gpt2", tokenizer__ggml__merges=["a b"]
    )
    with pytest.raises(ValueError, match=r"^GGUF file .* holds no tensor: it describes a model, or .* without the w"):
        files_of(tmp_path / "toy.gguf").with_floats()


@pytest.mark.parametrize(
    ("entry", "value", "said"),
    [
        ("tokenizer__ggml__tokens", 5, "it is damaged, or of another format"),
        ("tokenizer__ggml__bos_token_id", [1, 2], "damaged"),
        ("llama__block_count", "four", "llama.block_count is 'four', of the wrong type"),
    ],
)
def test_metadata_of_a_wrong_kind_is_refused_in_one_sentence(entry, value, said, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "toy.gguf", **{entry: value})
    with pytest.raises(ValueError, match=said) as error:
        files_of(tmp_path / "toy.gguf").with_floats()
    assert str(error.value).startswith(("GGUF file", "Model", "The tokenizer")), error.value

"""GGUF files: which file is meant, if it can be read, and the folders that are made of it once.

One folder describes a file: configuration, tokenizer, end tokens, and a table of its tensors.  Another holds its
weights as floats, if they are needed that way.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import GenerationConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from longgraft.config.file_errors import reason
from longgraft.models.gguf_blocks import TENSORS, TensorTable
from longgraft.models.store import making, models_folder
from longgraft.runtime.devices import device_of
from longgraft.runtime.hub import hub_answers, offline
from longgraft.target_model.weights import read_config, read_model, read_tokenizer

END_KEYS = ("eos", "eot", "eom")    # metadata keys: end of an answer, of a turn, of a message
# Tokens that end an answer in any vocabulary that has them, by llama.cpp's rule (`special_eog_ids` in llama-vocab.cpp).
END_TOKENS = frozenset((
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "<|end_of_text|>", "<end_of_utterance>",
    "< EOT >", "_< EOT >",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>",                                     # fill in the middle: padding,
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",                # a repository,
    "<|file_sep|>"))                                                                      # a file
HARMONY = frozenset(("<|return|>", "<|call|>"))     # gpt-oss, where <|end|> ends only a part of an answer
KEPT = (torch.float32, torch.bfloat16)      # dtypes of weights that are kept as floats
NAMED = 6           # files that an error message names
ROOM = 50_000_000   # most bytes of a description


def gguf_of(model: str) -> Path | None:
    """Returns the GGUF file that a path or hub id means, downloaded if it is on the hub; None if it means no such file.

    A file of a hub repository is OWNER/REPOSITORY/FILE.gguf.
    """
    path = Path(model)
    if path.is_dir():
        return None if (path / "config.json").exists() else _only(path)
    if path.suffix.lower() == ".gguf":
        return path if path.is_file() else _of_hub(model)
    if model.lower().endswith("gguf") and model.count("/") == 1:
        raise ValueError(f"Model {model!r} is a repository of GGUF files. Give one: --gguf-file FILE, or --model "
                         f"{model}/FILE.")
    return None


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file.

    Args:
        name: Name of the model, for people.
        sha256: SHA-256 of the file; folders made of it are named after it.
        where: Returns the file's path, which may need a download.
    """

    name: str
    sha256: str
    where: Callable[[], Path]

    @property
    def _described(self) -> Path:
        return models_folder() / self.sha256[:32]

    def described(self) -> Path:
        """Returns the folder with configuration, tokenizer, end tokens and table of tensors; makes it if it is missing.

        Raises:
            ValueError: the file is damaged, is no language model, or cannot be read correctly; there is no room.
            ImportError: the packages of the extra `gguf` are missing.
        """
        if not (path := self._described).exists():
            check_packages(self.name)       # before a download
            file = self.where()
            with making(f"Model {self.name!r}", path, ROOM) as part:
                if part:
                    _describe(_read(file, self.name), file, self.name, part)
                    part.rename(path)
        return path

    def floats(self, dtype: torch.dtype | None = None) -> Path:
        """Returns a transformers folder of the weights in floats; makes it if it is missing.

        dtype: None: the dtype that this machine decodes in; float16 is kept as float32
        """
        dtype = _dtype(dtype)
        path = models_folder() / f"{self.sha256[:32]}-{str(dtype)[6:]}"
        if path.exists():
            return path
        described, file = self.described(), self.where()
        reader = _read(file, self.name)
        size = dtype.itemsize * sum(int(tensor.n_elements) for tensor in reader.tensors)
        with making(f"Model {self.name!r}", path, size) as part:
            if part:
                print(f"longgraft: dequantising {file.name} to {str(dtype)[6:]}, once: {size / 1e6:,.0f} MB in {path}",
                      file=sys.stderr, flush=True)
                shutil.copytree(described, part, dirs_exist_ok=True, ignore=shutil.ignore_patterns(TENSORS))
                with _parsed_once(reader):
                    _write_floats(file, self.name, dtype, part)
                part.rename(path)
        return path


def _dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Returns the dtype in which weights are kept as floats."""
    if dtype is None:
        return torch.float32 if device_of(None).type == "cpu" else torch.bfloat16
    return dtype if dtype in KEPT else torch.float32


def _only(folder: Path) -> Path | None:
    """Returns the GGUF file of a folder; raises ValueError if it holds several."""
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".gguf")
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:NAMED]) + (", ..." if len(found) > NAMED else "")
        raise ValueError(f"{folder} holds {len(found)} GGUF files: {names}. Give one of them: --model FOLDER/FILE.")
    return found[0] if found else None


def _of_hub(model: str) -> Path:
    owner, _, rest = model.partition("/")
    repository, _, file = rest.partition("/")
    if not file or owner in ("", ".", "..", "~"):
        raise ValueError(f"GGUF file {model} does not exist. Give a file, a folder that holds one, or a hub's as "
                         "OWNER/REPOSITORY/FILE.gguf.")
    from huggingface_hub import hf_hub_download

    try:
        with nullcontext() if hub_answers() else offline():
            return Path(hf_hub_download(f"{owner}/{repository}", file))
    except Exception as error:      # the hub's client raises errors of several libraries
        raise ValueError(f"GGUF file {model} is neither here nor on a hub that this machine can reach "
                         f"({type(error).__name__}). Download it and give the file.") from error


def check_packages(name: str) -> None:
    """Raises ImportError if the packages that read GGUF are not installed."""
    if not all(map(importlib.util.find_spec, ("gguf", "accelerate"))):
        raise ImportError(f"Model {name!r} is GGUF, which needs the packages gguf and accelerate. Install them with: "
                          'pip install "longgraft[gguf]"')


def _read(file: Path, name: str) -> Any:
    """Returns the file's reader; raises ValueError if the file is cut, or is no language model."""
    check_packages(name)
    from longgraft.models.gguf_reader import FastGGUFReader

    try:
        reader = FastGGUFReader(file)
        metadata = {key: field.contents() for key, field in reader.fields.items() if len(field.types) == 1}
        arch = metadata["general.architecture"]
    except Exception as error:      # cut and foreign files raise errors of numpy, and of the package's enums
        raise ValueError(f"GGUF file {file} is cut or damaged ({reason(error)}). Download it again.") from error
    if (parts := metadata.get("split.count", 1)) > 1:
        raise ValueError(f"{file} is one of the {parts} parts of a split model. Join them by llama.cpp's "
                         "`llama-gguf-split --merge FIRST_PART WHOLE.gguf`, and give the whole.")
    if arch == "clip" or metadata.get("general.type") == "mmproj":
        raise ValueError(f"{file} is a vision projector, no language model. Give the model's own GGUF file, of which "
                         "longgraft reads text alone.")
    if (kind := metadata.get("general.type", "model")) != "model":
        raise ValueError(f"{file} is of type {kind!r}, and a model is needed. Give the model's own GGUF file.")
    if (scaling := metadata.get(f"{arch}.rope.scaling.type", "none")) != "none" and arch != "gpt-oss":
        raise _unread_rope(name, f"rope scaling {scaling!r}")
    return reader


def _unread_rope(name: str, what: str) -> ValueError:
    return ValueError(f"Model {name!r} has {what}, which transformers drops from GGUF: it would misread long prompts. "
                      "Give the original model: a folder with safetensors, or its hub id.")


def _restore_rope(config: Any, reader: Any, name: str) -> None:
    """Sets the rotary scaling that transformers drops: Llama 3's, a tensor of divisors by frequency.

    Raises ValueError for other divisors.  Their formula has one free number, which is the largest of them
    (`convert_hf_to_gguf.py` of llama.cpp).
    """
    found = {tensor.name: tensor for tensor in reader.tensors if tensor.name.startswith("rope_f")}
    if not found:
        return
    if list(found) != ["rope_freqs.weight"] or config.model_type != "llama":
        raise _unread_rope(name, next(iter(found)))
    divisors = torch.tensor(found["rope_freqs.weight"].data)
    plain = config.rope_parameters["rope_theta"] ** (-torch.arange(0, 2 * len(divisors), 2) / (2 * len(divisors)))
    config.rope_parameters = config.rope_parameters | {
        "rope_type": "llama3", "factor": divisors.max().item(), "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    if len(scaled) != len(plain) or not torch.allclose(plain / scaled, divisors, rtol=1e-3):
        raise _unread_rope(name, "rope_freqs.weight")


@contextmanager
def _parsed_once(reader: Any) -> Iterator[None]:
    """Gives transformers this reader; it would parse the file five times, which takes up to 16 seconds each."""
    import gguf

    before, gguf.GGUFReader = gguf.GGUFReader, lambda _: reader     # type: ignore[assignment,misc]
    try:
        yield
    finally:
        gguf.GGUFReader = before        # type: ignore[misc]


def _describe(reader: Any, file: Path, name: str, out: Path) -> None:
    """Writes configuration, tokenizer and end tokens as transformers' own files, and the table of tensors."""
    place = str(file.parent)
    with _parsed_once(reader):
        config = read_config(place, name, file.name)
        tokenizer = read_tokenizer(place, name, file.name)
    _restore_rope(config, reader, name)
    config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    ends = end_ids(reader)
    GenerationConfig(eos_token_id=ends[0] if len(ends) == 1 else ends or None).save_pretrained(out)
    TensorTable.of(reader).write(out)


def end_ids(reader: Any) -> list[int]:
    """Returns the ids that end an answer: those of the metadata first, then tokens with an end token's name."""
    keys = [f"tokenizer.ggml.{end}_token_id" for end in END_KEYS]
    ids = [int(reader.fields[key].contents()) for key in keys if key in reader.fields]
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    names = END_TOKENS - {"<|end|>"} if set(tokens) >= HARMONY else END_TOKENS
    return list(dict.fromkeys([*ids, *(i for i, token in enumerate(tokens) if token in names)]))


def _write_floats(file: Path, name: str, dtype: torch.dtype, out: Path) -> None:
    """Writes the weights into a folder that has the configuration."""
    config = read_config(str(out), name)
    with nullcontext() if sys.stderr.isatty() else redirect_stderr(StringIO()):      # transformers' bar
        model: Any = read_model(str(file.parent), name, config, dtype, file.name)
    first: dict[int, str] = {}      # tied weights are written once
    tensors = {key: tensor.contiguous() for key, tensor in model.state_dict().items()
               if first.setdefault(tensor.data_ptr(), key) == key}
    save_file(tensors, out / "model.safetensors", {"format": "pt"})

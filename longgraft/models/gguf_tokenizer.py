"""The tokenizer of a GGUF file: made by transformers, with what transformers drops of the metadata."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from longgraft.models.gguf_header import ORIGINAL, metadata_of
from longgraft.models.gguf_splits import BEGINNING, SPLITS, WHOLE_PIECES
from longgraft.models.weights import read_tokenizer

END_KEYS = ("eos", "eot", "eom")  # metadata keys: end of an answer, of a turn, of a message
# Tokens that end an answer in any vocabulary that has them, by llama.cpp's rule (`special_eog_ids` in
# llama-vocab.cpp).
END_TOKENS = frozenset(
    (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "< EOT >",
        "_< EOT >",
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",  # fill in the middle: padding,
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",  # a repository,
        "<|file_sep|>",
    )
)  # a file
HARMONY = frozenset(("<|return|>", "<|call|>"))  # gpt-oss, where <|end|> ends only a part of an answer
SPACE = "\u2581"  # SentencePiece's space


def gguf_tokenizer(file: Path, reader: Any, name: str) -> Any:
    """Returns the tokenizer of a file, which splits texts by the rule that the file names.

    Raises:
        ValueError: the rule is unknown, or the tokenizer cannot be read.
    """
    metadata = metadata_of(reader)
    kind = metadata.get("tokenizer.ggml.model")
    rule = metadata.get("tokenizer.ggml.pre") or ""
    if kind == "gpt2" and not rule:
        rule = "default"
        print(
            f"longgraft: {name} does not name the rule by which it splits texts (tokenizer.ggml.pre), as files before "
            "May 2024. It is read by the rule 'default', as by llama.cpp, and may answer worse than the original "
            "model. Download a newer file.",
            file=sys.stderr,
        )
    if kind == "gpt2" and rule not in SPLITS:
        raise ValueError(
            f"Model {name!r} splits texts by the rule {rule!r} (tokenizer.ggml.pre), which is none "
            f"of the {len(SPLITS)} that longgraft knows (docs/models.md lists them). {ORIGINAL}"
        )
    tokenizer = read_tokenizer(str(file.parent), name, file.name)
    if kind == "gpt2":
        _split_by(rule, tokenizer)
        begins = metadata.get("tokenizer.ggml.add_bos_token", rule in BEGINNING)
        if begins and not tokenizer.add_bos_token and tokenizer.bos_token is not None:
            tokenizer.add_bos_token = True
            tokenizer.update_post_processor()
    elif kind == "llama" and not metadata.get("tokenizer.ggml.add_space_prefix", True):
        _remove_prefix(tokenizer)
    return tokenizer


def _split_by(rule: str, tokenizer: Any) -> None:
    """Makes a byte-level tokenizer split texts by a rule."""
    backend = tokenizer.backend_tokenizer
    splits = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in SPLITS[rule]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    backend.model.ignore_merges = rule in WHOLE_PIECES


def _remove_prefix(tokenizer: Any) -> None:
    """Makes a SentencePiece tokenizer read a text without a space before it."""
    backend = tokenizer.backend_tokenizer
    if not tokenizer.tokenize("a")[0].startswith(SPACE):
        return  # Gemma's has none
    backend.normalizer = normalizers.Replace(" ", SPACE)
    backend.pre_tokenizer = None
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])


def end_ids(reader: Any) -> list[int]:
    """Returns the ids that end an answer: first those of the metadata, then tokens named as end tokens."""
    keys = [f"tokenizer.ggml.{end}_token_id" for end in END_KEYS]
    ids = [int(reader.fields[key].contents()) for key in keys if key in reader.fields]
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    names = END_TOKENS
    if set(tokens) >= HARMONY:
        names = END_TOKENS - {"<|end|>"}
    ids += [number for number, token in enumerate(tokens) if token in names]
    return list(dict.fromkeys(ids))

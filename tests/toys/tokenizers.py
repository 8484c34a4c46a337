"""Small byte tokenizers with the special tokens of a family, with or without SentencePiece's leading space."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
NEWLINE = "\u010a"  # the newline in the byte-level alphabet
SPELLINGS = {
    "qwen-coder": "<|fim_prefix|> <|fim_suffix|> <|fim_middle|> <|fim_pad|> <|repo_name|> <|file_sep|> <|im_end|>",
    "codegemma": "<|fim_prefix|> <|fim_suffix|> <|fim_middle|> <|file_separator|>",
    "granite-4": "<|fim_prefix|> <|fim_suffix|> <|fim_middle|> <|fim_pad|> <|filename|> <|reponame|>",
    "starcoder2": "<fim_prefix> <fim_suffix> <fim_middle> <fim_pad> <repo_name> <file_sep>",
    "starcoder": "<fim_prefix> <fim_suffix> <fim_middle> <fim_pad> <reponame> <filename>",
    "deepseek-coder": "<|fim▁begin|> <|fim▁hole|> <|fim▁end|>".replace("|", "\uff5c"),
    "codellama": "▁<PRE> ▁<SUF> ▁<MID> ▁<EOT>",
    "codestral": "[PREFIX] [SUFFIX] [MIDDLE]",
    "glm": "<|code_prefix|> <|code_suffix|> <|code_middle|>",
    "fim_prefix with bars": "<|fim_prefix|> <|fim_suffix|> <|fim_middle|>",
    "fim_prefix": "<fim_prefix> <fim_suffix> <fim_middle>",
    "fim-prefix": "<fim-prefix> <fim-suffix> <fim-middle>",
}


def byte_tokenizer(
    special: tuple[str, ...] = (),
    plain: tuple[str, ...] = (),
    begins: bool = False,
    spaced: bool = False,
    merges: tuple[tuple[str, str], ...] = (),
) -> PreTrainedTokenizerFast:
    """Returns a tokenizer with an id per byte, then one per merge and per added token.

    special: added tokens that decode to nothing; plain: added tokens that decode to their text, as Qwen's do; begins:
    puts <s> before every prompt; spaced: puts a space before every text
    """
    vocabulary = {byte: n for n, byte in enumerate(BYTES)}
    for pair in merges:
        vocabulary["".join(pair)] = len(vocabulary)
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced, use_regex=bool(merges))
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(text, special=True, normalized=False) for text in (*special, *(["<s>"] * begins))])
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    if begins:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
        )
    return PreTrainedTokenizerFast(tokenizer_object=made)


def of_family(name: str, **more) -> PreTrainedTokenizerFast:
    return byte_tokenizer(tuple(SPELLINGS[name].split()), **more)


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids, **_):
        return bytes(ids).decode("utf-8", errors="replace")


TEXT = "naïve 🦊 code: return x → y; return z"


def ascii_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of the toy models' 96 tokens: 88 ASCII characters, seven merges, and the end token."""
    letters = [chr(code) for code in range(33, 127) if chr(code) not in "~^`@#$%"]
    merges = [("t", "r"), ("u", "e"), ("tr", "ue"), ('"', ":"), ("a", "b"), (",", "Ġ"), ("{", '"')]
    vocabulary = {piece: n for n, piece in enumerate([*letters, "Ġ", *("".join(pair) for pair in merges)])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")


SPACE = "\u2581"  # SentencePiece's space
PIECES = (
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in "\U0001f600\u20ac\ufffd".encode()),
    SPACE,
    *(SPACE + word for word in ["the", "capital", "of", "france", "is", "paris", "return"]),
    "is",
    "\ufffd",
    "\n",
)
LLAMA_2, GEMMA, METASPACE = "Llama 2's", "Gemma's", "Metaspace"


def sentencepiece(layout: str = LLAMA_2) -> PreTrainedTokenizerFast:
    """Returns a SentencePiece tokenizer of few words, with bytes for an emoji, a euro sign and U+FFFD.

    layout: Llama 2's and Metaspace put a space before a text and take it away again when they decode, Gemma's does not
    """
    made = Tokenizer(models.WordLevel({piece: n for n, piece in enumerate(PIECES)}, unk_token="<unk>"))
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    spaces = normalizers.Replace(" ", SPACE)
    if layout == GEMMA:
        made.normalizer, made.decoder = spaces, decoders.Sequence(parts)
    elif layout == LLAMA_2:
        made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        made.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    else:
        made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        made.decoder = decoders.Metaspace(SPACE, "always", False)
    made.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
    made.add_special_tokens(["<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>")

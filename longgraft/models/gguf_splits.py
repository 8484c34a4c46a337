"""Rules by which byte-level tokenizers of GGUF files split a text before they merge bytes into tokens.

A file names its rule in `tokenizer.ggml.pre`.  The names, and which rule each means, are llama.cpp's (`load` and
`llm_tokenizer_bpe` in src/llama-vocab.cpp, commit 00ad355).  Where llama.cpp notes the expression of the model's own
tokenizer.json beside its adaptation to std::regex, the rule here is the model's own.

A rule is a tuple of regular expressions.  The first splits the text into its matches and what lies between them; each
further one splits the pieces in the same way.
"""

from __future__ import annotations

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CJK = r"[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+"

# Words with a space before them, numbers, other characters, spaces.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Words after any one character; {digits} is the expression of a number.
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|{digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_LLAMA3 = f"{_CONTRACTIONS}|{_WORDS}".replace("{digits}", r"\p{N}{1,3}")
_QWEN2 = f"{_CONTRACTIONS}|{_WORDS}".replace("{digits}", r"\p{N}")
_QWEN35 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES
# Words in which a capital letter begins a piece; {end} follows a word, {digits} is the expression of a number.
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+{end}"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*{end}"
    r"|{digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
)
_TEKKEN = _CASED.replace("{end}", "").replace("{digits}", r"\p{N}")
_GPT4O = _CASED.replace("{end}", _CONTRACTIONS + "?").replace("{digits}", r"\p{N}{1,3}")
_YOUTU = _CASED.replace("{end}", _CONTRACTIONS + "?").replace("{digits}", r"\p{N}")
_KIMI = r"[\p{Han}]+|" + _GPT4O.replace(r"[\r\n/]*", r"[\r\n]*").replace(r"\p{Lo}\p{M}]", r"\p{Lo}\p{M}&&[^\p{Han}]]")
# Words with marks, punctuation, spaces: the last step of DeepSeek V3 and its relatives.
_MARKED = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)
# Letters of scripts with capitals, as DeepSeek LLM's tokenizer lists them.
_LETTERS = (
    r"A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373\u0376"
    r"\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F"
    r"\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77"
    r"\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D"
    r"\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4"
    r"\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139"
    r"\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D"
    r"\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A"
    r"\uFF41-\uFF5A\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}"
    r"\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)
_DEEPSEEK_SCRIPTS = r"[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+"
_FINNISH = r" ?[^(\s|.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C)]+"
_ASIAN = (
    r"[\u4E00-\u9FFF\u3400-\u4DBF\uF900-\uFAFF\u3040-\u309F\u30A0-\u30FF\uFF65-\uFF9F\u2F00-\u2FDF\u0E40-\u0E7F"
    r"\u0E80-\u0EFF\u1780-\u17FF\u1000-\u109F\uAA60-\uAA7F\uA9E0-\uA9FF\uAC00-\uD7AF\u1100-\u11FF]+"
)

_LLAMA3_NAMES = "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"
_BY_RULE: tuple[tuple[str, tuple[str, ...]], ...] = (  # (names, rule)
    ("default", (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    (
        "gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe gigachat a.x-4.0 mellum "
        "modern-bert mpt olmo jais trillion granite-docling exaone4",
        (_GPT2,),
    ),
    ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", (r"\p{N}", _GPT2)),
    (f"{_LLAMA3_NAMES} dbrx smaug-bpe glm4 chatglm-bpe", (_LLAMA3,)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", (_QWEN2,)),
    ("qwen35", (_QWEN35,)),
    ("ufakzeka", (_WORDS.replace("{digits}", r"\p{N}"),)),
    ("laguna", (r"[^\n]+|[\n]+", _QWEN2)),
    ("minicpm5", (r"\p{N}{1,3}", f"{_CONTRACTIONS}|{_WORDS}".replace("{digits}", r"\p{N}+"))),
    ("seed-coder", (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + _SPACES,)),
    (
        "jais-2",
        (
            _LLAMA3.removesuffix(r"|\s+(?!\S)|\s+")
            + "".join(rf"|\s{{{count}}}(?!\S)" for count in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
            + r"|\s{1}",
        ),
    ),
    (
        "exaone-moe",
        (
            _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    ),
    (
        "bailingmoe bailingmoe2 llada-moe",
        (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",),
    ),
    ("tekken", (_TEKKEN,)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m", (_GPT4O,)),
    ("tiny_aya cohere2moe", (r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    ("kimi-k2", (_KIMI,)),
    (
        "youtu",
        (
            r"[\uAC00-\uD7A3\u3131-\u318E]+|[\uFF01\u2026\u201C\u201D\u2018\u2019\u2014\uFF1A\uFF1B\uFF0C"
            r"\u3001-\u303F\uFE30-\uFE4F]+|[\u3105-\u312F]+|" + _CJK,
            _YOUTU,
        ),
    ),
    (
        "deepseek-llm",
        (
            r"[\r\n]",
            rf"\s?[{_LETTERS}]+",
            r"\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+",
            r"\s+$",
            _DEEPSEEK_SCRIPTS,
            r"\p{N}+",
        ),
    ),
    ("deepseek-coder", (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_SCRIPTS, r"\p{N}")),
    ("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", (r"\p{N}{1,3}", _CJK, _MARKED)),
    (
        "spark2_5",
        (r"\p{N}{1,3}", _CJK, _MARKED.replace(r"[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+", r"[\p{P}\p{S}]+|[\r\n]"), r"\p{N}"),
    ),
    ("afmoe", (r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", _ASIAN, _MARKED)),
    ("falcon", (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    ("poro-chat bloom gpt3-finnish", (_FINNISH,)),
    ("viking", (_FINNISH, r"\p{N}")),
    ("superbpe", (r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    (
        "chameleon",
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
    ),
)

SPLITS: dict[str, tuple[str, ...]] = {name: rule for names, rule in _BY_RULE for name in names.split()}
# Rules whose tokenizers take a piece that is a token whole, even where no merges lead to it.
WHOLE_PIECES = frozenset(("tekken", "youtu", "minicpm5", "granite-embed-multi-97m", *_LLAMA3_NAMES.split()))
# Rules whose prompts begin with the begin token unless the file says otherwise.
BEGINNING = frozenset(("tekken", "chameleon", *_LLAMA3_NAMES.split()))

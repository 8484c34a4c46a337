"""Errors that `test_gguf_tokenizer.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a file without a rule is split as GPT-2",
        "gguf_tokenizer",
        'rule = "default"',
        'rule = "gpt-2"',
        "test_gguf_tokenizer.py::test_texts_are_split_by_the_rule_that_the_file_names",
    ),
    Mutation(
        "a file's rule is not followed",
        "gguf_tokenizer:_split_by",
        "    backend.pre_tokenizer = ",
        "    unused = ",
        "test_gguf_tokenizer.py::test_texts_are_split_by_the_rule_that_the_file_names",
    ),
    Mutation(
        "the digits of SmolLM2's numbers stay together",
        "gguf_splits:_BY_RULE",
        '(r"\\p{N}", _GPT2)',
        "(_GPT2,)",
        "test_gguf_tokenizer.py::test_texts_are_split_by_the_rule_that_the_file_names",
    ),
    Mutation(
        "an unknown rule is taken for GPT-2's",
        "gguf_tokenizer",
        'if kind == "gpt2" and rule not in SPLITS:',
        "rule = rule if rule in SPLITS else 'gpt-2'\n    if False:",
        "test_gguf_tokenizer.py::test_an_unknown_rule_is_refused_by_its_name",
    ),
    Mutation(
        "a token without merges is never whole",
        "gguf_tokenizer:_split_by",
        "rule in WHOLE_PIECES",
        "False",
        "test_gguf_tokenizer.py::test_a_piece_that_is_a_token_is_whole_where_the_rule_says_so",
    ),
    Mutation(
        "the rule's begin token is left out",
        "gguf_tokenizer",
        "rule in BEGINNING",
        "False",
        "test_gguf_tokenizer.py::test_the_files_own_word_about_the_begin_token_counts",
    ),
    Mutation(
        "SentencePiece always puts a space before a text",
        "gguf_tokenizer",
        'metadata.get("tokenizer.ggml.add_space_prefix", True)',
        "True",
        "test_gguf_tokenizer.py::test_sentencepiece_puts_a_space_before_a_text_unless_the_file_forbids_it",
    ),
    Mutation(
        "an older version's tokenizer is used",
        "described_folder",
        ".{VERSION}",
        "",
        "test_gguf_tokenizer.py::test_folders_that_an_older_version_made_of_a_file_are_made_again",
    ),
    Mutation(
        "what an older version made takes its room for ever",
        "gguf_files:described",
        "_remove_outdated(folder)",
        "pass",
        "test_gguf_tokenizer.py::test_folders_that_an_older_version_made_of_a_file_are_made_again",
    ),
)

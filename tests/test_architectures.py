"""GGUF files of many architectures decode in their own blocks as transformers' models with the same numbers."""

from __future__ import annotations

import pytest
import torch
from toys.gguf_models import ARCHITECTURES, write_model
from toys.models import read
from toys.sessions import answered, toy_prompt

import longgraft
from longgraft.eval.checks.bits import check_bits
from longgraft.kernels.block_weight import block_weights
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import ProposalTree

IN_BLOCKS = "weights are the file's own blocks (--weights float dequantises them)"
ROUTERS = {"gate", "router", "shared_expert_gate"}      # few numbers, which files keep as floats
EXPERTS = [name for name, one in ARCHITECTURES.items() if "expert_count" in one.metadata]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "cache"))


def load(file, method="ar", **options):
    return longgraft.load(file, None, tell=False, method=method, **options)


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns the median row's difference: in a few rows a router's choice is nearly tied."""
    return float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).median())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model(tmp_path, name, kernels):
    """The kernels round activations to bytes, so the logits differ a little."""
    model = write_model(tmp_path / "toy.gguf", name)
    session = load(tmp_path / "toy.gguf")
    assert IN_BLOCKS in session.about
    expected, found = dict(model.named_parameters()), dict(block_weights(session.target.model))
    assert all(torch.equal(weight[:], expected[key]) for key, weight in found.items() if key in expected)
    left = {key.split(".")[-2] for key, one in session.target.model.named_parameters() if one.ndim > 1}
    assert left <= ROUTERS
    ids = toy_prompt(60)
    logits = read(session.target, Segment(ProposalTree.chain(torch.tensor(ids)), session.target.cache(64))).logits
    with torch.no_grad():
        assert apart(logits, model(torch.tensor([ids])).logits[0]) < 0.05


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_file_in_blocks_decodes_the_ids_of_plain_decoding(tmp_path, name, kernels):
    write_model(tmp_path / "toy.gguf", name)
    ids = toy_prompt(50)
    answers = [answered(load(tmp_path / "toy.gguf", method), ids, 40).token_ids for method in ("ar", "pld")]
    assert answers[0] == answers[1] and len(set(answers[0])) > 5


@pytest.mark.parametrize("name", EXPERTS)
def test_rows_of_experts_in_blocks_have_the_same_bits_in_a_tree_and_alone(tmp_path, name, kernels):
    write_model(tmp_path / "toy.gguf", name)
    report = check_bits(load(tmp_path / "toy.gguf").target, [toy_prompt(70)], trees=6, chunk=32)
    assert report["level"] == "bits"

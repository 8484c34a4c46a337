"""GGUF files of many architectures decode in their own blocks as transformers' models with the same numbers."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from toys.gguf_models import ARCHITECTURES, write_model
from toys.models import read
from toys.sessions import answered, toy_prompt

import longgraft
from longgraft.config.method_roles import DEFAULT, PLAIN
from longgraft.eval.checks.bits import check_bits
from longgraft.kernels.block_weight import block_weights
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import ProposalTree

IN_BLOCKS = "weights are the file's own blocks (--weights float dequantises them)"
# Few numbers, which files keep as floats, and matrices that a file has in another form.
FLOATS = {"gate", "router", "shared_expert_gate", "kv_b_proj", "conv1d", "conv", "mixer", "dt_proj"}
REPEATING = {"nemotron", "qwen3moe"}  # toys that repeat few tokens; "usual qwen3moe" does not
# torch computes attention with sinks, or with values of another size than keys, and recurrent states.
OTHER_ATTENTION = {"gpt-oss", "deepseek2", "old deepseek2"}
SAME_BITS = [
    name
    for name, one in ARCHITECTURES.items()
    if "expert_count" in one.metadata and name not in OTHER_ATTENTION and "ssm__state_size" not in one.metadata
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "cache"))


def load(file, method=PLAIN, **options):
    return longgraft.load(file, None, tell=False, method=method, **options)


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns the median row's difference: in a few rows a router's choice is nearly tied."""
    return float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).median())


def differing(found, expected) -> dict:
    """Returns the entries in which two configurations differ, beside names, tokens and floats' last bits."""
    other = {"transformers_version", "dtype", "architectures", "bos_token_id", "eos_token_id", "pad_token_id"}
    ours = json.loads(found.to_json_string(use_diff=False))
    theirs = json.loads(expected.to_json_string(use_diff=False))
    entries = type(expected).__dataclass_fields__.keys() & theirs.keys() - other
    return {key: (ours.get(key), theirs[key]) for key in entries if ours.get(key) != approx(theirs[key])}


def approx(value):
    """Returns a value that equals others whose floats were rounded to float32."""
    if isinstance(value, dict):
        return {key: approx(part) for key, part in value.items()}
    return pytest.approx(value, rel=1e-6) if isinstance(value, float) else value


@pytest.mark.parametrize(("name", "fused"), [*((name, False) for name in ARCHITECTURES), ("qwen35moe", True)])
def test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model(tmp_path, name, fused, kernels):
    """The kernels round activations to bytes, so the logits differ a little."""
    model = write_model(tmp_path / "toy.gguf", name, fused=fused)
    session = load(tmp_path / "toy.gguf")
    assert (IN_BLOCKS in session.about) == ARCHITECTURES[name].in_blocks
    expected, found = dict(model.named_parameters()), dict(block_weights(session.target.model))
    assert all(torch.equal(weight[:], expected[key]) for key, weight in found.items() if key in expected)
    assert differing(session.target.config, model.config) == {}
    floats = dict(session.target.model.named_parameters())
    assert all(torch.allclose(weight, expected[key], atol=1e-6) for key, weight in floats.items())
    if ARCHITECTURES[name].in_blocks:
        assert {key.split(".")[-2] for key, weight in floats.items() if weight.ndim > 1} <= FLOATS
    ids = toy_prompt(60)
    logits = read(session.target, Segment(ProposalTree.chain(torch.tensor(ids)), session.target.cache(64))).logits
    with torch.no_grad():
        assert apart(logits, model(torch.tensor([ids])).logits[0]) < (0.1 if name == "mamba" else 0.05)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - REPEATING))
def test_a_file_in_blocks_decodes_the_ids_of_plain_decoding(tmp_path, name, kernels):
    """The prediction has one wrong token, so paths of trees are accepted and cut."""
    write_model(tmp_path / "toy.gguf", name)
    ids = toy_prompt(50)
    plain = answered(load(tmp_path / "toy.gguf"), ids, 40).token_ids
    prediction = [*plain[:20], plain[20] + 1, *plain[21:]]
    for method in ("pld", DEFAULT):
        answer = answered(load(tmp_path / "toy.gguf", method, budget=12), ids, 40, prediction=prediction)
        assert answer.token_ids == plain and answer.stats.mat > 1
    assert len(set(plain)) > 5


@pytest.mark.parametrize("name", SAME_BITS)
def test_rows_of_experts_in_blocks_have_the_same_bits_in_a_tree_and_alone(tmp_path, name, kernels):
    write_model(tmp_path / "toy.gguf", name)
    report = check_bits(load(tmp_path / "toy.gguf").target, [toy_prompt(70)], trees=6, chunk=32)
    assert report["level"] == "bits"


def test_attention_with_sinks_takes_a_cache_in_bfloat16(tmp_path, kernels):
    """torch computes it, so floats are the default there."""
    write_model(tmp_path / "toy.gguf", "gpt-oss", kind="MXFP4")
    usual, half = load(tmp_path / "toy.gguf"), load(tmp_path / "toy.gguf", kv_dtype="bfloat16")
    ids = toy_prompt(50)
    answers = [answered(session, ids, 10).token_ids for session in (usual, half)]
    assert (usual.target.cache_dtype, half.target.cache_dtype) == (None, torch.bfloat16)
    assert answers[0][0] == answers[1][0] and len(answers[1]) == 10


@pytest.mark.parametrize(
    ("name", "without", "message"),
    [
        ("granitemoe", "blk.1.ffn_up_exps.weight", r"^The file lacks a layer's experts \(ffn_up_exps\)"),
        ("qwen3moe", "blk.1.ffn_gate_exps.weight", r"^The file lacks a layer's experts \(ffn_gate_exps\)"),
        ("granite", "blk.0.attn_q.weight", r"the weights lack model\.layers\.0\.self_attn\.q_proj\.weight"),
    ],
)
def test_a_file_without_a_tensor_is_refused(tmp_path, name, without, message, kernels):
    write_model(tmp_path / "toy.gguf", name, without=without)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "toy.gguf", weights="gguf")


def test_a_bamba_file_is_not_taken_for_granite(tmp_path):
    write_model(tmp_path / "toy.gguf", "granitehybrid", rope__dimension_count=8)
    with pytest.raises(ValueError, match=r"^The file rotates 8 of the 16 numbers of a head, as Bamba models do, and"):
        load(tmp_path / "toy.gguf")


def test_a_family_that_transformers_does_not_have_is_refused(tmp_path, monkeypatch):
    write_model(tmp_path / "toy.gguf", "mellum")
    monkeypatch.setattr("longgraft.models.gguf_architecture.CONFIG_MAPPING", {})
    with pytest.raises(
        ValueError,
        match=r"^transformers [0-9.]+ has no class for mellum models, which the file holds"
        r"\. Install a newer one: pip install -U transformers\.$",
    ):
        load(tmp_path / "toy.gguf")


def test_a_file_with_a_tensor_that_is_not_known_is_refused(tmp_path, kernels):
    write_model(tmp_path / "other.gguf", "granitemoe", renamed={"blk.0.ffn_gate_inp.weight": "blk.0.ffn_odd.weight"})
    with pytest.raises(ValueError, match=r"holds the tensor blk\.0\.ffn_odd\.weight, which granitemoe models have no"):
        load(tmp_path / "other.gguf", weights="gguf")


def test_experts_of_a_model_that_is_larger_than_the_memory_are_read_from_the_disk(tmp_path, monkeypatch, kernels):
    write_model(tmp_path / "toy.gguf", "qwen3moe")
    ids, held = toy_prompt(50), load(tmp_path / "toy.gguf")
    monkeypatch.setattr("longgraft.models.gguf_filler.free_bytes", lambda device: 1000)
    read = load(tmp_path / "toy.gguf")
    note = "the model is larger than the free memory: its experts are read from the disk as they are needed"
    assert note in read.about and note not in held.about
    assert answered(read, ids, 20).token_ids == answered(held, ids, 20).token_ids
    assert [path.name for path in (tmp_path / "cache" / "models").iterdir() if path.is_file()] == ["lock"]
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(
        ValueError,
        match=r"which is more memory than is free, and the disk has 0\.0 GB for the 0\.0 GB "
        r"of its experts\. Make room, or set LONGGRAFT_CACHE",
    ):
        load(tmp_path / "toy.gguf")

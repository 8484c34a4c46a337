"""Our methods reproduce outputs of the official implementations on tiny weights."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from toys.official import SETTINGS, load_target
from toys.trees import begun, golden_shape, shape_of

from longgraft.acceptance.rules import Greedy
from longgraft.config.settings import HeadOverrides
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.matrix import MatrixRetriever
from longgraft.drafters.pruning import Dense
from longgraft.memories.adjacency import AdjacencyMatrix
from longgraft.memories.adjacency_memory import AdjacencyMemory, MatrixWrites
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.observation import Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.target_model.passes import Segment
from longgraft.target_model.verifier import Verifier
from longgraft.trees.templates import token_recycling
from longgraft.trees.tree import ProposalTree
from longgraft.yarn_drafters.checkpoint import load_head
from longgraft.yarn_drafters.layouts import TargetShape
from longgraft.yarn_drafters.rope import Rope


def load_drafter(golden, target, name, setting):
    network = load_head(golden / f"models/drafter_{name}", TargetShape(8, 128, 512), HeadOverrides())
    network.share_embedding(target.model.get_input_embeddings())
    _, levels, top_k = SETTINGS[setting]
    return Eagle3Drafter(Eagle3Cache(network), Dense(), levels, top_k)


@pytest.mark.parametrize("kind", ["rand", "aligned"])
@pytest.mark.parametrize("prompt", ["p0", "p1", "p2"])
def test_features_are_those_of_the_official_eagle3(golden, kind, prompt):
    saved = np.load(golden / f"eagle3_{kind}/features_{prompt}.npz")
    target = load_target(golden, kind)
    tokens = torch.from_numpy(saved["prompt_ids"]).long().flatten()
    segment = Segment(ProposalTree.chain(tokens), target.cache(512), "none")
    (report,) = target.run([segment], Wants(layers=(2, 4, 5)))
    expected = torch.from_numpy(saved["features"])
    positions = torch.from_numpy(saved["feature_positions"]).long()
    atol, rtol = (1e-3, 1e-4) if kind == "rand" else (5e-5, 1e-5)
    features = torch.cat([report.hidden[layer] for layer in (2, 4, 5)], -1)
    torch.testing.assert_close(features[positions], expected, atol=atol, rtol=rtol)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", ["rand", "aligned"])
@pytest.mark.parametrize("prompt", ["p0", "p1", "p2"])
def test_first_draft_trees_are_those_of_the_official_eagle3(golden, kind, prompt, setting):
    saved = np.load(golden / f"eagle3_{kind}/tree_{prompt}_{setting}.npz")
    target = load_target(golden, kind)
    drafter = load_drafter(golden, target, kind, setting)
    _, _, root = begun(target, drafter.memories, saved["prompt_ids"].flatten().tolist(), 64)
    assert root == saved["draft_tokens"].flatten()[0]
    torch.testing.assert_close(
        drafter.memory.newest()[0, 0], torch.from_numpy(saved["drafter_last_hidden"]).flatten(), atol=1e-3, rtol=1e-3
    )
    tree = drafter.propose(Ask(root, SETTINGS[setting][0], 0))
    expected = golden_shape(
        saved["draft_tokens"].flatten(), saved["tree_position_ids"], saved["parent_index"].flatten()
    )
    assert shape_of(tree) == expected
    ours = tree.scores[1:].sort(descending=True).values
    theirs = torch.from_numpy(saved["cand_scores"]).flatten().sort(descending=True).values[: len(tree) - 1]
    torch.testing.assert_close(ours, theirs, atol=3e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rand", "aligned"])
def test_accepted_lengths_per_round_are_those_of_the_official_eagle3(golden, kind):
    target, checked = load_target(golden, kind), 0
    for case in json.loads((golden / f"eagle3_{kind}/generate.json").read_text()):
        if not case.get("robust_to_noise"):
            continue
        setting, prompt = case["setting"], case["output_ids"][: case["prompt_len"]]
        drafter = load_drafter(golden, target, kind, setting)
        verifier, _, root = begun(target, drafter.memories, prompt, 64)
        lengths, output = [], list(prompt)
        while len(lengths) < len(case["accept_lengths"]):
            tree = drafter.propose(Ask(root, SETTINGS[setting][0], 0))
            seen = verifier.verify(tree, drafter.memory.wants)
            output += tree.tokens[seen.path].tolist()
            lengths.append(len(seen.path) - 1)
            drafter.memory.observe(seen)
            root = seen.next_token
        assert lengths == case["accept_lengths"], (case["prompt"], setting)
        assert output == case["output_ids"]
        checked += 1
    assert checked >= 4


@pytest.mark.parametrize("prompt", ["p900", "p3000"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_yarn_trees_are_those_of_the_official_specpv(golden, prompt, setting):
    saved = np.load(golden / f"specpv_yarn/tree_rand_{prompt}_{setting}.npz")
    target = load_target(golden, "rand")
    drafter = load_drafter(golden, target, "rand_yarn", setting)
    assert drafter.network.config.max_positions == 65536
    _, _, root = begun(target, drafter.memories, saved["prompt_ids"].flatten().tolist(), 1024)
    tree = drafter.propose(Ask(root, SETTINGS[setting][0], 0))
    assert shape_of(tree) == golden_shape(
        saved["draft_tokens"].flatten(), saved["tree_position_ids"], saved["parent_index"].flatten()
    )


@pytest.mark.parametrize("dim", [32, 128])
def test_yarn_tables_are_those_of_specpv(golden, dim):
    saved = np.load(golden / f"yarn_rope/yarn_f32_dim{dim}.npz")
    rope = Rope(kind="yarn", factor=32.0, original=2048)
    np.testing.assert_allclose(rope.inverse_frequencies(dim).numpy(), saved["inv_freq"], rtol=1e-6)
    positions = torch.from_numpy(saved["positions"]).long()
    for ours, theirs in zip(rope.cos_sin(positions, dim), (saved["cos"], saved["sin"]), strict=True):
        near = (positions < 4096).numpy()
        np.testing.assert_allclose(ours.numpy()[near], theirs[near], atol=3e-4)
        np.testing.assert_allclose(ours.numpy(), theirs, atol=5e-3)


def lookup_all(matrix, root):
    """Returns the official tree with all nodes, including zeros and duplicates."""
    template = token_recycling()
    tokens = torch.full((len(template) + 1,), root)
    for nodes, parents, ranks in template.levels(tokens.device):
        tokens[nodes] = matrix.lookup(tokens[parents], ranks)
    return tokens.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rand", "aligned"])
def test_token_recycling_accepts_as_many_as_the_official_one(golden, kind):
    target, checked = load_target(golden, kind), 0
    memory = AdjacencyMemory(MatrixWrites(AdjacencyMatrix(512, unseen=0)))
    matrix, retriever = memory.matrix, MatrixRetriever(memory, lambda _: token_recycling())
    for case in [
        c
        for c in json.loads((golden / "token_recycling/generate.json").read_text())
        if c["kind"] == kind and c["robust_to_noise"]
    ]:
        matrix.rows.copy_(
            torch.from_numpy(np.load(golden / f"token_recycling/matrix_{kind}_p{case['prompt']}.npz")["matrix_start"])
        )
        prompt = case["prompt_ids"]
        verifier = Verifier(target, target.cache(len(prompt) + 300), Greedy(), Clock())
        # The official code prefills all but the last prompt token, which is the first root.
        list(read_prompt(verifier, torch.tensor(prompt[:-1]), Wants(), following=prompt[-1]))
        root, lengths = prompt[-1], []
        while len(lengths) < len(case["accept_lengths"]):
            official, tree = lookup_all(matrix, root), retriever.candidates(root, 80)
            seen = verifier.verify(tree, memory.wants)
            # The official tree repeats tokens of zero rows; our trie has each once.  The official update uses all rows.
            matrix.update(torch.tensor(official), seen.topk[twins(tree, official)])
            lengths.append(len(seen.path))
            root = seen.next_token
        assert lengths == case["accept_lengths"], case["prompt"]
        checked += 1
    assert checked >= 2


def twins(tree, official):
    """Returns our node for each row of the official tree."""
    place = [0]
    for row, parent in enumerate(token_recycling().parents[1:], 1):
        place.append(tree.children[place[parent], official[row]])
    return torch.tensor(place)

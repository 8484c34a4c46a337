"""The drafter follows the official EAGLE-3 through whole generations, fed with the target's recorded features."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from toys.official import SETTINGS
from toys.trees import golden_shape, shape_of

from longgraft.acceptance.rules import walk
from longgraft.config.settings import HeadOverrides
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.pruning import Dense
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask
from longgraft.trees.tree import ProposalTree
from longgraft.yarn_drafters.checkpoint import load_head
from longgraft.yarn_drafters.layouts import TargetShape


def drafter(golden, setting: str) -> Eagle3Drafter:
    network = load_head(golden / "models/drafter_aligned", TargetShape(8, 128, 512), HeadOverrides())
    weight = load_file(golden / "models/target_aligned_embedding.safetensors")["weight"]
    network.share_embedding(torch.nn.Embedding.from_pretrained(weight))
    _, levels, top_k = SETTINGS[setting]
    made = Eagle3Drafter(Eagle3Cache(network), Dense(), levels, top_k)
    made.memory.reset(300)
    return made


def read(made: Eagle3Drafter, tokens: list[int], following: int, features: torch.Tensor) -> None:
    """Observes the prompt in two chunks."""
    for start, end, after in ((0, 7, tokens[7]), (7, len(tokens), following)):
        chain = ProposalTree.chain(torch.tensor(tokens[start:end]))
        made.memory.observe(
            Observation(chain, torch.arange(end - start), after, hidden=by_layer(features[start:end]), prompt=True)
        )


def by_layer(features: torch.Tensor) -> dict[int, torch.Tensor]:
    return dict(zip((2, 4, 5), features.chunk(3, dim=-1), strict=True))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("prompt", [0, 1])
def test_first_draft_trees_are_the_official_ones(golden, prompt, setting):
    saved = np.load(golden / f"eagle3_aligned/tree_p{prompt}_{setting}.npz")
    features = np.load(golden / f"eagle3_aligned/features_p{prompt}.npz")["features"]
    made, (root, *_) = drafter(golden, setting), saved["draft_tokens"].tolist()
    read(made, saved["prompt_ids"].tolist(), root, torch.from_numpy(features))
    torch.testing.assert_close(
        made.memory.newest()[0, 0], torch.from_numpy(saved["drafter_last_hidden"]), atol=1e-4, rtol=1e-4
    )
    tree = made.propose(Ask(root, SETTINGS[setting][0], 0))
    assert shape_of(tree) == golden_shape(saved["draft_tokens"], saved["tree_position_ids"], saved["parent_index"])
    ours, theirs = tree.scores[1:].sort().values, torch.from_numpy(saved["cand_scores"]).sort().values
    torch.testing.assert_close(ours, theirs[-len(ours) :], atol=3e-4, rtol=1e-4)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("prompt", [0, 1])
def test_every_round_s_tree_and_accepted_length_are_the_official_ones(golden, prompt, setting):
    """The target's tokens are those that the official code generated; a node's feature is that of its position."""
    case = next(
        case
        for case in json.loads((golden / "eagle3_aligned/generate.json").read_text())
        if (case["prompt"], case["setting"]) == (prompt, setting)
    )
    features = torch.from_numpy(np.load(golden / f"eagle3_aligned/output_features_p{prompt}.npz")["features"])
    length, said, made = case["prompt_len"], case["output_ids"], drafter(golden, setting)
    assert case["robust_to_noise"] and len(case["rounds"]) >= 8
    read(made, said[:length], said[length], features)
    for official in case["rounds"]:
        tree = made.propose(Ask(said[length], SETTINGS[setting][0], length))
        assert Counter(zip(tree.tokens.tolist(), tree.depths.tolist(), strict=True)) == Counter(
            zip(official["draft_tokens"], official["tree_position_ids"], strict=True)
        )
        following = [*said, official["next_token"]]  # beyond the last round's tokens there is one more
        draws = [following[min(length + depth + 1, len(said))] for depth in tree.depths.tolist()]
        path, after = walk(tree, draws.__getitem__)
        assert tree.tokens[path].tolist() == official["accepted_tokens"] and after == official["next_token"]
        made.memory.observe(Observation(tree, path, after, hidden=by_layer(features[length : length + len(path)])))
        length += len(path)
    assert length == len(said)

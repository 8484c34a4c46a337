"""The Triton kernels of a GPU, compiled and compared with torch there before they are used."""

from __future__ import annotations

import subprocess
from functools import cache

import torch
from torch import Tensor

from longgraft.kernels.build import NotBuilt
from longgraft.protocol.observation import Wants
from longgraft.target_model.fused_modules import Kernels
from longgraft.target_model.module_forms import ACTIVATIONS, NORMS, numbers, turned
from longgraft.target_model.pass_geometry import Geometry, accepted, geometry
from longgraft.target_model.topk import MOST_FUSED, best, children
from longgraft.trees.beams import beam
from longgraft.trees.padded import PaddedTree
from longgraft.trees.tree import ProposalTree


@cache
def kernels_for(device: torch.device, dtype: torch.dtype) -> Kernels | NotBuilt:
    """Returns the Triton kernels, compiled and compared with torch once per device and dtype, or why there are none."""
    if device.type != "cuda":
        return NotBuilt(f"they are for CUDA, and the model is on {device.type}")
    try:
        from triton.errors import TritonError

        from longgraft.kernels import fused_triton
    except ImportError as error:
        return NotBuilt(f"triton cannot be imported ({error})")
    try:
        wrong = differences(fused_triton, device, dtype)
    except (TritonError, RuntimeError, OSError, ImportError, subprocess.SubprocessError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return NotBuilt(f"triton could not compile them ({reason})")
    if wrong:
        differing = ", ".join(f"{name} by up to {farthest:.2g}" for name, farthest in wrong.items())
        return NotBuilt(f"these differ from torch: {differing}")
    return fused_triton


@torch.no_grad()
def differences(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Returns the kernels whose results differ from torch's on this device by more than rounding: name -> how far."""
    x, gate, up = numbers(3, 3, 2100, dtype=dtype, seed=0).to(device)
    weight = 1 + up[0]
    cos, sin = numbers(2, 1, 3, 24, dtype=dtype, seed=1).to(device)
    q, k = numbers(1, 3, 6, 24, dtype=dtype, seed=2).to(device).transpose(1, 2).split([4, 2], dim=1)
    rows = torch.tensor([5, 0, 2], device=device)
    pairs = {}  # name -> (the kernels' result, torch's)
    for form, norm in NORMS.items():
        pairs[f"{form} norm"] = kernels.norm(x, weight, 1e-6, form), norm(x, weight, 1e-6)
    for name, activation in ACTIVATIONS.items():
        pairs[name] = kernels.gated(gate, up, name), activation(gate) * up
    rotated_q, rotated_k = kernels.rotary(q, k, cos, sin)
    pairs["rotated q"] = rotated_q, turned(q, cos, sin)
    pairs["rotated k"] = rotated_k, turned(k, cos, sin)
    empty = torch.zeros(1, 2, 7, 24, dtype=dtype, device=device)
    keys = empty.clone()
    values = empty.clone()
    kernels.write(keys, values, k, -k, rows)
    written = [empty.index_copy(2, rows, new) for new in (k, -k)]
    pairs["written rows"] = torch.cat([keys, values]), torch.cat(written)
    tolerance = max(4 * torch.finfo(dtype).eps, 4e-6)
    wrong = {}
    for bound, some in (
        (tolerance, pairs),
        (0.0, _trees(kernels, device) | _beams(kernels, device)),
        (1e-6, _ranked(kernels, device, dtype)),
    ):
        for name, (computed, expected) in some.items():
            computed, expected = computed.double(), expected.double()
            if not torch.allclose(computed, expected, bound, bound):
                wrong[name] = float((computed - expected).abs().max())
    return wrong


def _trees(kernels: Kernels, device: torch.device) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns a forest of two trees, an empty slot and rows of no slot, and its walks, by the kernels and torch."""
    tree = ProposalTree.build(
        [5, 6, 7, 8, 9, 8], [-1, 0, 0, 2, 2, 3], [0.0, -0.5, -1.0, -1.5, -2.0, -2.5], [1] + [2] * 5
    )
    records = [PaddedTree.pack(tree.select(list(range(nodes))), rows) for nodes, rows in ((6, 8), (4, 5), (1, 3))]
    numbers = torch.tensor([[0, 8, 13], [8, 5, 0], [40, 900, 0], [300, 20, 0], [310, 20, 0]])
    inputs = torch.cat([torch.cat(records, 1).flatten(), numbers.flatten()]).to(device)
    draws = torch.tensor([7, 0, 9, 0, 4, 0, 0, 0, 7, 0, 8, 3, 0, 0, 0, 0], device=device)
    expected = geometry(inputs, 3)
    names = [f"the tree's {name}" for name in (*Geometry._fields, "path", "kept rows")]
    computed = *kernels.geometry(inputs, 3), *kernels.accepted(inputs, expected.words, draws, 3)
    known = *expected, *accepted(inputs, expected.words, draws, 3)
    return dict(zip(names, zip(computed, known, strict=True), strict=True))


def _ranked(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns the top-k of three rows whose largest logits differ, by the kernels and by torch."""
    logits = numbers(3, 9000, dtype=dtype, seed=3).clamp(max=3)
    logits[:, 7::1024] = 4 + (torch.arange(27) * 5 % 27).view(3, 9).to(dtype) / 8
    logits = logits.to(device)
    known = best(logits, Wants(topk=MOST_FUSED, probabilities=True))
    ids, probabilities = kernels.topk(logits, MOST_FUSED, True)
    alone, _ = kernels.topk(logits, MOST_FUSED, False)
    assert probabilities is not None and known.probabilities is not None
    offsets = torch.arange(9000, device=device) % 97
    children_ids, gains = kernels.children(logits, MOST_FUSED, offsets)
    known_ids, known_gains = children(logits.float().log_softmax(-1), MOST_FUSED, offsets)
    return {
        "children": (children_ids, known_ids),
        "their log-probabilities": (gains, known_gains),
        "top-k": (alone, known.ids),
        "top-k with probabilities": (ids, known.ids),
        "probabilities": (probabilities, known.probabilities),
    }


def _beams(kernels: Kernels, device: torch.device) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns the beam of three nodes, of which no two children score alike, by the kernels and by torch."""
    scores, gains = numbers(2, 9, dtype=torch.float32, seed=4).to(device)
    nodes = torch.tensor([4, 1, 7], device=device)
    visible = torch.arange(18, device=device).view(3, 6) % 5 == 0
    given = scores, nodes, gains.view(3, 3), visible, 20
    names = "scores", "parents", "nodes", "nodes above", "visible rows"
    results = zip(kernels.beam(*given), beam(*given), strict=True)
    return {f"the beam's {name}": pair for name, pair in zip(names, results, strict=True)}

"""The fused kernels' functions computed with torch, which note what is called."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from longgraft.protocol.observation import Wants
from longgraft.target_model.module_forms import ACTIVATIONS, NORMS, turned
from longgraft.target_model.pass_geometry import accepted, geometry
from longgraft.target_model.topk import best, children
from longgraft.trees.beams import beam


class Torch:
    """Kernels that compute the forms with torch; called: the names of those that ran."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def norm(self, x, weight, epsilon, form):
        self.called.append("norm")
        return NORMS[form](x, weight, epsilon)

    def gated(self, gate, up, activation):
        self.called.append("gated")
        return ACTIVATIONS[activation](gate) * up

    def rotary(self, q, k, cos, sin):
        self.called.append("rotary")
        return turned(q, cos, sin), turned(k, cos, sin)

    def write(self, keys, values, k, v, rows):
        keys.index_copy_(2, rows, k)
        values.index_copy_(2, rows, v)

    geometry = staticmethod(geometry)
    accepted = staticmethod(accepted)

    def children(self, logits, k, offsets):
        self.called.append(f"{k} children")
        return children(logits.float().log_softmax(-1), k, offsets)

    beam = staticmethod(beam)

    def topk(self, logits, k, probabilities):
        self.called.append(f"top {k}")
        return best(logits, Wants(topk=k, probabilities=probabilities))

    def product(self, x, weights, biases, residual=None):
        self.called.append("product")
        out = torch.cat([F.linear(x, *each) for each in zip(weights, biases, strict=True)], 1)
        return out if residual is None else residual + out

    def gated_product(self, x, gate, up, activation):
        self.called.append("gated product")
        return ACTIVATIONS[activation](F.linear(x, gate)) * F.linear(x, up)

    def rope_write(self, qkv, tables, buffers, rows, norms=None):
        self.called.append("rope write")
        kv_heads, _, size = buffers[0].shape[1:]
        heads = qkv.view(1, len(qkv), -1, size).transpose(1, 2)
        q, k, v = heads.split([heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
        if norms is not None:
            q, k = (NORMS[norms.form](x, weight, norms.epsilon) for x, weight in ((q, norms.q), (k, norms.k)))
        self.write(*buffers, turned(k, *tables), v, rows)
        return turned(q, *tables)

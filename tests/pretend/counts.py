"""Counts the operations of decoding steps on the pretend GPU: prints {case: {method: counts}} and probes as JSON.

python tests/pretend/counts.py [CASE ...]
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from pretend.device import CUDA, Answer, Event, Pretend, pretend
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PretrainedConfig, Qwen3Config

import longgraft.attention.triton as kernel
from longgraft.engine.engine import Engine
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.lane import Lane
from longgraft.engine.scheduler import advance
from longgraft.engine.step import Step
from longgraft.methods.find import build, find
from longgraft.methods.needs import HEAD
from longgraft.methods.parts import Parts
from longgraft.protocol.observation import Wants
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.target_model import common_form, fused_model, fused_modules, pass_geometry
from longgraft.target_model.model import Target
from longgraft.target_model.recorded_passes import ROWS, SLOTS
from longgraft.target_model.topk import best, children
from longgraft.trees.beams import beam
from longgraft.trees.padded import SIZES
from longgraft.yarn_drafters.network import Eagle3Network, HeadConfig
from longgraft.yarn_drafters.rope import Rope

CHUNK = 512
YARN = Rope(kind="yarn", factor=32.0)
TOY: dict[str, Any] = dict(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=4096,
)


@dataclass(frozen=True)
class Case:
    """A target and a head of these shapes, in this number format.

    prompt: number of prompt tokens; steps: decoding steps, of which the last is counted, when everything is set up;
    lanes: numbers of requests at once
    """

    target: Callable[[], PretrainedConfig]
    head: HeadConfig
    dtype: torch.dtype
    methods: tuple[str, ...] = ("ar", "eagle3", "graft")
    attention: str = "auto"
    recorded: bool = False
    fused: bool = False
    prompt: int = 700
    steps: int = 4
    lanes: tuple[int, ...] = (1,)


def toy() -> LlamaConfig:
    return LlamaConfig(**TOY)


def windowed() -> MistralConfig:
    return MistralConfig(**TOY, sliding_window=300)


def llama() -> LlamaConfig:
    """Returns the configuration of Llama-3.1-8B."""
    return LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )


def qwen() -> Qwen3Config:
    """Returns the configuration of Qwen3-8B."""
    return Qwen3Config(
        vocab_size=151936,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
    )


TOY_HEAD = HeadConfig(64, 64, 96, 4, 2, 16, 512, 256, (1, 2, 3), 4096, YARN)
EIGHT = {
    "llama": (llama, HeadConfig(4096, 4096, 14336, 32, 8, 128, 128256, 32000, (2, 16, 29), 65536, YARN)),
    "qwen": (qwen, HeadConfig(4096, 4096, 12288, 32, 8, 128, 151936, 32000, (2, 18, 33), 65536, YARN)),
}
CASES = (
    {
        "toy-float32": Case(toy, TOY_HEAD, torch.float32),
        "toy-bfloat16": Case(toy, TOY_HEAD, torch.bfloat16),
        "toy-sdpa": Case(toy, TOY_HEAD, torch.float32, ("eagle3",), attention="sdpa"),
        "toy-window": Case(windowed, TOY_HEAD, torch.bfloat16, ("ar",)),
        "toy-recorded": Case(
            toy, TOY_HEAD, torch.bfloat16, ("ar", "eagle3", "graft", "graft-x", "retrieval"), recorded=True
        ),
        "toy-fused": Case(
            toy, TOY_HEAD, torch.bfloat16, ("ar", "eagle3", "graft", "retrieval", "graft-x"), recorded=True, fused=True
        ),
    }
    | {
        "toy-served": Case(
            toy, TOY_HEAD, torch.bfloat16, ("ar",), recorded=True, fused=True, prompt=100, lanes=(1, 4, 8, 16)
        )
    }
    | {  # few steps, because these models are deep; regions are recorded by the second step
        name: Case(*shapes, torch.bfloat16, prompt=300, steps=2) for name, shapes in EIGHT.items()
    }
    | {
        "llama-served": Case(
            *EIGHT["llama"],
            torch.bfloat16,
            ("ar",),
            recorded=True,
            fused=True,
            prompt=100,
            steps=3,
            lanes=(1, 4, 8, 16),
        )
    }
    | {
        f"{name}-fused": Case(*shapes, torch.bfloat16, recorded=True, fused=True, prompt=300, steps=3)
        for name, shapes in EIGHT.items()
    }
)


def gate(nth: int, like: Tensor) -> Tensor:
    """Opens two gates and closes the third, so that most levels are drafted and slots are left to fill."""
    return torch.full_like(like, -0.01 if nth < 2 else -9.0)


def drafted(_: int, like: Tensor) -> Tensor:
    """Returns ten children of the root and a chain under the second.  Rows: pool index, token, parent, score."""
    n = like.shape[1]
    nodes = torch.arange(n)
    parents = torch.where(nodes < 10, -1, torch.where(nodes == 10, 1, nodes - 1))
    return torch.stack([nodes, 100 + nodes, parents, torch.zeros(n)])


def preferred(_: int, like: Tensor) -> Tensor:
    """Makes the target follow that chain for three nodes, so that rows of the cache must move."""
    said = torch.zeros_like(like)
    for node, token in ((0, 101), (2, 110), (11, 111)):
        if node < len(said):
            said[node] = token
    return said


def told(_: int, like: Tensor) -> Tensor:
    """Returns the result of a pass: trees, paths, their lengths, the next tokens.

    One tree kept its root and one child; each of several trees is a root.
    """
    slots = next(n for n in (1, *SLOTS) if (len(like) - 2 * n) % 7 == 0 and (len(like) - 2 * n) // 7 in (*SIZES, *ROWS))
    rows = (len(like) - 2 * slots) // 7
    said = torch.zeros(7, rows, dtype=torch.int64)
    said[0], said[1], said[2], said[4], said[5] = torch.arange(rows), 0, 1, 2, 1
    said[1:3, 0], said[4, 0] = torch.tensor([-1, 0]), 1
    kept = 1 if slots > 1 else min(2, rows)
    said[6] = -1
    said[6, :kept] = torch.arange(kept)
    return torch.cat([said.flatten(), torch.full((slots,), kept), torch.full((slots,), 7)])


ANSWERS: dict[str, Answer] = {
    "longgraft.drafters.pruning:__call__": gate,
    "longgraft.drafters.pruning:mass": lambda _, like: torch.full_like(like, 0.9),
    "longgraft.drafters.eagle3:_on_host": drafted,
    "longgraft.target_model.recorded_passes:on_host": told,
    "longgraft.acceptance.rules:__call__": preferred,
}


class Recorded:
    """A recorder that refuses regions a capture would refuse; `launches` counts the launches of all replays by name."""

    def __init__(self, device: Pretend) -> None:
        self.device, self.launches = device, Counter[str]()

    def __call__(self, region: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        region()
        begin = len(self.device.log)
        made = region()
        held = self.device.log[begin:]
        assert not (wrong := [event for event in held if event.kind != "launch"]), f"inside a capture: {wrong}"

        def replay() -> None:
            self.device.note("replay", "graph")
            self.launches.update(event.name for event in held)

        return replay, made


def attention(q: Tensor, *_: Any) -> Tensor:
    """Launches two kernels, as many as tree attention, which cannot run here."""
    return q.clone().clone()


@dataclass(frozen=True)
class Fused:
    """Replaces `kernels.fused_triton`, whose functions launch one kernel each."""

    device: Pretend

    def norm(self, x: Tensor, *_: Any) -> Tensor:
        return self._one("norm", x)

    def gated(self, gate: Tensor, *_: Any) -> Tensor:
        return self._one("gated", gate)

    def rotary(self, q: Tensor, k: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        return self._one("rotary", q), torch.empty_like(k)

    def write(self, keys: Tensor, *_: Any) -> None:
        self.device.note("launch", "write")

    def product(self, x: Tensor, weights: list[Tensor], *_: Any) -> Tensor:
        return self._one("product", x.new_empty(len(x), sum(map(len, weights))))

    def gated_product(self, x: Tensor, gate: Tensor, *_: Any) -> Tensor:
        return self._one("gated product", x.new_empty(len(x), len(gate)))

    def rope_write(self, qkv: Tensor, _: Any, buffers: tuple[Tensor, Tensor], *__: Any) -> Tensor:
        kv_heads, _, size = buffers[0].shape[1:]
        heads = qkv.shape[1] // size - 2 * kv_heads
        return self._one("rope write", qkv.new_empty(1, len(qkv), heads, size)).transpose(1, 2)

    def geometry(self, *given: Any) -> tuple[Tensor, ...]:
        return self._as("geometry", pass_geometry.geometry, *given)

    def accepted(self, *given: Any) -> tuple[Tensor, ...]:
        return self._as("accepted", pass_geometry.accepted, *given)

    def topk(self, logits: Tensor, k: int, probabilities: bool) -> tuple[Tensor, ...]:
        return self._as("ranked", best, logits, Wants(topk=k, probabilities=probabilities))

    def children(self, logits: Tensor, k: int, offsets: Tensor) -> tuple[Tensor, ...]:
        return self._as("children", lambda: children(logits.float().log_softmax(-1), k, offsets))

    def beam(self, *given: Any) -> tuple[Tensor, ...]:
        return self._as("beam", beam, *given)

    def _as(self, name: str, torchs: Callable[..., Any], *given: Any) -> tuple[Tensor, ...]:
        """Notes one launch for what torch computes in several."""
        begin = len(self.device.log)
        made = torchs(*given)
        del self.device.log[begin:]
        self.device.note("launch", name)
        return made

    def _one(self, name: str, like: Tensor) -> Tensor:
        self.device.note("launch", name, like)
        return torch.empty_like(like)


def made(device: Pretend, case: Case) -> tuple[Target, Eagle3Network]:
    """Builds target and head once for all methods of a case, because building a large model is slow."""
    model = device.module(lambda: AutoModelForCausalLM.from_config(case.target(), dtype=case.dtype))
    fused = None
    if case.fused:
        kernels = Fused(device)
        fused = fused_modules.FusedModules(model, kernels, *fused_model.fused_layers(model, kernels))
    target = Target(model, attention=case.attention, fused=fused)
    return target, device.module(lambda: Eagle3Network(case.head, own_embedding=True).to(case.dtype))


def counted(
    device: Pretend, case: Case, pair: tuple[Target, Eagle3Network], method: str, lanes: int = 1
) -> dict[str, Any]:
    """Counts the last of a few steps: tokens, events by kind and by place, operations by name, replayed launches.

    Two numbers are of the whole request: queries of the allocator, and bytes of the largest tensor made.
    """
    target, head = pair
    recorder = Recorded(device)
    parts = Parts(target, {HEAD.name: head}, regions=Regions(recorder) if case.recorded else EAGER)

    def lane() -> Lane:
        own = replace(parts, kept={}, clock=Clock())
        return Lane(target, build(method, own), own.clock, own.regions)

    engine = Engine(lane(), find(method).budget, CHUNK)
    if case.recorded:
        engine.lanes[0].pool.plan(lambda: lanes * 1024)
    engine.lanes += [lane().beside(engine.lanes[0]) for _ in range(lanes - 1)]
    log: list[Event] = []
    device.log.clear()
    ids = [n % 500 for n in range(case.prompt)]
    requests = [engine.open(GenerationRequest(ids, 64), lane=one) for one in engine.lanes]
    chunks = -(-case.prompt // CHUNK)
    for number in range(chunks + case.steps):
        log += device.log
        device.log.clear()
        recorder.launches.clear()
        if lanes == 1:
            steps = [requests[0].step()]
        elif number < chunks:  # alone, because a shared pass of prompts is another number of launches
            steps = [request.step() for request in requests]
        else:
            steps = advance(requests)
        assert all(isinstance(step, Step) for step in steps), steps
    last = list(device.log)
    assert parts.regions.fixed == case.recorded
    for request in requests:
        request.close()
    log += device.log
    return {
        "tokens": sum(len(step.tokens) for step in steps),
        "kinds": Counter(event.kind for event in last),
        "waits": Counter(f"{event.kind} {event.place}:{event.line}" for event in last if event.kind != "launch"),
        "recorded": recorder.launches,
        "operations": Counter(event.name for event in last if event.kind == "launch"),
        "statistics": Counter(event.name for event in log if event.kind == "statistics"),
        "largest": max(event.bytes for event in log if event.kind == "launch"),
    }


def probed(device: Pretend) -> dict[str, list[str]]:
    """Lists the kinds of events that common ways to write an operation cause."""
    numbers = torch.arange(3)
    pinned, there, weight = numbers.pin_memory(), numbers.to(CUDA), torch.ones(2, 3, device=CUDA)
    ways: dict[str, Callable[[], object]] = {
        "to": lambda: numbers.to(CUDA),
        "to, pinned": lambda: pinned.to(CUDA),
        "to, not blocking": lambda: numbers.to(CUDA, non_blocking=True),
        "to, pinned and not blocking": lambda: pinned.to(CUDA, non_blocking=True),
        "to, pinned and not blocking, of another dtype": lambda: pinned.to(CUDA, torch.int32, non_blocking=True),
        "tensor": lambda: torch.tensor([1, 2], device=CUDA),
        "index by a list": lambda: there[[0, 2]],
        "index on the device": lambda: there[there],
        "assign a number": lambda: there.__setitem__(there, 1),
        "assign on the device": lambda: there.__setitem__(there, there),
        "assign a number to a slice": lambda: there.__setitem__(slice(1), 1),
        "index_fill_": lambda: there.index_fill_(0, there, 1),
        "tolist": lambda: there.tolist(),
        "int": lambda: int(there[0]),
        "cpu": lambda: there.cpu(),
        "arange": lambda: torch.arange(3, device=CUDA),
        "views": lambda: weight.view(3, 2)[1:].T.expand(1, -1, -1),
        "empty": lambda: weight.new_empty(5),
        "reshape of a transposed": lambda: weight.T.reshape(6),
        "linear": lambda: torch.nn.functional.linear(weight, weight),
        "synchronize": lambda: torch.cuda.synchronize(),
    }
    found = {}
    for name, way in ways.items():
        device.log.clear()
        with torch.inference_mode():
            way()
        found[name] = [event.kind for event in device.log]
    return found


def norm_of(module: torch.nn.Module) -> tuple[str, float] | None:
    """Does `module_forms.norm_of` for the norms of these models and of the head, by the names of their epsilons."""
    epsilon = vars(module).get("variance_epsilon", vars(module).get("eps"))
    return None if epsilon is None else ("rounded", epsilon)


def main(names: list[str]) -> None:
    device = pretend(ANSWERS)
    kernel.tree_attention = attention
    # Norms and layers are recognised by their results for real numbers, which fake tensors do not have.
    fused_modules.norm_of = common_form.norm_of = norm_of
    common_form._plain_linear = lambda module: type(module) is torch.nn.Linear
    fused_model._why_not = fused_model._why_slower = lambda *_: ""
    with device:
        found: dict[str, Any] = {}
        for name in names:
            pair = made(device, CASES[name])
            case = CASES[name]
            found[name] = {
                method if lanes == 1 else f"{method} x {lanes}": counted(device, case, pair, method, lanes)
                for method in case.methods
                for lanes in case.lanes
            }
        print(json.dumps(found | {"probes": probed(device)}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:] or list(CASES))

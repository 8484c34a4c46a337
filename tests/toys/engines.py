"""Pretended vLLM and SGLang: what their schedulers show a proposer, and targets whose answers are known."""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType, SimpleNamespace

import numpy as np
import torch

from longgraft.plugins import texts


def passage(tokens: int, seed: int = 0) -> list[int]:
    """Returns random tokens, of which hardly any pair comes twice."""
    return np.random.default_rng(seed).integers(1, 50_000, tokens).tolist()


@dataclass(eq=False)
class Asked:
    """A request, and the answer that the target will give."""

    prompt: list[int]
    answer: list[int]
    rid: str = ""
    output_ids: array = field(default_factory=lambda: array("q"))
    chunks: int = 1  # steps in which its prompt is read
    drafted: list[int] = field(default_factory=list)

    @cached_property
    def origin_input_ids_unpadded(self) -> array:
        return array("q", self.prompt)

    @property
    def is_done(self) -> bool:
        return len(self.output_ids) >= len(self.answer)


def copying(seed: int, tokens: int = 400, answer: int = 100, chunks: int = 1) -> Asked:
    """Returns a request whose answer is a passage of its prompt."""
    prompt = passage(tokens, seed)
    return Asked(prompt, prompt[50 : 50 + answer], rid=f"r{seed}", chunks=chunks)


def counted_reads(monkeypatch) -> list[int]:
    """Returns a list that gets the length of each text that a plug-in reads from its beginning."""
    lengths = []
    read = texts._read

    def counting(tokens):
        lengths.append(len(tokens))
        return read(tokens)

    monkeypatch.setattr(texts, "_read", counting)
    return lengths


def vllm_module(version: str = "0.33.0") -> dict[str, ModuleType]:
    module = ModuleType("vllm")
    module.__version__ = version  # type: ignore[attr-defined]
    return {"vllm": module}


def vllm_config(most: int = 16, longest: int = 4096, **options) -> SimpleNamespace:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=most),
        model_config=SimpleNamespace(max_model_len=longest),
        additional_config={"longgraft": options} if options else {},
    )


class VllmRunner:
    """The rows of vLLM's V1 runner.  Requests come, leave, move and pause between two steps."""

    def __init__(self, proposer, places: int = 16, longest: int = 4096) -> None:
        self.proposer = proposer
        self.rows: list[Asked] = []
        self.tokens = np.zeros((places, longest), np.int32)
        self.steps = 0

    def step(self) -> None:
        sampled = []
        for row in self.rows:
            row.chunks -= 1
            if row.chunks > 0 or row.is_done:
                sampled.append([])
                continue
            written = len(row.output_ids)
            right = 0
            while row.drafted[right : right + 1] == row.answer[written + right : written + right + 1] != []:
                right += 1
            sampled.append(row.answer[written : written + right + 1])
            row.output_ids.extend(sampled[-1])
        known = np.zeros(len(self.tokens), np.int32)
        for place, row in enumerate(self.rows):
            text = row.prompt + list(row.output_ids)
            self.tokens[place] = -1  # what another request left there
            self.tokens[place, : len(text)] = text
            known[place] = len(text)
        chains = self.proposer.propose(sampled, known, self.tokens, slot_mappings=None)
        assert len(chains) == len(self.rows)
        for row, chain in zip(self.rows, chains, strict=True):
            row.drafted = chain
        self.steps += 1

    def finish(self) -> None:
        while not all(row.is_done for row in self.rows):
            self.step()


def sglang_modules(version: str = "0.5.23") -> dict[str, ModuleType]:
    """Returns the modules of SGLang that the plug-in imports, with what it uses of them."""
    root = ModuleType("sglang")
    root.__version__ = version  # type: ignore[attr-defined]
    modules = {"sglang": root}
    for name, content in (
        ("sglang.srt", ()),
        ("sglang.srt.speculative", ()),
        ("sglang.srt.speculative.spec_info", (SpeculativeAlgorithm,)),
        ("sglang.srt.speculative.spec_registry", (CustomSpecAlgo,)),
        ("sglang.srt.speculative.ngram_worker", (NGRAMWorker,)),
    ):
        modules[name] = ModuleType(name)
        for one in content:
            setattr(modules[name], one.__name__, one)
    return modules


OURS = ("vllm", "sglang_algorithm", "sglang_worker", "llama_cpp")


def pretend(monkeypatch, modules: dict[str, ModuleType]) -> None:
    """Makes modules importable, and our plug-ins forget those that they saw before."""
    for name in OURS:
        monkeypatch.delitem(sys.modules, f"longgraft.plugins.{name}", raising=False)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


class CustomSpecAlgo:
    def __init__(self, name, factory, *, supports_overlap=False, validate_server_args=None):
        self.name = name
        self.factory = factory
        self.supports_overlap = supports_overlap

    def create_worker(self, server_args):
        return self.factory(server_args)


class SpeculativeAlgorithm:
    registered: dict[str, CustomSpecAlgo] = {}  # noqa: RUF012

    @classmethod
    def register(cls, name, *, supports_overlap=False, validate_server_args=None, spec_class=CustomSpecAlgo):
        def decorator(factory):
            cls.registered[name] = spec_class(name=name, factory=factory, supports_overlap=supports_overlap)
            return factory

        return decorator

    def create_future_map(self, device, req_to_token_pool, needs_cpu_seq_lens=True, needs_confidence_relay=False):
        return self, device


class NGRAMWorker:
    """SGLang's worker without its corpus: it verifies the trees that a subclass prepares."""

    def __init__(self, server_args, gpu_id, nccl_port, target_worker):
        self.enable_overlap = not server_args.disable_overlap_schedule
        self.draft_token_num = server_args.speculative_num_draft_tokens
        self.is_cleared = False

    def clear_cache_pool(self):
        self.is_cleared = True

    def _prepare_draft_tokens(self, batch):
        raise AssertionError("the corpus of SGLang is not used")

    _update_ngram_corpus = _prepare_draft_tokens

    def forward_batch_generation(self, batch, on_publish=None, pp_proxy_tensors=None):
        """Returns what the step adds to each request's answer."""
        starts = [len(one.output_ids) + len(late) for one, late in zip(batch.reqs, batch.late, strict=True)]
        if not batch.forward_mode.is_decode():
            return [one.answer[start : start + 1] for one, start in zip(batch.reqs, starts, strict=True)]
        tokens, mask = self._prepare_draft_tokens(batch)
        n = self.draft_token_num
        trees = zip(torch.from_numpy(tokens).view(-1, n), torch.from_numpy(mask).view(-1, n, n), strict=True)
        added = [
            walk(*tree, one.answer[start - 1 :]) for tree, one, start in zip(trees, batch.reqs, starts, strict=True)
        ]
        self._update_ngram_corpus(batch)
        return added


def walk(tokens: torch.Tensor, ancestors: torch.Tensor, answer: list[int]) -> list[int]:
    """Returns what a tree's accepted path and the target's own token add to an answer, whose last token is the root."""
    assert tokens[0] == answer[0], "the root is the last token"
    node = 0
    added: list[int] = []
    while len(added) < len(answer) - 1:
        added.append(answer[len(added) + 1])
        children = [n for n in range(node + 1, len(tokens)) if parent(ancestors, n) == node]
        assert len({int(tokens[n]) for n in children}) == len(children), "siblings have the same token"
        right = [n for n in children if tokens[n] == added[-1]]
        if not right:
            break
        node = right[0]
    return added


def parent(ancestors: torch.Tensor, node: int) -> int:
    return int(torch.nonzero(ancestors[node, :node]).max())


class SglangScheduler:
    """SGLang's scheduler: with overlap a step's results are processed after the next one was launched.

    Attributes:
        has_grammar: A request has a grammar, so results are processed at once.
    """

    def __init__(self, worker, overlap: bool = True) -> None:
        self.worker = worker
        self.overlap = overlap
        self.has_grammar = False
        self.running: list[Asked] = []
        self._late: dict[Asked, list[int]] = {}
        self.steps = 0

    def prefill(self, *requests: Asked) -> None:
        self._forward(list(requests), is_decode=False)
        self.running += requests

    def step(self) -> None:
        self._forward(list(self.running), is_decode=True)
        self.steps += 1

    def finish(self) -> None:
        while self.running:
            self.step()
            self.running = [one for one in self.running if not one.is_done]

    def _forward(self, requests: list[Asked], is_decode: bool) -> None:
        late = [self._late.get(one, []) for one in requests]
        n = self.worker.draft_token_num
        padded = [row + [0] * (n - len(row)) for row in late]
        batch = SimpleNamespace(
            reqs=requests,
            late=late,
            forward_mode=SimpleNamespace(is_decode=lambda: is_decode),
            grammar_needs_sync=lambda: self.has_grammar,
            spec_info=SimpleNamespace(
                accept_tokens=torch.tensor(padded).flatten(), accept_lens=torch.tensor([len(row) for row in late])
            ),
        )
        added = self.worker.forward_batch_generation(batch)
        for one, new in zip(requests, added, strict=True):
            one.output_ids.extend(self._late.pop(one, []))
            if self.overlap and not self.has_grammar:
                self._late[one] = new
            else:
                one.output_ids.extend(new)

    def settle(self) -> None:
        """Processes what is late, as before a grammar's first step."""
        for one, new in self._late.items():
            one.output_ids.extend(new)
        self._late.clear()


def server_args(**given) -> SimpleNamespace:
    usual = {
        "speculative_ngram_min_bfs_breadth": 1,
        "speculative_ngram_max_bfs_breadth": 10,
        "speculative_ngram_match_type": "BFS",
        "speculative_ngram_max_trie_depth": 18,
        "speculative_ngram_capacity": 10_000_000,
        "speculative_ngram_external_corpus_path": None,
        "speculative_ngram_external_sam_budget": 0,
        "speculative_num_steps": None,
        "speculative_eagle_topk": None,
        "speculative_num_draft_tokens": None,
        "max_running_requests": None,
        "enable_mixed_chunk": False,
        "enable_dp_attention": False,
        "disable_overlap_schedule": False,
        "page_size": 1,
        "attention_backend": "triton",
        "device": "cuda",
    }
    return SimpleNamespace(**usual | given)


def start_sglang(monkeypatch, overlap=True, options=None, nodes=12) -> SglangScheduler:
    pretend(monkeypatch, sglang_modules())
    monkeypatch.setattr(SpeculativeAlgorithm, "registered", {})
    from longgraft.plugins.sglang import register

    register(options=options)
    algorithm = SpeculativeAlgorithm.registered["LONGGRAFT"]
    args = server_args(disable_overlap_schedule=not overlap, speculative_num_draft_tokens=nodes)
    algorithm.handle_server_args(args)
    worker = algorithm.create_worker(args)(server_args=args, gpu_id=0, nccl_port=0, target_worker=None)
    return SglangScheduler(worker, overlap)


def start_vllm(monkeypatch, version="0.33.0", most=16, longest=4096, **options):
    """Returns vLLM's proposer."""
    pretend(monkeypatch, vllm_module(version))
    from longgraft.plugins.vllm import TextProposer

    return TextProposer(vllm_config(most, longest, **options))


def llama_modules(version: str = "0.3.36") -> dict[str, ModuleType]:
    module, drafts = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    module.__version__ = version  # type: ignore[attr-defined]
    module.Llama = Llama  # type: ignore[attr-defined]
    drafts.LlamaDraftModel = LlamaDraftModel  # type: ignore[attr-defined]
    return {"llama_cpp": module, "llama_cpp.llama_speculative": drafts}


class LlamaDraftModel:
    def __call__(self, input_ids, /, **kwargs):
        raise NotImplementedError


class Llama:
    """llama-cpp-python's model, which copies its prompt; it verifies what a draft model proposes."""

    def __init__(self, path, draft_model=None, **given):
        self.draft_model = draft_model
        self.passes = 0

    def reset(self):
        self.passes = 0

    close = reset

    def generate(self, tokens, temp, reset=True):
        text = list(tokens)
        drafted = []
        while True:
            self.passes += 1
            right = True
            for proposed in [*drafted, None]:
                if right:
                    text.append(text[len(text) - len(tokens)])
                    right = proposed == text[-1]
                    yield text[-1]
            if self.draft_model is not None:
                drafted = self.draft_model(np.array(text, np.intc)).tolist()


LLAMA_BUFFER = np.zeros(4096, np.intc)  # llama-cpp-python passes views of one buffer


def llama_steps(draft, asked: Asked) -> int:
    """Decodes a request as llama-cpp-python's `generate` does; returns the number of passes."""
    asked.output_ids.extend(asked.answer[:1])
    steps = 1
    text = LLAMA_BUFFER[: len(asked.prompt) + len(asked.answer)]
    text[:] = [*asked.prompt, *asked.answer]
    while not asked.is_done:
        written = len(asked.output_ids)
        asked.drafted = draft(text[: len(asked.prompt) + written]).tolist()
        right = 0
        while asked.drafted[right : right + 1] == asked.answer[written + right : written + right + 1] != []:
            right += 1
        asked.output_ids.extend(asked.answer[written : written + right + 1])
        steps += 1
    return steps

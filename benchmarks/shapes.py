"""Models of real shapes with random weights, and decoding states after a random prefix, without any prefill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import transformers
from torch import Tensor

from longgraft.acceptance.rules import Greedy
from longgraft.drafters.eagle3 import LEVELS, TOP_K, Eagle3Drafter
from longgraft.drafters.matrix import MatrixRetriever
from longgraft.drafters.pruning import Dense
from longgraft.memories.adjacency import WIDTH, AdjacencyMatrix
from longgraft.memories.adjacency_memory import AdjacencyMemory, MatrixWrites
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.runtime.kv_cache import KVCache, rounded
from longgraft.runtime.kv_pool import KVPool
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.target_model.recorded_passes import RecordedPasses
from longgraft.target_model.static_pass import Slot
from longgraft.target_model.verifier import Verifier
from longgraft.trees.padded import Tree
from longgraft.trees.tree import DRAFT, ROOT, ProposalTree
from longgraft.yarn_drafters.network import Eagle3Network, HeadConfig
from longgraft.yarn_drafters.rope import Rope

YARN = Rope(kind="yarn", factor=32.0, original=2048)  # the rotary embedding of the 64K heads
BEHIND = 64 + LEVELS * TOP_K + 64  # rows after a prefix: a tree, a draft, fed tokens


@dataclass(frozen=True)
class Shape:
    """Sizes of a public target and its EAGLE-3 head.

    name: the target's name in the key of a session's costs
    config: fields of transformers' configuration class `family`; mlp, draft_vocab: sizes of the head
    """

    name: str
    family: str
    config: Mapping[str, Any]
    mlp: int
    draft_vocab: int = 32_000

    def small(self) -> Shape:
        """Returns a toy of the same family for a rehearsal; the number of positions stays."""
        sizes = dict(
            vocab_size=512,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
        )
        return replace(self, name=f"toy-{self.name}", config={**self.config, **sizes}, mlp=96, draft_vocab=256)

    def target(self, device: torch.device, dtype: torch.dtype, attention: str = "auto") -> Target:
        """Makes a target with random weights.  It is not cast, because that would cast its rotary frequencies, too."""
        config = getattr(transformers, self.family)(**self.config)
        with torch.device(device):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
        return Target(model.eval(), self.name, attention)

    def network(self, target: Target) -> Eagle3Network:
        """Makes a head for the target, which shares its embedding."""
        c = target.config
        config = HeadConfig(
            hidden_size=c.hidden_size,
            target_hidden_size=c.hidden_size,
            intermediate_size=self.mlp,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_dim=c.head_dim,
            vocab_size=c.vocab_size,
            draft_vocab_size=self.draft_vocab,
            max_positions=65_536,
            rope=YARN,
            layout="specpv",
            feature_layers=(2, c.num_hidden_layers // 2, c.num_hidden_layers - 3),
        )
        with torch.device(target.device):
            network = Eagle3Network(config).to(target.dtype)
        network.share_embedding(target.model.get_input_embeddings())
        return network.eval()


def _rope(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


def _qwen2(name: str, hidden: int, inner: int, layers: int, heads: int) -> Shape:
    """Returns the shape of a small Qwen2.5 with two key heads."""
    config = {
        "vocab_size": 151_936,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "head_dim": hidden // heads,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        **_rope(1e6),
    }
    return Shape(name, "Qwen2Config", config, mlp=inner)


SHAPES = {
    "llama-3.1-8b": Shape(
        "Llama-3.1-8B-Instruct",
        "LlamaConfig",
        {
            "vocab_size": 128_256,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            **_rope(
                5e5,
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=8192,
            ),
        },
        mlp=14_336,
    ),
    "qwen3-8b": Shape(
        "Qwen3-8B",
        "Qwen3Config",
        {
            "vocab_size": 151_936,
            "hidden_size": 4096,
            "intermediate_size": 12_288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40_960,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            **_rope(1e6),
        },
        mlp=12_288,
    ),
    "qwen2.5-0.5b": _qwen2("Qwen2.5-0.5B", 896, 4864, layers=24, heads=14),
    "qwen2.5-1.5b": _qwen2("Qwen2.5-1.5B", 1536, 8960, layers=28, heads=12),
    "embedded": Shape(
        "embedded",
        "Qwen3Config",
        {
            "vocab_size": 4096,
            "hidden_size": 256,
            "intermediate_size": 768,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "max_position_embeddings": 65_536,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
            **_rope(1e6),
        },
        mlp=768,
        draft_vocab=3584,
    ),
}


class Rig:
    """A target and its drafter after a prefix of random keys and values.  longest: most tokens of the prefix"""

    def __init__(self, target: Target, network: Eagle3Network, longest: int, regions: Regions = EAGER) -> None:
        self.target, self.network, self.regions = target, network, regions
        self.memory = Eagle3Cache(network, kernels=target.kernels, regions=regions, fused=target.fused_kernels)
        self.wants = Wants(topk=WIDTH) | self.memory.wants
        self.verifier = Verifier(target, target.cache(longest + BEHIND), Greedy(), Clock(), regions)
        seen = self.verifier.verify(ProposalTree.root_only(0), self.wants)  # the first pass makes the buffers
        fill(self.verifier.cache)
        self._features = {layer: rows[:1].clone() for layer, rows in seen.hidden.items()}
        self.memory.room(LEVELS * TOP_K)
        self.memory.reset(longest + BEHIND)
        self.draft(Eagle3Drafter(self.memory, Dense(), 1), 0, 1)
        fill(self.memory.cache)

    def verify(self, tree: Tree, prefix: int) -> Observation:
        """Runs a pass after this many tokens; the next pass does not depend on what it accepts."""
        self.verifier.cache.length = prefix
        return self.verifier.verify(tree, self.wants)

    def requests(self, most: int, prefix: int) -> Callable[[int], None]:
        """Returns a plain step of so many requests, at most `most`, each after this many tokens of its own."""
        pool = KVPool(self.target.cache(0), lambda: most * rounded(prefix + BEHIND))
        caches = [pool.cache() for _ in range(most)]
        for cache in caches:
            cache.reserve(prefix + BEHIND)
        root = ProposalTree.root_only(0)
        self.target.run([Segment(root, caches[0])], Wants())  # the first pass makes the buffers
        fill(pool.whole)
        passes = RecordedPasses(self.target, pool.whole, self.regions)

        def step(count: int) -> None:
            for cache in caches[:count]:
                cache.length = prefix
            if self.regions.fixed:
                slots = [Slot(root, cache, Greedy()) for cache in caches[:count]]
                for launched in passes.forward(slots, Wants()):
                    launched.result()
                return
            for report in self.target.run([Segment(root, cache) for cache in caches[:count]], Wants()):
                int(report.logits.argmax())

        return step

    def draft(self, drafter: Eagle3Drafter, prefix: int, fed: int = 0) -> Tree:
        """Makes a proposal after this many tokens, once `fed` more tokens were observed."""
        self.memory.cache.length = prefix
        if fed:
            self.memory.observe(self.observed(fed))
        return drafter.propose(Ask(0, 60, prefix + fed))

    def drafter(self, levels: int, top_k: int = TOP_K) -> Eagle3Drafter:
        """Makes a drafter that never stops early: `levels` levels in all, including the root's."""
        return Eagle3Drafter(self.memory, Dense(), levels, top_k)

    def observed(self, fed: int) -> Observation:
        """Returns an observation of this many kept tokens, with their features."""
        return Observation(
            ProposalTree.chain(torch.arange(fed)),
            torch.arange(fed),
            0,
            hidden={layer: row.expand(fed, -1) for layer, row in self._features.items()},
        )

    @cached_property
    def rows(self) -> AdjacencyMemory:
        """The adjacency matrix, with every row seen."""
        vocab, device = self.target.vocab_size, self.target.device
        memory = AdjacencyMemory(MatrixWrites(AdjacencyMatrix(vocab, device=device)), regions=self.regions)
        memory.matrix.update(torch.arange(vocab, device=device), self._successors(vocab, device))
        return memory

    @cached_property
    def retriever(self) -> MatrixRetriever:
        return MatrixRetriever(self.rows)

    @staticmethod
    def _successors(vocab: int, device: torch.device) -> Tensor:
        """Returns eight distinct successors for each token, [V, K] int32."""
        start = torch.randint(vocab, (vocab, 1), device=device)
        return ((start + torch.arange(WIDTH, device=device) * 7) % vocab).int()


def two_chains(rows: int) -> ProposalTree:
    """Returns a tree of two chains under the root, whose mask no causal mask equals."""
    return ProposalTree.build(
        list(range(1, rows + 1)),
        [-1, *(max(0, n - 2) for n in range(1, rows))],
        [0.0] * rows,
        [ROOT] + [DRAFT] * (rows - 1),
    )


def fill(cache: KVCache) -> None:
    """Fills a cache with random keys and values; zeros are faster to multiply, and old contents may be NaN."""
    for layer in cache.layers:
        if layer.is_initialized:
            layer.keys.normal_()
            layer.values.normal_()

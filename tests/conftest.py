"""Toy models: random weights, float32, one thread.  What they say is nonsense; that it is the same is the point."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path

# Tests take all cores and each of them one, also what it starts: of two threads, one waits for a core at every product.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

# Triton reads it once, when anything first imports it: its kernels are interpreted where they cannot run.
os.environ.setdefault("TRITON_INTERPRET", str(int(not torch.cuda.is_available())))

from longspec_toys import toy_longspec
from toy_dflash import shared_blocks
from toy_small import medusa_heads, small_model

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.cost_model import Costs, Live
from longgraft.engine.engine import Engine
from longgraft.engine.predicted_output import Prediction
from longgraft.engine.session import Generation, Session, answer
from longgraft.kernels.build import NotBuilt
from longgraft.kernels.cpu import FewRows, few_rows
from longgraft.methods.find import build, find, verifies
from longgraft.methods.needs import HEAD, MEDUSA
from longgraft.methods.needs import SMALL as SMALL_MODEL
from longgraft.methods.parts import Parts
from longgraft.methods.registry.blocks import DFLASH
from longgraft.methods.registry.long_context import LONGSPEC
from longgraft.methods.registry.retrieval import DATASTORE
from longgraft.prefill.prefixes import Prefixes
from longgraft.retrievers.datastore import Datastore
from longgraft.target_model.model import Target
from longgraft.yarn_drafters.network import Eagle3Network, HeadConfig
from longgraft.yarn_drafters.rope import Rope

VOCAB = 96
CAPTURING = "_output_capturing_hooks_installed"      # transformers sets it on a model with hooks of its own
GOLDEN = Path(__file__).parent / "golden"
FULL_GOLDEN = Path(__file__).parents[2] / "shared" / "golden"

SMALL = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512, pad_token_id=0, bos_token_id=None,
             eos_token_id=None)
FAMILIES = {        # configuration, the seed with which greedy answers vary and still come round, what else it needs
    "llama": ("LlamaConfig", 9, {}),
    "qwen3": ("Qwen3Config", 4, {"head_dim": 16}),
    "mistral-window": ("MistralConfig", 4, {"sliding_window": 24}),
    "qwen3-moe": ("Qwen3MoeConfig", 6, {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
                                        "moe_intermediate_size": 32}),
    "qwen2": ("Qwen2Config", 5, {}),
    # Tied, its embedding would make each token the most probable one after itself.
    "gemma2": ("Gemma2Config", 29, {"head_dim": 16, "sliding_window": 24, "tie_word_embeddings": False}),
    "gemma3": ("Gemma3TextConfig", 19, {"head_dim": 16, "sliding_window": 24, "tie_word_embeddings": False}),
}

SHARED: dict[str, torch.nn.Module] = {}     # those of `toy_model` that were made


@cache
def toy_model(family: str = "llama"):
    """A random model with something to say: no near ties, few repeats, and loops that a lookup can find.

    Its MLPs are loud, so that the last token decides most, and its attention less so, so that the rest still counts.
    """
    import transformers

    torch.set_num_threads(1)
    name, seed, extra = FAMILIES[family]
    torch.manual_seed(seed)
    config = getattr(transformers, name)(**SMALL, **extra)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32,
                                                          attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in name:
                parameter.mul_(8.0 if "self_attn" in name else 25.0)
    SHARED[family] = model
    return model


def hidden_states(model, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """ids [B, n] -> the embeddings and what each layer put out, [B, n, H], as transformers reports them.

    Of a copy: a model that was asked once keeps transformers' hooks for good (`output_capturing.py`).
    """
    return deepcopy(model)(ids, output_hidden_states=True).hidden_states


@cache
def toy_network(seed: int = 0) -> Eagle3Network:
    """A random drafter for `toy_model`, with half the vocabulary."""
    torch.manual_seed(seed)
    config = HeadConfig(hidden_size=32, target_hidden_size=32, intermediate_size=48, heads=4, kv_heads=2,
                        head_dim=8, vocab_size=VOCAB, draft_vocab_size=VOCAB // 2, feature_layers=(1, 2, 3),
                        max_positions=512, rope=Rope(kind="yarn", factor=4.0, original=128))
    network = Eagle3Network(config, own_embedding=True).eval()
    ids = torch.arange(0, VOCAB, 2)
    network.d2t.copy_(ids - torch.arange(len(ids)))
    network.t2d[ids] = True
    return network


# Files that take longest, or wait: they go first, so that no worker is left with one of them at the end.
FIRST = ("ray", "lossless", "benchmarks", "fixed", "sweep", "triton", "pretend", "bench", "measure", "partial", "cli",
         "mutations", "training_drafter", "docs", "kernels")


def pytest_addoption(parser) -> None:
    parser.addoption("--on", default="cuda", metavar="DEVICE", help="Of the tests marked gpu; cpu rehearses them.")


def pytest_configure(config) -> None:
    config.option.loadscopereorder = False      # pytest-xdist's own order, by numbers of tests, leaves few long ones


def pytest_collection_modifyitems(items) -> None:
    order = {f"test_{name}.py": n for n, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture(scope="session")
def device(request) -> torch.device:
    """Where the tests marked gpu run."""
    where = torch.device(request.config.getoption("--on"))
    if where.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here; benchmarks/gpu/check.sh runs this on one, `-m gpu --on cpu` rehearses it")
    return where


@pytest.fixture(autouse=True)
def unhooked() -> Iterator[None]:
    """A test that asks a shared model for its hidden states fails: it must ask a copy (`hidden_states`).

    Hooks of ours are not looked for: a server's thread may still be in a pass.
    """
    yield
    hooked = [family for family, model in SHARED.items() if hasattr(model.get_decoder(), CAPTURING)]
    for family in hooked:       # the tests behind this one have not done it
        del SHARED[family]
    assert not hooked, f"transformers left its hooks on the shared {hooked}"


@pytest.fixture(params=["llama", "qwen3", "mistral-window", "qwen3-moe"])
def family(request) -> str:
    return request.param


class Golden:
    """Outputs of the official implementations: the small set of this repository, else the full one beside it."""

    def __truediv__(self, name: str) -> Path:
        """A file or folder of theirs; what only the full set has is skipped where that is missing."""
        found = next((root / name for root in (GOLDEN, FULL_GOLDEN) if (root / name).exists()), None)
        if found is None:
            pytest.skip(f"{name} is in the full set of official outputs only: ../shared/golden beside this checkout")
        return found


@pytest.fixture
def golden() -> Golden:
    return Golden()


@pytest.fixture(scope="session")
def kernels() -> FewRows:
    """The compiled ones; where no compiler is, there is nothing to test."""
    if isinstance(built := few_rows(), NotBuilt):
        pytest.skip(f"no compiled kernels: {built}")
    return built


# A machine where a few rows cost little more than one and drafting is cheap: a controller has all its choices.
TOY_COSTS = Costs({}, "made up", {0: {1: 1.0, 60: 1.6}}, {0: {1: 0.02, 10: 0.03}}, {0: {1: 0.02, 64: 0.1}})


def toy_target(family: str = "llama", attention: str = "auto", kernels: FewRows | None = None) -> Target:
    return Target(toy_model(family), family, attention, kernels)


# What methods need, by the need's name, for a toy target and a seed.
TOYS: dict[str, Callable[[Target, int], object]] = {
    HEAD.name: lambda target, seed: toy_network(seed),
    SMALL_MODEL.name: lambda target, seed: small_model(target.vocab_size, seed),
    MEDUSA.name: lambda target, seed: medusa_heads(target, seed),
    LONGSPEC.name: toy_longspec,
    DFLASH.name: shared_blocks,
    DATASTORE.name: lambda target, seed: Datastore.build(np.array(toy_prompt(200, seed) + toy_prompt(40))),
}


@cache
def toys(family: str, seed: int) -> dict[str, object]:
    """All of TOYS: made once, as the model itself is."""
    return {name: toy(toy_target(family), seed) for name, toy in TOYS.items()}


def toy_parts(family: str = "llama", seed: int = 0, kernels: FewRows | None = None, **more) -> Parts:
    more.setdefault("costs", Live(TOY_COSTS, frozen=True))
    return Parts(toy_target(family, kernels=kernels), toys(family, seed), **more)


def toy_session(method, family: str = "llama", budget: int | None = None, chunk: int | None = 17,
                adaptive: bool = False, prefixes: Prefixes | None = None, **more) -> Session:
    """adaptive: the method chooses its budgets, where it can; prefixes: what is kept of prompts."""
    parts = toy_parts(family, **more)
    proposer = build(method, parts, adaptive)
    budget = budget or find(method).budget
    return Session(Engine(parts.target, proposer, parts.clock, budget, chunk, parts.regions,
                          verifies(method, parts), prefixes), None)


def answered(session: Session, ids: list[int], new: int, sampling: Sampling | None = None, eos=(), *,
             prediction: Prediction | None = None) -> Generation:
    """To the end, by ids alone."""
    return answer(session.open(ids, new, sampling, eos=eos, prediction=prediction))


def toy_prompt(length: int, seed: int = 0) -> list[int]:
    """Ids with repeated stretches, so that lookups find something."""
    generator = torch.Generator().manual_seed(seed)
    half = torch.randint(1, VOCAB, (max(1, length // 2),), generator=generator)
    return torch.cat([half, half, half])[:length].tolist()

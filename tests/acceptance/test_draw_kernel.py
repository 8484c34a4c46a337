"""The kernel draws a CPU's tokens: in Triton's interpreter, or on the device if there is one."""

from __future__ import annotations

import pytest
import torch
from toys.recorder import recorder
from toys.sessions import answered, toy_prompt, toy_session

from longgraft.acceptance import draws_on_gpu
from longgraft.acceptance.draw_kernel import COLUMNS, draw
from longgraft.acceptance.draws_on_gpu import COMPARED, SampledByKernel, different, rule_for
from longgraft.acceptance.gumbel import GOLDEN, gumbel, mix
from longgraft.acceptance.rejection import Rejection
from longgraft.acceptance.rules import Greedy, Sampled
from longgraft.acceptance.sampling import Sampling
from longgraft.runtime.cuda_graphs import Regions

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCABULARY = 97
SETTINGS = (
    Sampled(),
    Sampled(temperature=0.7),
    Sampled(top_k=5),
    Sampled(top_k=1),
    Sampled(top_p=0.95),
    Sampled(top_p=1e-6),
    Sampled(top_p=1 - 1e-6),
    Sampled(min_p=0.05),
    Sampled(temperature=0.7, top_k=20, top_p=0.8),
    Sampled(top_k=30, top_p=0.9, min_p=0.1),
)
# numpy warns of values that a device computes silently
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")


def hostile_rows(dtype: torch.dtype) -> torch.Tensor:
    """Returns logits [n, VOCABULARY]: smooth, flat, nearly flat, with ties, peaked, half excluded, one left."""
    numbers = torch.Generator().manual_seed(0)
    normal = torch.randn(VOCABULARY, generator=numbers)
    half = normal.clone()
    half[::2] = float("-inf")
    single = torch.full((VOCABULARY,), float("-inf"))
    single[31] = 1.0
    ties = torch.randint(-3, 3, (VOCABULARY,), generator=numbers).float()
    nearly_flat = torch.linspace(0, 1e-3, VOCABULARY)
    rows = [3 * normal, torch.zeros(VOCABULARY), nearly_flat, ties, 1e4 * normal, half, single]
    return torch.stack(rows).to(dtype)


def drawn(sampled: Sampled, logits: torch.Tensor, tile: int = 128, listed: int = 8192) -> list[int]:
    keys = SampledByKernel(sampled, draw).keys(torch.arange(len(logits)) * 7)
    assert keys.shape == (len(logits), COLUMNS)
    return draw(logits.to(DEVICE), keys.to(DEVICE), tile, listed).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("sampled", SETTINGS, ids=lambda sampled: ", ".join(map(str, vars(sampled).values())))
def test_draws_are_those_of_a_cpu(sampled, dtype):
    logits = hostile_rows(dtype)
    expected = sampled.draw(logits, torch.arange(len(logits)) * 7).tolist()
    assert drawn(sampled, logits) == expected


@pytest.mark.slow
@pytest.mark.parametrize("tile, listed", [(32, 8192), (64, 4)])
def test_draws_depend_neither_on_tiles_nor_on_the_length_of_the_list(tile, listed):
    logits = hostile_rows(torch.float16)[:4]
    sampled = Sampled(top_p=0.95, seed=2)
    expected = sampled.draw(logits, torch.arange(len(logits)) * 7).tolist()
    assert drawn(sampled, logits, tile, listed) == expected


def test_rows_of_one_launch_have_settings_of_their_own():
    logits = hostile_rows(torch.float16)[:1].expand(len(SETTINGS), -1).contiguous()
    positions = torch.arange(len(logits))
    keys = [SampledByKernel(one, draw).keys(positions[n : n + 1]) for n, one in enumerate(SETTINGS)]
    expected = [int(one.draw(logits[n : n + 1], positions[n : n + 1])) for n, one in enumerate(SETTINGS)]
    assert draw(logits.to(DEVICE), torch.cat(keys).to(DEVICE), 128).tolist() == expected


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_the_first_number_that_is_not_finite_is_drawn(odd):
    logits = hostile_rows(torch.float32)[:1]
    logits[0, [50, 60]] = odd
    assert drawn(Sampled(), logits) == [50]


def test_the_comparison_notices_a_kernel_that_draws_other_tokens():
    assert different(lambda logits, keys: torch.zeros_like(keys[:, 0]), DEVICE) == list(COMPARED)


@pytest.mark.slow
def test_the_comparison_accepts_the_kernel():
    assert different(draw, DEVICE) == []


def by_temperature(logits: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Draws like the kernel, by the temperature alone, in operations that can be recorded."""
    noise = mix(keys[:, :1] * GOLDEN + keys[:, 1:2])
    temperature = keys[:, 2:3].int().view(torch.float32)
    tokens = torch.arange(logits.shape[-1])
    return gumbel(noise, tokens).add_(logits.float() / temperature).argmax(-1)


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(draws_on_gpu, "kernel_for", lambda device: by_temperature)


def test_a_change_of_settings_records_nothing_and_draws_by_the_new_ones(kernel):
    regions = Regions(recorder)
    session = toy_session("eagle3", regions=regions)
    answers = []
    recorded = []
    for temperature in (0.7, 1.5, 0.7):
        answers.append(answered(session, toy_prompt(60), 12, Sampling(temperature=temperature, seed=1)).token_ids)
        recorded.append(regions.recorded)
    assert answers[0] == answers[2] != answers[1]
    assert recorded[0] == recorded[1] == recorded[2]


@pytest.mark.parametrize("method", ["ar", "eagle3", "sps"])
def test_sampled_answers_are_those_of_torch_s_draws(method, kernel):
    asked = Sampling(temperature=0.8, seed=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws_on_gpu, "kernel_for", lambda device: None)
        expected = answered(toy_session(method), toy_prompt(60), 20, asked).token_ids
    assert answered(toy_session(method), toy_prompt(60), 20, asked).token_ids == expected


def test_only_sampled_draws_are_the_kernel_s(kernel):
    rule = rule_for(Sampled(seed=5), DEVICE)
    assert rule.sampled == Sampled(seed=5) and rule.guesses is rule
    assert Rejection(rule.sampled).guesses == Sampled(seed=5)
    greedy = Greedy()
    assert rule_for(greedy, DEVICE) is greedy and greedy.sampled is None


def test_a_cpu_has_no_kernel():
    assert draws_on_gpu.kernel_for(torch.device("cpu")) is None

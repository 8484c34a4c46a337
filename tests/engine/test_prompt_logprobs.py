"""Log-probabilities of a prompt's tokens are those of the model's own forward, for every method and chunk size."""

from __future__ import annotations

import pytest
import torch
from toys.models import toy_model
from toys.sessions import METHODS, repeatable, toy_prompt, toy_session

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.side_by_side import generate_all
from longgraft.prefill.prefixes import Prefixes
from longgraft.target_model.model import TOPK_ROWS

PROMPT = toy_prompt(60)


def forward(ids: list[int]) -> torch.Tensor:
    """Returns the log-probabilities [T - 1, V] of the tokens after the first, by the model's own forward."""
    with torch.no_grad():
        return toy_model()(torch.tensor([ids]), use_cache=False).logits[0, :-1].log_softmax(-1)


def check(found, prompt: list[int] = PROMPT, top: int = 2) -> None:
    """Asserts that a generation has the log-probabilities of this prompt."""
    logs, following = forward(prompt), prompt[1:]
    assert [one.token for one in found.prompt_logprobs] == following
    own = logs[range(len(following)), following]
    assert [one.logprob for one in found.prompt_logprobs] == pytest.approx(own.tolist(), abs=1e-4)
    assert [[token for token, _ in one.top] for one in found.prompt_logprobs] == logs.topk(top).indices.tolist()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_log_probabilities_of_the_prompt(method):
    session = toy_session(method)
    found = session.generate(PROMPT, 12, prompt_logprobs=2)
    check(found)
    assert found.token_ids == session.generate(PROMPT, 12).token_ids and found.logprobs == ()


@pytest.mark.parametrize("chunk", [1, 7, 59, 60, None])
def test_chunks_end_anywhere(chunk):
    check(toy_session("graft", chunk=chunk).generate(PROMPT, 3, prompt_logprobs=2))


def test_chunks_are_as_long_as_the_session_s_and_all_their_logits_fit():
    asked = Sampling(prompt_logprobs=0)
    for chunk, reads in ((17, [17, 17, 17, 9]), (None, [60]), (10_000, [60])):
        assert [step.read for step in toy_session("ar", chunk=chunk).open(PROMPT, 1, asked)] == reads
    long = toy_session("ar", chunk=None).open(toy_prompt(500), 1, asked)
    assert long.step().read == TOPK_ROWS


def test_a_known_beginning_is_read_again_and_still_kept():
    session = toy_session("graft", prefixes=Prefixes(2**30, 16))
    for _ in range(2):
        found = session.generate(PROMPT, 3, prompt_logprobs=2)
        check(found)
        assert found.stats.reused_tokens == 0
    assert session.generate(PROMPT, 3).stats.reused_tokens == 47


def test_answers_that_share_passes_have_those_of_their_own_prompts():
    prompts = [toy_prompt(60), toy_prompt(45, 1), toy_prompt(30, 2)]
    drawn = Sampling(prompt_logprobs=3, temperature=0.9, seed=3)
    samplings = [Sampling(prompt_logprobs=2), Sampling(logprobs=1), drawn]
    found = generate_all(repeatable("graft"), prompts, 6, samplings=samplings)
    check(found[0], prompts[0])
    check(found[2], prompts[2], 3)
    assert found[1].prompt_logprobs == () and len(found[1].logprobs) == 6
    check(repeatable("ar").generate([5], 2, prompt_logprobs=0), [5])


def test_a_number_of_others_out_of_range_is_refused():
    with pytest.raises(ValueError, match="prompt_logprobs is 21; it must be a whole number from 0 to 20"):
        Sampling(prompt_logprobs=21)

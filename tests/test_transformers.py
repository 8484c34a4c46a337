"""Inside transformers' generate, and beside it: the same ids."""

from __future__ import annotations

import pytest
import torch
from conftest import answered, toy_model, toy_prompt, toy_session

from longgraft.loading import custom_generate


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral-window", "gemma3"])
def test_graft_says_what_transformers_generate_says(family):
    model, ids = toy_model(family), torch.tensor([toy_prompt(50)])
    theirs = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
    ours = answered(toy_session("graft", family), ids[0].tolist(), 20).token_ids
    assert theirs[0, 50:].tolist() == ours


@pytest.mark.parametrize("given", [True, False])
def test_custom_generate_is_a_second_entry(given):
    model, ids = toy_model("qwen3"), torch.tensor([toy_prompt(50)])
    theirs = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
    more = {"session": toy_session("graft", "qwen3")} if given else {}
    ours = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False,
                          custom_generate=custom_generate, **more)
    assert torch.equal(ours, theirs)


def test_custom_generate_refuses_what_it_cannot_honour():
    model, ids = toy_model("qwen3"), torch.tensor([toy_prompt(50)])
    for batch, more, said in [(ids.repeat(2, 1), {}, "one at a time"),
                              (ids, {"repetition_penalty": 1.3}, "RepetitionPenalty"),
                              (ids, {"session": toy_session("graft")}, "another model")]:
        with pytest.raises(ValueError, match=said):
            model.generate(batch, attention_mask=torch.ones_like(batch), max_new_tokens=4, do_sample=False,
                           custom_generate=custom_generate, **more)

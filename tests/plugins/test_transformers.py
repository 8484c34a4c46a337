"""Decoding inside transformers' generate and beside it gives the same ids."""

from __future__ import annotations

import sys

import pytest
import torch
from toys.models import toy_model
from toys.sessions import answered, toy_prompt, toy_session
from transformers import DynamicCache, TextStreamer, dynamic_module_utils

from longgraft.plugins import TRANSFORMERS
from longgraft.transformers_generate import custom_generate


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral-window", "gemma3"])
def test_graft_decodes_the_ids_of_transformers_generate(family):
    model, ids = toy_model(family), torch.tensor([toy_prompt(50)])
    theirs = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
    ours = answered(toy_session("graft", family), ids[0].tolist(), 20).token_ids
    assert theirs[0, 50:].tolist() == ours


@pytest.mark.parametrize("given", [True, False])
def test_custom_generate_decodes_the_ids_of_transformers_generate(given):
    model, ids = toy_model("qwen3"), torch.tensor([toy_prompt(50)])
    theirs = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
    more = {"session": toy_session("graft", "qwen3")} if given else {}
    ours = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=20,
        do_sample=False,
        custom_generate=custom_generate,
        **more,
    )
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("limit", [{"max_length": 56}, {"max_new_tokens": 6}], ids=str)
def test_a_limit_of_the_whole_length_counts_the_prompt(limit):
    model, ids = toy_model("qwen3"), torch.tensor([toy_prompt(50)])
    more = dict(attention_mask=torch.ones_like(ids), do_sample=False) | limit
    ours = model.generate(ids, custom_generate=custom_generate, session=toy_session("graft", "qwen3"), **more)
    assert ours.shape == (1, 56) and torch.equal(ours, model.generate(ids, **more))


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 0.999999}, {"temperature": 1e-4}], ids=str)
def test_each_setting_of_generate_reaches_our_draws(narrow):
    """Each of them leaves only the most probable token; without all of them, draws differ."""
    model, ids = toy_model("qwen3"), torch.tensor([toy_prompt(50)])
    more = dict(
        attention_mask=torch.ones_like(ids),
        max_new_tokens=12,
        custom_generate=custom_generate,
        session=toy_session("graft", "qwen3"),
    )
    greedy = model.generate(ids, do_sample=False, **more)
    whole = {"top_k": 0, "top_p": 1.0, "min_p": None, "temperature": 1.0}
    assert torch.equal(model.generate(ids, do_sample=True, **whole | narrow, **more), greedy)
    torch.manual_seed(0)
    assert not torch.equal(model.generate(ids, do_sample=True, **whole | {"temperature": 20.0}, **more), greedy)


@pytest.mark.parametrize(("family", "limit"), [("qwen3", 20), ("mistral-window", 20), ("qwen3", 1)])
def test_a_given_cache_must_hold_the_beginning_of_the_prompt(family, limit):
    model, ids = toy_model(family), torch.tensor([toy_prompt(50)])
    other = ids.clone()
    other[0, 29] += 1

    def held(tokens):
        made = DynamicCache(config=model.config)
        with torch.no_grad():
            model(tokens, past_key_values=made)
        return made

    more = dict(max_new_tokens=limit, do_sample=False)
    ours = more | dict(custom_generate=custom_generate, session=toy_session("graft", family))
    for given in (held(ids[:, :30]), DynamicCache(config=model.config)):
        assert torch.equal(model.generate(ids, past_key_values=given, **ours), model.generate(ids, **more))
    for given in (held(other[:, :30]), held(ids[:, 1:30])):
        with pytest.raises(ValueError, match=r"past_key_values holds .* are not known to be the beginning"):
            model.generate(ids, past_key_values=given, **ours)


@pytest.mark.parametrize("positions", [torch.arange(5, 55)[None], torch.arange(50).flip(0)[None]], ids=["on", "back"])
def test_other_positions_are_refused(positions):
    model, ids = toy_model("qwen3"), torch.tensor([toy_prompt(50)])
    more = dict(
        max_new_tokens=4, do_sample=False, custom_generate=custom_generate, session=toy_session("graft", "qwen3")
    )
    with pytest.raises(ValueError, match="position_ids was given with other positions than 0 to 49"):
        model.generate(ids, position_ids=positions, **more)
    usual = torch.arange(50)[None]
    assert torch.equal(model.generate(ids, position_ids=usual, **more), model.generate(ids, **more))


@pytest.mark.parametrize("eos", [-1, [-1, 7], [200]])
def test_end_tokens_outside_the_vocabulary_end_nothing(eos):
    """Users of transformers give -1 to say that no token ends the answer."""
    model, ids = toy_model("qwen3"), torch.tensor([toy_prompt(50)])
    more = dict(max_new_tokens=8, do_sample=False, eos_token_id=eos)
    ours = model.generate(ids, custom_generate=custom_generate, session=toy_session("graft", "qwen3"), **more)
    assert torch.equal(ours, model.generate(ids, **more))


def test_a_repetition_penalty_decodes_the_ids_of_transformers_generate():
    """Qwen2.5's generation_config.json has one, and transformers applies it to greedy answers, too."""
    model, ids = toy_model("qwen3"), torch.tensor([toy_prompt(50)])
    more = dict(attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
    theirs = model.generate(ids, repetition_penalty=1.3, **more)
    ours = model.generate(
        ids, repetition_penalty=1.3, custom_generate=custom_generate, session=toy_session("graft", "qwen3"), **more
    )
    assert torch.equal(ours, theirs) and not torch.equal(theirs, model.generate(ids, **more))


def test_a_direct_call_refuses_what_transformers_would_not_pass():
    model, ids = toy_model("qwen3"), torch.tensor([toy_prompt(50)])
    config = model.generation_config
    for more, said in [
        ({"streamer": object()}, "without a generation config"),
        ({"generation_config": config, "streamer": object()}, "streamer was given"),
        ({"generation_config": config, "token_type_ids": ids}, "token_type_ids was given"),
        ({"generation_config": config, "assistant_model": model}, "assistant_model was given"),
    ]:
        with pytest.raises(ValueError, match=said):
            custom_generate(model, ids, **more)


def test_unsupported_settings_of_generate_are_refused():
    from transformers import (
        LogitsProcessorList,
        RepetitionPenaltyLogitsProcessor,
        StoppingCriteriaList,
        TemperatureLogitsWarper,
    )
    from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

    model, ids = toy_model("qwen3"), torch.tensor([toy_prompt(50)])
    for more, said in [
        ({"inputs": ids.repeat(2, 1)}, "one is taken here"),
        ({"no_repeat_ngram_size": 3}, "NoRepeatNGram"),
        ({"session": toy_session("graft")}, "another model"),
        ({"stopping_criteria": StoppingCriteriaList([EosTokenCriteria(7)])}, "EosTokenCriteria with eos_token_id"),
        ({"stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(52)])}, "MaxLengthCriteria with max_length 52"),
        (
            {"logits_processor": LogitsProcessorList([TemperatureLogitsWarper(1e-4)]), "do_sample": True},
            "TemperatureLogitsWarper with temperature 0.0001",
        ),
        (
            {"logits_processor": LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.3, 50)])},
            "prompt_ignore_length",
        ),
        (
            {"logits_processor": LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.3)])},
            "RepetitionPenaltyLogitsProcessor with penalty 1.3",
        ),
        ({"num_beams": 3}, "asks for beam_search; longgraft decodes by greedy_search or sample"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "asks for contrastive_search"),
        ({"prompt_lookup_num_tokens": 3}, "asks for assisted_generation"),
        ({"inputs_embeds": torch.zeros(1, 50, 32)}, "inputs_embeds was given"),
    ]:
        with pytest.raises(ValueError, match=said):
            asked = dict(inputs=ids, session=toy_session("graft", "qwen3"), do_sample=False) | more
            model.generate(
                attention_mask=torch.ones_like(asked["inputs"]),
                max_new_tokens=4,
                custom_generate=custom_generate,
                **asked,
            )


@pytest.fixture
def from_the_folder(monkeypatch, tmp_path):
    """Returns arguments with which transformers loads our loop; it copies the file into a cache."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return {"custom_generate": TRANSFORMERS, "trust_remote_code": True}


@pytest.mark.parametrize("given", [True, False])
def test_the_folder_for_transformers_decodes_the_ids_of_its_generate(given, from_the_folder):
    model, ids = toy_model("qwen3"), torch.tensor([toy_prompt(50)])
    asked = dict(attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
    more = {"session": toy_session("graft", "qwen3")} if given else {"revision": "main"}
    assert torch.equal(model.generate(ids, **asked, **more, **from_the_folder), model.generate(ids, **asked))


@pytest.mark.parametrize(
    "given, message",
    [
        ({"streamer": TextStreamer(None)}, "streamer was given"),
        ({"assistant_model": "another"}, "assistant_model was given"),
        ({"tokenizer": "its own", "stop_strings": "a"}, "tokenizer was given"),
        ({"num_beams": 2}, "beam_search"),
    ],
)
def test_the_folder_for_transformers_refuses_what_does_not_count(given, message, from_the_folder):
    ids = torch.tensor([toy_prompt(20)])
    with pytest.raises(ValueError, match=message):
        toy_model("qwen3").generate(ids, max_new_tokens=5, **given, **from_the_folder)

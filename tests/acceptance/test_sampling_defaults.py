"""A model's generation_config.json completes sampled requests, by one rule in Python, commands and server."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from toys.models import toy_model
from toys.served import asking, characters
from toys.sessions import toy_prompt

import longgraft
from longgraft.acceptance.sampling import Sampling
from longgraft.acceptance.sampling_defaults import SamplingDefaults

QWEN = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}
FILLED = {"top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}
PROMPT = "the longest river of all"


def defaults(**config) -> SamplingDefaults:
    return SamplingDefaults.of(SimpleNamespace(generation_config=SimpleNamespace(**config)), "toy")


def session_with(config, tokenizer=None):
    """Returns a session of a toy model with this generation config."""
    model = deepcopy(toy_model("qwen3"))
    model.generation_config.update(**config)
    return longgraft.load((model, tokenizer), None, tell=False, method="pld")


def completed(session, **body):
    """Returns the text of the server's completion of PROMPT."""

    async def ask(http):
        return (await http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 16, **body})).json()

    return asking(ask, session)["choices"][0]["text"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Sampling()),
        ({"temperature": 0}, Sampling()),
        ({"repetition_penalty": 1.2}, Sampling(repetition_penalty=1.2)),
        ({"temperature": 0.5}, Sampling(0.5, **FILLED)),
        ({"temperature": 0.5, "top_p": 1, "top_k": 0, "repetition_penalty": 1, "seed": 3}, Sampling(0.5, seed=3)),
        ({"temperature": 0.5, "top_k": None, "min_p": 0.1}, Sampling(0.5, min_p=0.1, **FILLED)),
        ({"replay": (1, 2)}, Sampling(replay=(1, 2))),
    ],
)
def test_a_sampled_request_takes_from_the_file_what_it_leaves_out(given, expected):
    assert defaults(**QWEN).sampling(given) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"temperature": 0.5, "top_k": -1}, Sampling(0.5)),
        ({"temperature": 0.5, "top_k": 0}, Sampling(0.5)),
        ({"temperature": 0.5, "top_p": 0}, Sampling()),
        ({"temperature": 1e-6, "seed": 4}, Sampling()),
        ({"temperature": 0.5, "top_p": 0, "repetition_penalty": 1.2}, Sampling(repetition_penalty=1.2)),
    ],
)
def test_values_of_other_servers_have_their_meanings_in_requests(given, expected):
    """A top_k of -1 is off; a top_p of 0 and a tiny temperature leave the most probable token."""
    assert SamplingDefaults().sampling(given) == expected


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ({"top_k": -1}, Sampling(0.5)),
        ({"top_p": 0, "repetition_penalty": 1.2}, Sampling()),
        ({"temperature": 1e-6}, Sampling(0.5)),
    ],
)
def test_values_of_other_servers_have_their_meanings_in_files(file, expected):
    assert defaults(do_sample=True, **file).sampling({"temperature": 0.5}) == expected


def test_a_file_that_does_not_sample_gives_its_penalty_alone():
    found = defaults(do_sample=False, temperature=0.6, top_p=0.9, repetition_penalty=1.1)
    assert found.temperature == 0
    assert found.sampling({"temperature": 1.0}) == Sampling(1.0, repetition_penalty=1.1)


@pytest.mark.parametrize(
    ("config", "temperature"),
    [
        ({}, 0),
        (QWEN, 0.7),
        ({"do_sample": True}, 1),
        ({"do_sample": True, "temperature": 1e-6}, 0),
        ({"do_sample": True, "top_p": 0}, 0),
        ({"do_sample": None, "temperature": 0.7}, 0),
    ],
)
def test_the_temperature_of_requests_that_name_none_is_the_file_s(config, temperature):
    assert defaults(**config).temperature == temperature


@pytest.mark.parametrize(
    ("key", "value", "needed"),
    [
        ("temperature", -1.0, "0 or more"),
        ("temperature", "0.7", "must be a number"),
        ("top_p", 1.5, "from 0 to 1"),
        ("top_k", -2, "-1 or more"),
        ("top_k", 2.5, "a whole number"),
        ("min_p", 1.0, "from 0 to below 1"),
        ("repetition_penalty", 0, "from 0.001 to 1,000"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_file_key_and_range(key, value, needed):
    said = f"generation_config.json of .*: {key} is .*{needed}.* Correct the value there, or remove it"
    with pytest.raises(ValueError, match=said):
        session_with({"do_sample": True, key: value})


def test_a_session_says_what_is_taken_and_what_is_not_applied():
    line = session_with(QWEN | {"no_repeat_ngram_size": 3}).about[-1]
    assert line.startswith("generation_config.json: temperature 0.7, top_p 0.8, top_k 20, repetition_penalty 1.05; ")
    assert line.endswith("; no_repeat_ngram_size 3 is not applied")
    assert "generation_config" not in " ".join(session_with({}).about)


def test_python_and_server_complete_a_request_alike():
    session = session_with(QWEN, characters())
    own = session.generate(PROMPT, 16, temperature=0.9, seed=5).text
    assert own == session.generate(PROMPT, 16, temperature=0.9, seed=5, **FILLED).text
    assert own != session.generate(PROMPT, 16, temperature=0.9, seed=5, top_k=0, top_p=1, repetition_penalty=1).text
    answer = completed(session, temperature=0.9, seed=5)
    assert answer == own
    answer = completed(session, seed=5)
    assert answer == session.generate(PROMPT, 16, temperature=0.7, seed=5).text
    greedy = completed(session, temperature=0)
    assert greedy == session.generate(PROMPT, 16).text
    assert session.generate(PROMPT, 16).text == session_with({}, characters()).generate(PROMPT, 16).text


def test_a_sampling_object_is_taken_as_it_is():
    session, ids = session_with(QWEN), toy_prompt(40)
    bare = session_with({})
    with session.open(ids, 12, Sampling(0.9)) as ours, bare.open(ids, 12, Sampling(0.9)) as theirs:
        assert [step.tokens for step in ours] == [step.tokens for step in theirs]


def test_commands_complete_a_sampled_request_and_say_so(pair, cli, tmp_path):
    shutil.copytree(pair / "target", tmp_path / "target")
    (tmp_path / "target/generation_config.json").write_text(json.dumps(QWEN))
    ask = ["generate", "--model", tmp_path / "target", "--drafter", "none", "--prompt", "w1 w2", "--max-new-tokens", 4]
    _, out, _ = cli(*ask, "--json", "--temperature", 0.9)
    found = json.loads(out)["settings"]
    assert {name: found[name] for name in FILLED} == FILLED and found["temperature"] == 0.9
    _, out, _ = cli(*ask, "--json", "--temperature", 0.9, "--top-p", 1)
    assert json.loads(out)["settings"]["top_p"] == 1
    code, _, err = cli(*ask)
    assert code == 0 and "longgraft: generation_config.json: temperature 0.7, top_p 0.8" in err


def test_custom_generate_follows_the_file_as_transformers_does():
    session, ids = session_with(QWEN | {"do_sample": False, "repetition_penalty": 1.3}), torch.tensor([toy_prompt(50)])
    model, more = session.target.model, {"attention_mask": torch.ones_like(ids), "max_new_tokens": 16}
    ours = model.generate(ids, custom_generate=longgraft.custom_generate, session=session, **more)
    assert torch.equal(ours, model.generate(ids, **more))


def test_a_code_completion_is_completed_from_the_file_too(tmp_path):
    (tmp_path / "main.py").write_text("total = sum(\n")
    session = session_with(QWEN, characters())

    def text(**more):
        return longgraft.complete(
            tmp_path, "main.py", 1, session=session, until="stop", max_new_tokens=12, temperature=0.9, seed=5, **more
        ).text

    assert text() == text(**FILLED) != text(top_k=0, top_p=1, repetition_penalty=1)

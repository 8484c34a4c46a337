"""Tests of docs/editors.md: the settings that it gives lead an editor's requests to answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from toys.completing import completing
from toys.served import asking

from longgraft.config.options import options
from longgraft.models.catalogue import catalogue
from longgraft.serve.options import Serving

TEXT = (Path(__file__).parents[2] / "docs/editors.md").read_text()
WINDOW = "def mean(xs):\n    return sum(xs)\n"
BEFORE, AFTER = "def mean(xs):\n    ", "\n\nprint(mean([1]))\n"


def settings(section: str, language: str) -> str:
    """Returns the first block of a language in a section of the guide."""
    part = TEXT.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.search(rf"```{language}\n(.*?)```", part, re.DOTALL)[1]


def answered(url: str, body: dict[str, Any]) -> str:
    """Sends a request to the address in a client's settings, and returns the response's text."""
    parts, defaults = urlsplit(url), options(Serving)
    assert (parts.hostname, parts.port) == (defaults["host"].default, defaults["port"].default)

    async def ask(http):
        return (await http.post(parts.path, json=body)).raise_for_status().text

    return asking(ask, completing(fim=True))


def test_zeds_settings_lead_to_an_answer():
    chosen = json.loads(settings("Zed", "json"))["edit_predictions"]
    assert chosen["provider"] == "open_ai_compatible_api"
    api = chosen[chosen["provider"]]
    assert api["model"] in catalogue() and f"longgraft serve --model {api['model']} " in TEXT
    assert "sweep-next-edit" in api["model"] and api["prompt_format"] == "infer"  # Zed infers from this name
    prompt = "".join(
        f"<|file_sep|>{path}/a.py\n{text}"
        for path, text in (("original", WINDOW), ("current", WINDOW), ("updated", ""))
    )
    body = {
        "model": api["model"],
        "prompt": prompt,
        "max_tokens": api["max_output_tokens"],
        "stop": ["<|file_sep|>", "</s>"],
    }
    (choice,) = json.loads(answered(api["api_url"], body))["choices"]
    assert choice["text"] and choice["finish_reason"] in ("stop", "length")


def test_llama_vims_settings_lead_to_an_answer():
    chosen = dict(re.findall(r"'(\w+)': (\d+)", settings(r"llama.vim", "vim")))
    endpoint = re.search(r"'endpoint_fim': '(http://)HOST:PORT(\S+)'", TEXT)
    body = {
        "input_prefix": BEFORE,
        "input_suffix": AFTER,
        "input_extra": [],
        "prompt": "",
        "n_indent": 4,
        "samplers": ["top_k", "top_p", "infill"],
        "stream": False,
        "cache_prompt": True,
        "n_predict": int(chosen["n_predict"]),
        "t_max_predict_ms": int(chosen["t_max_predict_ms"]),
        "response_fields": ["content", "timings/predicted_n", "truncated"],
    }
    found = json.loads(answered(f"{endpoint[1]}127.0.0.1:8012{endpoint[2]}", body))
    assert set(found) == set(body["response_fields"]) and found["timings/predicted_n"] > 0


def test_continues_settings_lead_to_a_stream():
    (model,) = yaml.safe_load(settings("Continue", "yaml"))["models"]
    assert model["provider"] == "openai" and model["roles"] == ["autocomplete"]
    prompt = model["promptTemplates"]["autocomplete"].replace("{{{prefix}}}", BEFORE)
    body = {
        "model": model["model"],
        "prompt": prompt,
        "max_tokens": 24,
        "temperature": 0.01,
        "stream": True,
        "stop": ["<fim_prefix>", "\n\n"],
    }
    *events, last = answered(f"{model['apiBase']}/completions", body).split("\n\n")[:-1]
    assert last == "data: [DONE]" and json.loads(events[0].removeprefix("data: "))["choices"]

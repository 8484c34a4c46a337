"""/metrics, read with Prometheus' own parser, agrees with the statistics of the requests."""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as families
from toys.served import PATIENCE, Gate, asking, completed, listening, meanwhile, text_session, until

from longgraft.engine.session import Session
from longgraft.prefill.prefixes import Prefixes
from longgraft.serve.options import Serving

PROMPT = "def total(xs):\n    return sum(xs)\n\n" * 8


# Formats that clients ask for: Prometheus 2.53, 3.x and 3.x with legacy names, and clients of OpenMetrics.
ACCEPTED = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    *(
        f"application/openmetrics-text;version=1.0.0;escaping={names};q=0.6,application/openmetrics-text;version=0.0.1;"
        f"q=0.5,text/plain;version=1.0.0;escaping={names};q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
        for names in ("allow-utf-8", "underscores", "dots", "values")
    ),
    "application/openmetrics-text",
    "text/plain;version=1.0.0;escaping=dots",
)


def counted(*bodies: dict[str, Any], session: Session | None = None) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Returns ({sample and labels: value}, completions) of a server that first answers `bodies`, then /metrics."""

    async def ask(http):
        answers = [(await http.post("/v1/completions", json=body)).json() for body in bodies]
        response = await http.get("/metrics")
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain")
        return response.text, answers

    text, answers = asking(ask, session)
    found = {}
    for family in families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()) if key != "model_name")
            assert sample.labels.get("model_name", "llama") == "llama"
            found[sample.name.removeprefix("longgraft:") + (f"{{{labels}}}" if labels else "")] = sample.value
    return found, answers


def test_counts_equal_those_of_the_answers():
    bodies = [{"prompt": PROMPT, "max_tokens": new} for new in (40, 25)]
    found, answers = counted(*bodies)
    costs = [one["longgraft"] for one in answers]
    accepted = sum(sum(one["accepted_by_origin"].values()) for one in costs)
    assert found["generation_tokens_total"] == 65 and found["prompt_tokens_total"] == 2 * len(PROMPT)
    assert found["spec_decode_num_accepted_tokens_total"] == accepted > 0
    assert accepted < found["spec_decode_num_draft_tokens_total"]
    assert 0 < found["spec_decode_num_drafts_total"] <= sum(one["steps"] for one in costs)
    depths = [
        found[f"spec_decode_num_accepted_tokens_per_pos_total{{position={n}}}"]
        for n in range(20)
        if f"spec_decode_num_accepted_tokens_per_pos_total{{position={n}}}" in found
    ]
    assert sum(depths) == accepted and depths == sorted(depths, reverse=True)
    assert found["request_success_total{finished_reason=length}"] == 2
    assert found["time_to_first_token_seconds_count"] == found["e2e_request_latency_seconds_count"] == 2
    assert found["request_queue_time_seconds_count"] == 2
    assert found["inter_token_latency_seconds_count"] == 63
    assert found["inter_token_latency_seconds_sum"] >= sum(one["decode_seconds"] for one in costs) > 0
    assert found["num_requests_running"] == found["num_requests_waiting"] == found["num_requests_refused"] == 0
    assert found["process_resident_memory_bytes"] > 0 and "prefix_cache_queries_total" in found


def test_tokens_that_an_end_cuts_off_a_step_are_not_counted():
    ids = text_session().generate(PROMPT, 40).token_ids
    for end in sorted(set(ids)):
        found, (answer,) = counted({"prompt": PROMPT, "max_tokens": 40, "stop_token_ids": [end]})
        taken = sum(answer["longgraft"]["accepted_by_origin"].values())
        assert found["spec_decode_num_accepted_tokens_total"] == taken
        assert found["generation_tokens_total"] == answer["usage"]["completion_tokens"]


def test_cache_hits_are_tokens_that_were_not_read_again():
    session = text_session()
    session.engine.prefixes = Prefixes(2**24)
    found, answers = counted(*[{"prompt": PROMPT, "max_tokens": 2}] * 2, session=session)
    assert found["prefix_cache_queries_total"] == 2 * len(PROMPT)
    assert found["prefix_cache_hits_total"] == answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert found["prefix_cache_bytes"] == session.engine.prefixes.bytes > 0


def test_failed_requests_are_counted_and_refused_ones_are_not():
    found, (refused,) = counted({"prompt": PROMPT, "max_tokens": 4, "temperature": 9e99, "top_p": 2.0})
    assert "error" in refused and found["request_failures_total"] == 0  # it never became a request
    session = text_session()
    session.engine.proposer.propose = lambda ask: 1 / 0
    found, (failed,) = counted({"prompt": PROMPT, "max_tokens": 4}, session=session)
    assert "error" in failed and found["request_failures_total"] == 1
    assert "request_success_total{finished_reason=length}" not in found


@pytest.mark.parametrize("accept", ACCEPTED)
def test_names_keep_their_colon_in_each_format_that_a_client_asks_for(accept):
    async def ask(http):
        await http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 4})
        return await http.get("/metrics", headers={"Accept": accept})

    response = asking(ask)
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = list(families(response.text))
    names = [family.name for family in found if not family.name.startswith("process_")]
    assert len(names) == len(set(names)) > 10 and all(name.startswith("longgraft:") for name in names)
    assert "unknown" not in {family.type for family in found}
    assert not any(sample.name.endswith("_created") for family in found for sample in family.samples)


def test_a_gateway_reads_the_names_and_gauges_that_it_knows():
    gate = Gate()

    def gauges(url) -> dict[str, float]:
        found = [
            family
            for family in families(httpx.get(f"{url}/metrics", timeout=PATIENCE).text)
            if not family.name.startswith("process_")
        ]
        assert all(family.name.startswith("vllm:") for family in found)
        return {family.name: family.samples[0].value for family in found if family.type == "gauge"}

    with listening(None, gate, metrics_prefix="vllm:", max_running=1) as (url, _):
        assert gauges(url)["vllm:kv_cache_usage_perc"] == 0
        with meanwhile(*[partial(completed, url, prompt=PROMPT)] * 3):
            until(lambda: gauges(url)["vllm:num_requests_waiting"] == 2)
            found = gauges(url)
            assert found["vllm:num_requests_running"] == 1 and 0 < found["vllm:kv_cache_usage_perc"] < 0.01
            gate.allow()
        found = gauges(url)
    assert found["vllm:num_requests_running"] == found["vllm:kv_cache_usage_perc"] == 0
    with pytest.raises(ValueError, match="prefix is 'v llm'"):
        Serving(metrics_prefix="v llm")

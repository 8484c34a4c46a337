"""Figures of a request in other servers' fields, and its trace."""

from __future__ import annotations

import json

import pytest
from toys.served import asking, text_session

from longgraft.engine.stats import Stats
from longgraft.serve.formats.request_figures import metrics
from longgraft.serve.options import Serving
from longgraft.serve.tracing import Tracing

PROMPT = "def total(xs):\n    return sum(xs)\n\ndef mean(xs):\n    return total(xs) / "
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_acceptance_is_counted_by_position_and_without_plain_steps():
    stats = Stats(accepted_per_step=(0, 2, 0, 3, 2), kinds={"plain": 1, "draft": 4}, proposed_by_depth=(8, 6, 4, 1))
    assert metrics(stats)["speculative_decoding"] == {
        "mean_acceptance_length": 1 + 7 / 4,
        "draft_acceptance_rate": 7 / 19,
        "num_spec_steps": 4,
        "num_draft_tokens": 19,
        "num_accepted_draft_tokens": 7,
        "acceptance_histogram": [1, 0, 2, 1],
        "num_draft_tokens_per_pos": [8, 6, 4, 1],
        "num_accepted_tokens_per_pos": [3, 3, 1, 0],
    }
    nothing = metrics(Stats(accepted_per_step=(0, 0), kinds={"plain": 2}))["speculative_decoding"]
    assert nothing["mean_acceptance_length"] == 1 and nothing["acceptance_histogram"] == [0]


def test_an_answer_has_the_figures_of_other_servers_whole_or_streamed():
    async def ask(http):
        body = {"prompt": PROMPT, "max_tokens": 24}
        whole = (await http.post("/v1/completions", json=body)).json()
        lines = (await http.post("/v1/completions", json=body | {"stream": True})).text.split("\n\n")
        return whole, json.loads(lines[-3].removeprefix("data: "))

    session = text_session()
    stats = session.generate(PROMPT, 24).stats
    for found in asking(ask):
        counts, timings = found["metrics"]["speculative_decoding"], found["timings"]
        assert counts == metrics(stats)["speculative_decoding"] and counts["num_accepted_draft_tokens"] > 0
        assert timings["prompt_n"] == len(PROMPT) and timings["predicted_n"] == 24
        assert timings["draft_n"] == counts["num_draft_tokens"] == sum(stats.proposed_by_depth)


class Collected:
    """An exporter that keeps the spans."""

    def __init__(self) -> None:
        self.spans = []

    def export(self, spans):
        self.spans += spans

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return True


def traced(*bodies: dict, headers: dict | None = None, **patched) -> list:
    """Returns the spans of a server that has answered these requests."""
    pytest.importorskip("opentelemetry.sdk")
    kept, tracings = Collected(), []

    async def ask(http):
        for body in bodies:
            await http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 6} | body, headers=headers)

    def made(endpoint, model):
        tracings.append(Tracing(kept, model))
        return tracings[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longgraft.serve.app.over_http", made)
        asking(ask, otlp_endpoint="http://127.0.0.1:4318", model_name="toy", **patched)
    for tracing in tracings:
        tracing.close()
    return kept.spans


def test_a_request_is_a_span_of_the_trace_that_its_headers_name():
    (span,) = traced({}, headers={"Traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == PARENT
    about = dict(span.attributes)
    assert about["gen_ai.usage.input_tokens"] == about["gen_ai.usage.prompt_tokens"] == len(PROMPT)
    assert about["gen_ai.usage.output_tokens"] == 6 and about["gen_ai.response.finish_reasons"] == ("length",)
    assert about["gen_ai.request.model"] == "toy" and about["gen_ai.request.max_tokens"] == 6
    assert 0 < about["gen_ai.latency.time_to_first_token"] <= about["gen_ai.latency.e2e"]
    seconds = (span.end_time - span.start_time) / 1e9
    assert seconds == pytest.approx(about["gen_ai.latency.e2e"], abs=0.01)
    assert [event.name for event in span.events] == ["first token"]


def test_requests_without_a_trace_have_traces_of_their_own():
    one, other = traced({}, {"n": 1})
    assert one.parent is None is other.parent and one.context.trace_id != other.context.trace_id


def test_the_spans_of_several_answers_share_the_request_trace():
    spans = traced({"n": 2}, headers={"Traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert [f"{span.context.trace_id:032x}" for span in spans] == [TRACE] * 2


def test_an_endpoint_that_is_no_url_is_refused():
    with pytest.raises(ValueError, match="it must be a URL"):
        Serving(otlp_endpoint="localhost:4318")

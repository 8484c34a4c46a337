"""OpenTelemetry traces: one span per answer, sent to a collector over OTLP/HTTP (extra otel).

The attributes have the names of OpenTelemetry's conventions for generative models, and beside them vLLM's.  A
span belongs to the trace that the request's headers traceparent and tracestate name.
"""

from __future__ import annotations

import time
from typing import Any
from weakref import WeakKeyDictionary

from longgraft.engine.step import Step
from longgraft.serve.served_request import End, ServedRequest

NANO = 1_000_000_000


class Tracing:
    """A watcher that makes a span of each request when it has ended."""

    def __init__(self, exporter: Any, model: str) -> None:
        """exporter: an OpenTelemetry span exporter; model: the model's name"""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._provider = TracerProvider(resource=Resource.create({"service.name": "longgraft"}), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("longgraft")
        self._model = model
        self._first: WeakKeyDictionary[ServedRequest, float] = WeakKeyDictionary()  # time of the first token

    def stepped(self, served: ServedRequest, step: Step, seconds: float) -> None:
        """Takes note of the first token's time."""
        if step.tokens:
            self._first.setdefault(served, time.monotonic())

    def ended(self, served: ServedRequest, end: End | None) -> None:
        """Records a span.  It is sent later, by a thread of its own."""
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        now = time.time_ns()
        over = time.monotonic()
        since = now - int(NANO * (over - served.since))
        parent = TraceContextTextMapPropagator().extract(served.trace)
        span = self._tracer.start_span(
            "llm_request", parent, SpanKind.SERVER, self._attributes(served, end, over), start_time=since
        )
        first = self._first.get(served)
        if first is not None:
            span.add_event("first token", timestamp=now - int(NANO * (over - first)))
        if end is None:
            span.set_status(Status(StatusCode.ERROR, "decoding failed"))
        span.end(now)

    def close(self) -> None:
        """Sends the spans that are left."""
        self._provider.shutdown()

    def _attributes(self, served: ServedRequest, end: End | None, over: float) -> dict[str, Any]:
        sampling = served.requested.sampling
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
            "gen_ai.request.max_tokens": served.requested.max_new_tokens,
            "gen_ai.request.temperature": float(sampling.temperature),
            "gen_ai.request.top_p": float(sampling.top_p),
            "gen_ai.latency.time_in_queue": served.queued,
            "gen_ai.latency.e2e": over - served.since,
        }
        first = self._first.get(served)
        if first is not None:
            attributes["gen_ai.latency.time_to_first_token"] = first - served.since
        if end is None:
            return attributes
        stats = end.stats
        return attributes | {
            "gen_ai.response.finish_reasons": (end.reason,),
            "gen_ai.usage.input_tokens": stats.prompt_tokens,
            "gen_ai.usage.prompt_tokens": stats.prompt_tokens,
            "gen_ai.usage.output_tokens": stats.new_tokens,
            "gen_ai.usage.completion_tokens": stats.new_tokens,
            "gen_ai.latency.time_in_model_prefill": stats.prefill_seconds,
            "gen_ai.latency.time_in_model_decode": stats.decode_seconds,
            "longgraft.reused_tokens": stats.reused_tokens,
            "longgraft.steps": stats.steps,
            "longgraft.mat": stats.mat,
        }


def over_http(endpoint: str, model: str) -> Tracing:
    """Returns what sends traces to a collector; raises ValueError if the packages are not installed.

    Args:
        endpoint: The collector's address; without a path, /v1/traces is added.
        model: The model's name.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ValueError(f'Traces need {error.name}. Install it with: pip install "longgraft[otel]"') from error
    path = endpoint.partition("://")[2].partition("/")[2]
    if not path:
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    return Tracing(OTLPSpanExporter(endpoint=endpoint), model)

"""/metrics for Prometheus, with the names that vLLM and llama.cpp share, after the prefix that the options set.

A watcher of all requests counts in the decoding thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from longgraft.engine.step import Step
from longgraft.serve.served_request import End, ServedRequest
from longgraft.serve.state import State

REASONS = {"eos": "stop", "stop": "stop", "cut": "stop", "length": "length", "time": "length", "cancelled": "abort"}
# Limits of buckets in seconds: vLLM's, and smaller ones for small models and short prompts.
SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)

PLACES = (16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0)  # limits of buckets in tokens


def router(state: State) -> APIRouter:
    routes = APIRouter()
    counts = RequestMetrics(state)
    state.worker.watchers.append(counts)

    @routes.get("/metrics", response_class=Response)
    def metrics() -> Response:
        """Returns all metrics since the server started, for Prometheus."""
        return exposition(counts.registry.collect())

    return routes


class Families(Collector):
    """Families of metrics without the times at which their counters were made, which nothing reads."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        for family in self._families:
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


def exposition(families: Iterable[Metric]) -> Response:
    """Returns the metrics in Prometheus' text format 0.0.4, whatever format the client would rather have.

    In OpenMetrics, prometheus_client 0.26 writes samples without the colon of their family's name.
    """
    encode, kind = choose_encoder("")
    return Response(encode(Families(families)), media_type=kind)


@dataclass
class Rate:
    """Tokens and the seconds that they took."""

    tokens: int = 0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self.tokens += tokens
        self.seconds += seconds

    @property
    def per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


class RequestMetrics:
    """Metrics of one server, in their own registry."""

    def __init__(self, state: State) -> None:
        self.registry = CollectorRegistry()
        worker = state.worker
        self._name = state.name
        self._longest = 0
        self._read = Rate()
        self._decoded = Rate()
        self._prefix = state.options.metrics_prefix
        self._prefixes = state.session.engine.prefixes
        self.drafts = self._counter("spec_decode_num_drafts", "Verification steps with proposed tokens.")
        self.drafted = self._counter("spec_decode_num_draft_tokens", "Proposed tokens: drafted, retrieved or both.")
        self.accepted = self._counter("spec_decode_num_accepted_tokens", "Proposed tokens that were accepted.")
        self.at = Counter(
            self._prefix + "spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens by their depth.",
            ("model_name", "position"),
            registry=self.registry,
        )
        self.prompt = self._counter("prompt_tokens", "Tokens of prompts, read or reused from an earlier one.")
        self.new = self._counter("generation_tokens", "Tokens of answers.")
        self.queried = self._counter(
            "prefix_cache_queries", "Tokens of prompts that were looked up among earlier prompts."
        )
        self.hits = self._counter("prefix_cache_hits", "Tokens of prompts that were found there and not read again.")
        self.differs = self._histogram(
            "prefix_cache_first_difference_tokens",
            "Place of the first token in which a prompt differs from the kept prompt that it follows longest; prompts "
            "that continue a kept one are left out.",
            PLACES,
        )
        self.first = self._histogram(
            "time_to_first_token_seconds", "Time from a request's arrival to its first token.", LONG
        )
        self.between = self._histogram(
            "inter_token_latency_seconds",
            "Time from one token to the next; the tokens of a step share its time.",
            SHORT,
        )
        self.whole = self._histogram("e2e_request_latency_seconds", "Time from a request's arrival to its end.", LONG)
        self.queued = self._histogram("request_queue_time_seconds", "Time that a request waited in the queue.", LONG)
        self.ended_by = Counter(
            self._prefix + "request_success",
            "Requests that ended, by reason.",
            ("model_name", "finished_reason"),
            registry=self.registry,
        )
        self.failed = self._counter(
            "request_failures", "Requests that ended with an error of the server or the session."
        )
        self._gauge("num_requests_running", "Requests that are being decoded.", lambda: len(worker.running))
        self._gauge("num_requests_waiting", "Requests in the queue.", lambda: worker.waiting + state.pool.active)
        self._gauge(
            "num_requests_refused",
            "Requests refused so far because the queue was full.",
            lambda: worker.refused + state.pool.refused,
        )
        self._gauge(
            "kv_cache_usage_perc",
            "Share of the memory for keys and values that requests reserve; 1: all.",
            lambda: worker.filled,
        )
        self._gauge("requests_processing", "num_requests_running by llama.cpp's name.", lambda: len(worker.running))
        self._gauge(
            "requests_deferred",
            "num_requests_waiting by llama.cpp's name.",
            lambda: worker.waiting + state.pool.active,
        )
        self.predicted = self._counter("tokens_predicted", "generation_tokens by llama.cpp's name.")
        self.prefill_seconds = self._counter("prompt_seconds", "Seconds in which prompts of ended requests were read.")
        self.decode_seconds = self._counter("tokens_predicted_seconds", "Seconds in which ended requests were decoded.")
        self._gauge("n_tokens_max", "Most tokens of a prompt and its answer so far.", lambda: self._longest)
        self._gauge(
            "prompt_tokens_seconds",
            "Tokens of prompts that ended requests read per second.",
            lambda: self._read.per_second,
        )
        self._gauge(
            "predicted_tokens_seconds",
            "Tokens that ended requests decoded per second.",
            lambda: self._decoded.per_second,
        )
        prefixes = self._prefixes
        if prefixes is not None:
            self._gauge("prefix_cache_bytes", "Memory of the prompts that are kept.", lambda: prefixes.bytes)
        ProcessCollector(registry=self.registry)

    def stepped(self, served: ServedRequest, step: Step, seconds: float) -> None:
        """Counts one step."""
        self.prompt.inc(step.read)
        self.new.inc(len(step.tokens))
        self.predicted.inc(len(step.tokens))
        if step.read and step.tokens:
            self.first.observe(time.monotonic() - served.since)
        elif step.tokens:
            for _ in step.tokens:
                self.between.observe(seconds / len(step.tokens))
        if step.tree is not None and len(step.tree) > 1:
            self.drafts.inc()
            self.drafted.inc(len(step.tree) - 1)
            # Tokens after the end of the answer were not accepted.
            accepted = min(len(step.path) - 1, len(step.tokens))
            self.accepted.inc(accepted)
            for position in range(accepted):
                self.at.labels(self._name, str(position)).inc()

    def ended(self, served: ServedRequest, end: End | None) -> None:
        """Counts one request."""
        if end is None:
            self.failed.inc()
            return
        self.ended_by.labels(self._name, REASONS[end.reason]).inc()
        self.queued.observe(served.queued)
        stats = end.stats
        self.prefill_seconds.inc(stats.prefill_seconds)
        self.decode_seconds.inc(stats.decode_seconds)
        self._read.add(stats.prompt_tokens - stats.reused_tokens, stats.prefill_seconds)
        self._decoded.add(stats.new_tokens, stats.decode_seconds)
        self._longest = max(self._longest, stats.prompt_tokens + stats.new_tokens)
        if end.reason != "cancelled":
            self.whole.observe(time.monotonic() - served.since)
        if self._prefixes is not None:
            self.queried.inc(end.stats.prompt_tokens)
            self.hits.inc(end.stats.reused_tokens)
            if (place := end.stats.first_difference) is not None:
                self.differs.observe(place)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(self._prefix + name, about, ("model_name",), registry=self.registry).labels(self._name)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(self._prefix + name, about, ("model_name",), registry=self.registry, buckets=buckets)
        return made.labels(self._name)

    def _gauge(self, name: str, about: str, now: Callable[[], float]) -> None:
        Gauge(self._prefix + name, about, ("model_name",), registry=self.registry).labels(self._name).set_function(now)

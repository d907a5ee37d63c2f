"""What `/metrics` tells. Labels are model and worker names that the cluster knows, never client input."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.breaker import BreakerState
from gateway.cluster import Cluster
from protocol.values import Usage

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_WHOLE_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Owns the registry of this gateway's measures."""

    def __init__(self, cluster: Cluster) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_ClusterCollector(cluster))
        self._requests = self._counter("gateway_requests", "Requests by outcome", "model", "code")
        self._prompt_tokens = self._counter("gateway_prompt_tokens", "Prompt tokens", "model")
        self._completion_tokens = self._counter("gateway_completion_tokens", "Sampled tokens", "model")
        self._first_token = Histogram(
            "gateway_time_to_first_token_seconds",
            "From the request to its first token",
            ["model"],
            buckets=_FIRST_TOKEN_S,
            registry=self._registry,
        )
        self._whole = Histogram(
            "gateway_request_seconds",
            "From the request to the end of its answer",
            ["model"],
            buckets=_WHOLE_S,
            registry=self._registry,
        )

    def outcome(self, model: str, code: str) -> None:
        """A request ended: `ok`, or one of the error codes. `model` is empty where unknown."""
        self._requests.labels(model, code).inc()

    def answered(self, model: str, first_token_s: float | None, whole_s: float, usage: Usage) -> None:
        self._prompt_tokens.labels(model).inc(usage.prompt_tokens)
        self._completion_tokens.labels(model).inc(usage.completion_tokens)
        self._whole.labels(model).observe(whole_s)
        if first_token_s is not None:
            self._first_token.labels(model).observe(first_token_s)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self._registry)


class _ClusterCollector(Collector):
    """Reads the cluster when it is asked, so that nothing is counted twice."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        running = GaugeMetricFamily(
            "vllm:num_requests_running", "Requests at a worker", labels=["model_name"]
        )
        waiting = GaugeMetricFamily(
            "vllm:num_requests_waiting", "Requests in the queue", labels=["model_name"]
        )
        at_workers = self._cluster.dispatcher.flights.running_by_model()
        in_queue = self._cluster.dispatcher.waiting.counts()
        for model in self._cluster.catalog.models():
            running.add_metric([model], at_workers.get(model, 0))
            waiting.add_metric([model], in_queue.get(model, 0))
        yield running
        yield waiting
        yield from self._attempts()
        yield from self._workers()

    def _attempts(self) -> Iterator[Metric]:
        """By the error code of what ended the attempt before."""
        dispatcher = self._cluster.dispatcher
        for name, text, counts in (
            ("gateway_retries", "Requests that began anew at another worker", dispatcher.retries),
            ("gateway_takeovers", "Streams that went on at another worker", dispatcher.takeovers),
        ):
            family = CounterMetricFamily(name, text, labels=["reason"])
            for reason, count in counts.items():
                family.add_metric([reason], count)
            yield family

    def _workers(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("gateway_worker_ready", "Whether the worker takes requests", labels=["worker"])
        rejected = CounterMetricFamily(
            "gateway_rejected", "Requests that the worker rejected as busy", labels=["worker"]
        )
        held = GaugeMetricFamily(
            "gateway_worker_model_bytes", "Memory that the worker holds for its model", labels=["worker"]
        )
        breaker = GaugeMetricFamily(
            "gateway_worker_breaker", "1 for the breaker's state", labels=["worker", "state"]
        )
        for view in self._cluster.registry.views():
            present = self._cluster.breaker(view)
            for state in BreakerState:
                breaker.add_metric([view.worker_id, state], float(state is present))
            held.add_metric([view.worker_id], view.resident_mb << 20)
            up.add_metric([view.worker_id], float(view.is_ready))
            rejected.add_metric([view.worker_id], view.rejected)
        yield up
        yield rejected
        yield held
        yield breaker

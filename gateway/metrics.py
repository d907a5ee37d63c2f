"""The figures of a gateway's requests, and the text of `/metrics`. What is told: `gateway.measures`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from gateway import measures
from gateway.cluster import Cluster
from gateway.cluster_figures import ClusterFigures
from gateway.measures import Measure
from protocol.values import Usage

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Owns the registry of this gateway's measures."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._models: set[str] = set()
        """Those that have series, of requests that outlived their model too."""
        self._registry = CollectorRegistry()
        self._registry.register(ClusterFigures(cluster))
        self._requests = self._counter(measures.REQUESTS)
        self._slow_readers = self._counter(measures.SLOW_READERS)
        self._counters = tuple(
            map(
                self._counter,
                (
                    measures.PROMPT_TOKENS,
                    measures.GENERATION_TOKENS,
                    measures.PREFIX_QUERIES,
                    measures.PREFIX_HITS,
                ),
            )
        )
        self._histograms = tuple(
            map(
                self._histogram,
                (measures.PROMPT, measures.GENERATION, measures.WHOLE, measures.FIRST_TOKEN),
            )
        )
        self._series: dict[str, tuple[list[Counter], list[Histogram]]] = {}
        """Of models, as it takes longer to find them than to count."""

    def outcome(self, model: str, code: str) -> None:
        """A request ended: `ok`, or one of the error codes. `model` is empty where unknown."""
        if model:
            self._models.add(model)
        self._requests.labels(model, code).inc()

    def answered(self, model: str, first_token_s: float | None, whole_s: float, usage: Usage) -> None:
        counters, (prompt, generation, whole, first_token) = self._of(model)
        counted = (usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens, usage.cached_tokens)
        for counter, count in zip(counters, counted, strict=True):
            counter.inc(count)
        prompt.observe(usage.prompt_tokens)
        generation.observe(usage.completion_tokens)
        whole.observe(whole_s)
        if first_token_s is not None:
            first_token.observe(first_token_s)

    def _of(self, model: str) -> tuple[list[Counter], list[Histogram]]:
        series = self._series.get(model)
        if series is None:
            self._models.add(model)
            counters = [each.labels(model) for each in self._counters]
            series = self._series[model] = counters, [each.labels(model) for each in self._histograms]
        return series

    def cut_off(self) -> None:
        """A client read too slowly."""
        self._slow_readers.inc()

    def text(self) -> bytes:
        self._follow(set(self._cluster.catalog.models()))
        return generate_latest(self._registry)

    def _follow(self, models: set[str]) -> None:
        """Have all series of the models that there are, and none of others."""
        for model in models:
            self._of(model)
        for model in self._models - models:
            self._series.pop(model, None)
            for each in (*self._counters, *self._histograms):
                each.remove(model)
            self._requests.remove_by_labels({"model": model})
            self._cluster.dispatcher.tally.forget(model)
        self._models = models

    def _counter(self, measure: Measure) -> Counter:
        return Counter(measure.name, measure.text, measure.labels, registry=self._registry)

    def _histogram(self, measure: Measure) -> Histogram:
        return Histogram(
            measure.name, measure.text, measure.labels, buckets=measure.buckets, registry=self._registry
        )

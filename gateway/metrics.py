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
        """Those that have series."""
        self._registry = CollectorRegistry()
        self._registry.register(ClusterFigures(cluster))
        self._requests = self._counter(measures.REQUESTS)
        self._prompt_tokens = self._counter(measures.PROMPT_TOKENS)
        self._generation_tokens = self._counter(measures.GENERATION_TOKENS)
        self._queries = self._counter(measures.PREFIX_QUERIES)
        self._hits = self._counter(measures.PREFIX_HITS)
        self._slow_readers = self._counter(measures.SLOW_READERS)
        self._first_token = self._histogram(measures.FIRST_TOKEN)
        self._whole = self._histogram(measures.WHOLE)
        self._prompt = self._histogram(measures.PROMPT)
        self._generation = self._histogram(measures.GENERATION)
        self._of_models: tuple[Counter | Histogram, ...] = (
            *(self._prompt_tokens, self._generation_tokens, self._queries, self._hits),
            *(self._first_token, self._whole, self._prompt, self._generation),
        )

    def outcome(self, model: str, code: str) -> None:
        """A request ended: `ok`, or one of the error codes. `model` is empty where unknown."""
        self._requests.labels(model, code).inc()

    def answered(self, model: str, first_token_s: float | None, whole_s: float, usage: Usage) -> None:
        self._prompt_tokens.labels(model).inc(usage.prompt_tokens)
        self._generation_tokens.labels(model).inc(usage.completion_tokens)
        self._queries.labels(model).inc(usage.prompt_tokens)
        self._hits.labels(model).inc(usage.cached_tokens)
        self._prompt.labels(model).observe(usage.prompt_tokens)
        self._generation.labels(model).observe(usage.completion_tokens)
        self._whole.labels(model).observe(whole_s)
        if first_token_s is not None:
            self._first_token.labels(model).observe(first_token_s)

    def cut_off(self) -> None:
        """A client read too slowly."""
        self._slow_readers.inc()

    def text(self) -> bytes:
        self._follow(set(self._cluster.catalog.models()))
        return generate_latest(self._registry)

    def _follow(self, models: set[str]) -> None:
        """Have all series of the models that there are, and none of others."""
        for model in models:
            for each in self._of_models:
                each.labels(model)
        for model in self._models - models:
            for each in self._of_models:
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

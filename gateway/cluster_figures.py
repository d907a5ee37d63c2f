"""The figures of `/metrics` that are read from the cluster when they are asked for.

A worker that is gone has no series, but one of the configuration has that which says that it is not ready.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway import measures
from gateway.breaker import BreakerState
from gateway.cluster import Cluster
from gateway.measures import Measure
from gateway.registry import WorkerView
from gateway.spread import Spread
from protocol.api_keys import PRIORITIES

_Rows = Iterable[tuple[tuple[str, ...], float]]


class ClusterFigures(Collector):
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clock = asyncio.get_running_loop().time

    def collect(self) -> Iterator[Metric]:
        views = [view for view in self._cluster.registry.views() if view.connection]
        yield from self._requests()
        yield from self._gateway()
        yield from _kv_caches(views)
        yield from self._workers(views)

    def _requests(self) -> Iterator[Metric]:
        dispatcher = self._cluster.dispatcher
        tally = dispatcher.tally
        models = list(self._cluster.catalog.models())
        running, waiting = dispatcher.flights.running_by_model(), dispatcher.waiting.counts()
        ready = Counter(view.card.name for view in self._cluster.registry.views() if view.is_ready)
        yield _family(measures.MODEL_WORKERS, (((model,), ready[model]) for model in models))
        yield _family(measures.RUNNING, (((model,), running.get(model, 0)) for model in models))
        yield _family(measures.WAITING, (((model,), waiting.get(model, 0)) for model in models))
        depths = dispatcher.waiting.counts_by_class()
        yield _family(
            measures.QUEUE_DEPTH,
            (((model, each), depths.get((model, each), 0)) for model in models for each in PRIORITIES),
        )
        yield _family(measures.RETRIES, (((reason,), n) for reason, n in tally.retries.items()))
        yield _family(measures.TAKEOVERS, (((reason,), n) for reason, n in tally.takeovers.items()))
        yield _family(
            measures.BEGINNINGS,
            (
                ((model, "found" if found else "new"), tally.beginnings[model, found])
                for model in models
                for found in (True, False)
            ),
        )
        yield _histogram(
            measures.QUEUED,
            (((model, each), tally.queued(model, each)) for model in models for each in PRIORITIES),
        )
        yield _histogram(measures.BETWEEN_TOKENS, (((model,), tally.gaps(model)) for model in models))

    def _gateway(self) -> Iterator[Metric]:
        yield _family(measures.STREAMS, [((), self._cluster.open_streams)])
        yield _family(measures.BUFFERED, [((), self._cluster.buffered_bytes)])
        yield _histogram(measures.LOOP_LAG, [((), self._cluster.lag)])

    def _workers(self, views: list[WorkerView]) -> Iterator[Metric]:
        now = self._clock()
        configured = self._cluster.catalog.configured_ids()
        ready = dict.fromkeys(configured, 0.0)
        ready |= {view.worker_id: float(view.is_ready) for view in views}
        yield _family(measures.READY, (((worker_id,), value) for worker_id, value in ready.items()))
        for measure, values in (
            (measures.WORKER_RUNNING, [view.load.running for view in views]),
            (measures.WORKER_WAITING, [view.load.waiting for view in views]),
            (measures.DECODE, [view.decode_tokens_per_s for view in views]),
            (measures.PREFILL, [view.prefill_tokens_per_s for view in views]),
            (measures.REJECTED, [view.rejected for view in views]),
            (measures.RESTARTS, [view.restarts for view in views]),
            (measures.MEMORY, [view.resident_mb << 20 for view in views]),
            (measures.HEARTBEAT_AGE, [max(0.0, now - view.heartbeat_at) for view in views]),
            (measures.STEP_AGE, [view.step_age_s for view in views]),
        ):
            named = zip(views, values, strict=True)
            yield _family(measure, (((view.worker_id,), value) for view, value in named))
        states = ((view.worker_id, self._cluster.breaker(view)) for view in views)
        yield _family(
            measures.BREAKER,
            (((worker_id, each), each is state) for worker_id, state in states for each in BreakerState),
        )


def _kv_caches(views: Iterable[WorkerView]) -> Iterator[Metric]:
    bounded = [(view, view.capacity.kv_tokens) for view in views if view.capacity.kv_tokens]
    yield _family(
        measures.KV_USAGE,
        (((view.card.name, view.worker_id), view.load.kv_tokens / most) for view, most in bounded),
    )
    yield _family(
        measures.CACHE_CONFIG,
        (((view.card.name, view.worker_id, "1", str(most)), 1) for view, most in bounded),
    )


def _family(measure: Measure, rows: _Rows) -> Metric:
    kind = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
    family = kind(measure.name, measure.text, labels=measure.labels)
    for labels, value in rows:
        family.add_metric(labels, float(value))
    return family


def _histogram(measure: Measure, rows: Iterable[tuple[tuple[str, ...], Spread]]) -> Metric:
    family = HistogramMetricFamily(measure.name, measure.text, labels=measure.labels)
    for labels, spread in rows:
        family.add_metric(labels, buckets=spread.buckets(), sum_value=spread.sum)
    return family

"""Series of models: there are those of models that are served, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from prometheus_client import Metric

from gateway import metrics
from gateway.metrics import Metrics
from gateway.tally import Tally
from protocol.values import Usage


class Nothing:
    """No figures of a cluster."""

    def collect(self) -> Iterator[Metric]:
        return iter(())


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    monkeypatch.setattr(metrics, "ClusterFigures", lambda _cluster: Nothing())
    return {"stays": [], "goes": []}


def made(models: dict[str, list[str]]) -> Metrics:
    catalog = SimpleNamespace(models=lambda: models)
    cluster = SimpleNamespace(catalog=catalog, dispatcher=SimpleNamespace(tally=Tally()))
    return Metrics(cluster)  # type: ignore[arg-type]


@pytest.mark.parametrize("answered", [True, False])
def test_a_request_that_outlives_its_model_leaves_no_series_behind(
    models: dict[str, list[str]], answered: bool
):
    told = made(models)
    assert b'"goes"' in told.text()
    del models["goes"]
    assert b'"goes"' not in told.text()
    told.outcome("goes", "ok" if answered else "worker_lost")
    if answered:
        told.answered("goes", 0.1, 0.2, Usage())
    text = told.text()
    assert b'"goes"' not in text
    assert b'"stays"' in text
    assert told.text() == text

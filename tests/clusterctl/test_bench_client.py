"""A client that measures, where the gateway does not last."""

from __future__ import annotations

import http.client

import pytest

from clusterctl.bench_client import Client, Question


def gone(_timeout_s: float) -> http.client.HTTPConnection:
    raise ConnectionRefusedError("the gateway gw-1 does not run any more")


@pytest.mark.timeout(30)
def test_requests_after_the_gateways_end_are_failures_that_are_counted():
    client = Client(gone, Question(model="m", words=1, max_tokens=2, key=""))
    samples, cut_short = client.level(2, 5, limit_s=10)
    assert [sample.error for sample in samples] == ["ConnectionRefusedError"] * 5
    assert client.reasons == {"ConnectionRefusedError": "the gateway gw-1 does not run any more"}
    assert not cut_short


@pytest.mark.timeout(30)
def test_a_level_ends_soon_where_the_gateway_is_gone():
    client = Client(gone, Question(model="m", words=1, max_tokens=2, key=""))
    samples, cut_short = client.level(4, 100_000, limit_s=300)
    assert 20 <= len(samples) < 30
    assert {sample.error for sample in samples} <= {"ConnectionRefusedError", "given_up"}
    assert cut_short

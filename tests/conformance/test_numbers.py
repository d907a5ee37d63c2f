"""FC-11, FC-13: every number of every route through a real socket, by the fields' own tables."""

from __future__ import annotations

import httpx
import pytest

from tests.conformance.test_http import MODEL
from tests.gateway.dialects.rules import VALUES, body_with, expected, numbers
from tests.integration.cluster import Cluster

pytestmark = pytest.mark.integration


PATHS = sorted({path for path, _, _ in numbers()})


@pytest.mark.parametrize("path", PATHS)
def test_fc_13_one_rule_for_every_number_on_every_route(cluster: Cluster, path: str):
    with httpx.Client(base_url=cluster.url(), timeout=60) as http:
        for where, name, row in numbers():
            for value in VALUES if where == path else ():
                wanted = expected(row, value)
                answer = http.post(path, content=body_with(path, name, value, MODEL))
                assert answer.status_code in {200 if reason is None else 400 for reason in wanted}, (
                    name,
                    value,
                )
                assert "NaN" not in answer.text
                if answer.status_code == 400 and path.startswith("/v1") and "messages" not in path:
                    assert answer.json()["error"]["code"] in wanted, (name, value)
        assert http.post(path, content=body_with(path, "unknown", "1", MODEL)).status_code == 200
    cluster.wait_idle()

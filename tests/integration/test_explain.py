"""Why a request went where it went, asked with the id that its client got."""

from __future__ import annotations

import json
import re

import httpx
import pytest

from tests.integration.cluster import PATIENCE_S, chat, script
from tests.integration.operating import operating

pytestmark = pytest.mark.integration


def test_explain_tells_a_requests_life_by_the_id_of_its_answer_and_nothing_that_it_said():
    with operating() as operator:
        operator.init("w-1", "w-2")
        operator.run("up", "--wait")
        url = operator.url() + "/v1/chat/completions"
        body = chat(script(tokens=["SECRET"], raise_at=0, once=True), n=2)
        answer = httpx.post(url, json=body, timeout=PATIENCE_S)
        assert answer.status_code == 200
        told = operator.run("explain", answer.headers["x-request-id"])
        assert len(re.findall(r"^req-\S+, model fake-model, gateway gw-1$", told, re.M)) == 2
        assert len(re.findall(r"w-[12] is left \(engine_failed\) before a token came", told)) == 2
        assert len(re.findall(r"w-[12] ends it: stop, \d tokens", told)) == 2
        assert "SECRET" not in told
        found = json.loads(operator.run("explain", answer.headers["x-request-id"], "--json"))
        assert [life["events"][-1]["what"] for life in found["gw-1"]] == ["finished", "finished"]
        unknown = operator.run("explain", "req-none", code=1)
        assert "no gateway of this machine knows the request 'req-none'" in unknown
        refused = httpx.post(url, json={**body, "model": "none"}, timeout=PATIENCE_S).headers["x-request-id"]
        assert "clusterctl logs --request" in operator.run("explain", refused, code=1)
        assert "model_not_found" in operator.run("logs", "--request", refused)
        operator.run("down")
        assert "no gateway of this machine answers" in operator.run("explain", "req-none", code=1)

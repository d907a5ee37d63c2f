"""FC-11, FC-13: every number of every route through a real socket, by the fields' own tables."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.conformance import spoken
from tests.conformance.test_http import MODEL
from tests.gateway.dialects.rules import VALUES, body_with, expected, numbers
from tests.integration.cluster import Cluster, script

pytestmark = pytest.mark.integration


PATHS = sorted({path for path, _, _ in numbers()})


@pytest.mark.parametrize("path", PATHS)
def test_fc_13_one_rule_for_every_number_on_every_route(cluster: Cluster, path: str):
    model = "vectors" if path.startswith("/api/embed") else MODEL
    with httpx.Client(base_url=cluster.url(), timeout=60) as http:
        for where, name, row in numbers():
            for value in VALUES if where == path else ():
                wanted = expected(row, value)
                answer = http.post(path, content=body_with(path, name, value, model))
                assert answer.status_code in {200 if reason is None else 400 for reason in wanted}, (
                    name,
                    value,
                )
                assert "NaN" not in answer.text
                if answer.status_code == 400 and path.startswith("/v1") and "messages" not in path:
                    assert answer.json()["error"]["code"] in wanted, (name, value)
        assert http.post(path, content=body_with(path, "unknown", "1", model)).status_code == 200
    cluster.wait_idle()


NO_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"NaN"', '"Infinity"', "1e400")
DRAWS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


@pytest.mark.parametrize("path", spoken.ALL)
def test_fc_11_a_number_that_is_none_is_refused_by_name_and_harms_nobody(cluster: Cluster, path: str):
    fields = [*DRAWS, *(["seed"] if path not in (spoken.RESPONSES, spoken.MESSAGES) else []), "logit_bias"]
    begun = json.dumps(spoken.body(path, script(tokens=["a"])))[:-1]

    def ask(name: str, value: str) -> httpx.Response:
        given = f'"{name}": {{"5": {value}}}' if name == "logit_bias" else f'"{name}": {value}'
        if path == spoken.OLLAMA:
            given = f'"options": {{{given}}}'
        return http.post(path, content=f"{begun}, {given}}}".encode())

    with httpx.Client(base_url=cluster.url(), timeout=60) as http:
        for name in fields:
            for value in NO_NUMBERS:
                answer = ask(name, value)
                assert answer.status_code == 400, (name, value)
                error = json.loads(answer.text, parse_constant=pytest.fail)["error"]
                words = error if isinstance(error, str) else error["message"]
                assert any(each in words for each in (name, "of 5", "of options")), (name, value, words)
        assert ask("temperature", "1e-300").status_code == 200
    cluster.wait_idle()

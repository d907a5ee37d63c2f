"""Clients of Python in an environment of their own: LiteLLM (as OpenAI, vLLM and Anthropic), instructor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.environments import environment, passed
from tests.conformance.scripts import TWO_CALLS
from tests.integration.cluster import Cluster, script

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def python() -> Path:
    return environment("litellm==1.110.2", "instructor==1.17.0", "pytest==9.2.0")


def test_litellm(cluster: Cluster, python: Path, tmp_path: Path):
    texts = {"TEXT": script(tokens=["Hello", " there."]), "TWO_CALLS": TWO_CALLS}
    # Its table of prices is not to come from the network.
    own = {"BASE_URL": cluster.url(), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    assert passed(python, "litellm_client.py", tmp_path, **own, **texts) == 23


def test_instructor(cluster: Cluster, python: Path, tmp_path: Path):
    call = '<tool_call>{"name": "User", "arguments": {"name": "Ann", "age": 41}}</tool_call>'
    texts = {
        "CALL": script(tokens=[call[:30], call[30:60], call[60:]]),
        "OBJECT": script(tokens=['{"name": ', '"Ann", ', '"age": 41}']),
    }
    assert passed(python, "instructor_client.py", tmp_path, BASE_URL=cluster.url(), **texts) == 13

"""FC-62: a chat template that refuses is the request's fault; one that never ends is found in time."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import httpx
import pytest

from protocol.states import ExitCode
from tests.faults.small_model import make_model
from tests.integration.cluster import Cluster, config_text, running

pytestmark = [
    pytest.mark.integration,
    pytest.mark.mlx,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="mlx is not installed"),
]
MLX_S = 120.0
STRICT = """
{%- for m in messages %}
  {%- if m.role == 'system' %}{{ raise_exception('No system texts, please') }}{% endif %}
  {%- set expected = 'assistant' if loop.index0 % 2 else 'user' %}
  {%- if m.role != expected %}{{ raise_exception('Roles must alternate') }}{% endif %}
  {{- m.role }}: {{ m.content }}|
{%- endfor %}"""
# Endless for all purposes: the sandbox of templates bounds each loop, not loops within loops.
LOOPING = """
{%- if messages | length > 1 %}
  {%- for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}
{%- endif %}{{ messages[0].content }}"""


def serving(folder: Path) -> Any:
    table = f'[[workers]]\nid = "w-1"\nmodel = "{folder}"\nserved_name = "small"\n'
    return running(config_text(table), "w-1", patience_s=MLX_S)


def ask(
    cluster: Cluster, *turns: tuple[str, str], patience_s: float = MLX_S, **fields: Any
) -> httpx.Response:
    messages = [{"role": role, "content": content} for role, content in turns]
    body = {"model": "small", "messages": messages, "max_tokens": 2, **fields}
    return httpx.post(cluster.url() + "/v1/chat/completions", json=body, timeout=patience_s)


def test_fc_62_what_a_template_refuses_is_a_400_in_its_own_words(tmp_path: Path):
    with serving(make_model(tmp_path / "m", template=STRICT)) as cluster:
        for stream in (False, True):
            refused = ask(cluster, ("system", "a"), ("user", "b"), stream=stream)
            assert refused.status_code == 400
            error = refused.json()["error"]
            assert "No system texts, please" in error["message"]
            assert (error["type"], error["param"]) == ("invalid_request_error", "messages")
        assert "Roles must alternate" in ask(cluster, ("assistant", "a")).json()["error"]["message"]
        assert ask(cluster, ("critic", "a")).json()["error"]["param"] == "messages[0].role"
        worker = cluster.worker("w-1")
        assert (worker["state"], worker["breaker"]) == ("ready", "closed")
        # Neighbours of one role are merged for such a template, rather than refused.
        merged = ask(cluster, ("user", "a"), ("user", "b"))
        assert merged.status_code == 200
        assert (
            ask(cluster, ("user", "a\n\nb")).json()["usage"]["prompt_tokens"]
            == (merged.json()["usage"]["prompt_tokens"])
        )


def test_fc_62_a_template_that_never_ends_costs_its_request_and_the_process(tmp_path: Path):
    with serving(make_model(tmp_path / "m", template=LOOPING)) as cluster:
        assert ask(cluster, ("user", "a")).status_code == 200
        stuck = ask(cluster, ("user", "a"), ("assistant", "b"))
        assert stuck.status_code == 400
        assert "not ready within 10 s" in stuck.json()["error"]["message"]
        assert cluster.wait_exit("w-1") == ExitCode.FAULT
        assert "Traceback" not in cluster.log("w-1")


def test_fc_62_a_template_that_never_ends_is_found_although_its_client_left(tmp_path: Path):
    with serving(make_model(tmp_path / "m", template=LOOPING)) as cluster:
        with pytest.raises(httpx.ReadTimeout):
            ask(cluster, ("user", "a"), ("assistant", "b"), patience_s=0.5)
        assert cluster.wait_exit("w-1") == ExitCode.FAULT

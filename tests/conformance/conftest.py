"""One cluster with fake engines for all official clients, and those clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.integration.cluster import Cluster, config_text, fake_worker, running


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    workers = fake_worker("w-1", aliases=["default"], max_num_seqs=16, max_model_len=4096)
    workers += fake_worker("w-2", served_name="org/other:latest")
    workers += fake_worker("w-3", served_name="loading", engine_options={"load_s": 600})
    workers += fake_worker("w-4", served_name="modèle-漢/é:1%2F2")
    workers += fake_worker("w-5", served_name="vectors", engine_options={"task": "embed"}, max_model_len=4096)
    workers += fake_worker("w-6", served_name="ranks", engine_options={"task": "rerank"})
    names = '[[models]]\nname = "fake-model"\naliases = ["claude-local"]\npatterns = ["claude-*"]\n'
    ready = ("w-1", "w-2", "w-4", "w-5", "w-6")
    with running(config_text(workers, extra=names + "list_aliases = true"), *ready) as found:
        yield found


@pytest.fixture
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    """OpenAI's own client, with its strict validation on."""
    with openai.OpenAI(
        base_url=cluster.url() + "/v1", api_key="none", _strict_response_validation=True, max_retries=0
    ) as found:
        yield found


@pytest.fixture
def claude(cluster: Cluster) -> Iterator[Any]:
    """Anthropic's, as strict."""
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(
        base_url=cluster.url(), api_key="none", _strict_response_validation=True, max_retries=0
    ) as found:
        yield found


@pytest.fixture
def http(cluster: Cluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cluster.url(), timeout=30) as found:
        yield found

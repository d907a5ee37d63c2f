"""LangChain's standard suite on the embedded model: the cases that ask for no more than it can do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.environments import environment, passed
from tests.integration.cluster import Cluster, config_text, running

PINS = ("langchain-openai==1.7.4", "langchain-tests==1.1.9", "pytest==9.2.0")
CASES = "invoke or stream or batch or conversation or usage_metadata or stop_sequence or message_with_name"
"""By words of their names. The other cases are about what a model of this size says: which tool it calls
with which numbers, answers after the results of tools, objects with sense in them; or about images, audio
and PDF, which this model does not take."""
WORKER = '[[workers]]\nid = "smol-1"\nmodel = "embedded"\naliases = ["default"]\nmax_num_seqs = 8\n'


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(config_text(WORKER), "smol-1", patience_s=240.0) as found:
        yield found


@pytest.mark.timeout(1200)
def test_langchain(cluster: Cluster, tmp_path: Path):
    python = environment(*PINS)
    # One loop for all: LangChain keeps its connections from one case to the next.
    loops = ("asyncio_mode=auto", "asyncio_default_test_loop_scope=session")
    options = ("-k", f"({CASES}) and not stream_time", *(part for loop in loops for part in ("-o", loop)))
    assert passed(python, "langchain_client.py", tmp_path, *options, BASE_URL=cluster.url()) == 20

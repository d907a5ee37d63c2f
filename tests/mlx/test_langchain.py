"""LangChain's standard suite on the embedded model, in three dialects: the cases that it can pass."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conformance.environments import environment, passed
from tests.integration.cluster import Cluster, config_text, running

PINS = ("langchain-openai==1.7.4", "langchain-anthropic==1.7.10", "langchain-tests==1.1.9", "pytest==9.2.0")
LEFT_OUT = {
    "agent_loop": "the model has to call a tool by itself",
    "unicode_tool_call": "it has to write Chinese and Japanese names",
    "json_mode": "it has to find the keys by itself",
    "stream_time": "a benchmark",
    "structured_output_async": "as the others, for LangChain's own sake",
    "pydantic_2_v1": "the same",
}
"""By words of their names, and why. Cases of images, audio and PDF the suite leaves out itself."""
FEW = (
    "(test_invoke or test_stream or test_conversation or usage_metadata or stop_sequence or histories"
    " or test_tool_calling or test_structured_output)"
    " and not (override or async or v3 or model1 or typeddict or optional)"
)
DIALECTS = {"TestChat": ("", 35), "TestResponses": (FEW, 12), "TestMessages": (FEW, 12)}
"""What of the cases is asked of each dialect, and how many these are."""
WORKER = """[[workers]]
id = "smol-1"
model = "embedded"
aliases = ["default"]
max_num_seqs = 8
tool_parser = "hermes"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(config_text(WORKER), "smol-1", patience_s=240.0) as found:
        yield found


@pytest.mark.timeout(1200)
def test_langchain(cluster: Cluster, tmp_path: Path):
    """The dialects side by side, so that their requests share the model's steps."""
    python = environment(*PINS)
    # One loop for all: LangChain keeps its connections from one case to the next.
    loops = ("asyncio_mode=auto", "asyncio_default_test_loop_scope=session")
    options = [part for loop in loops for part in ("-o", loop)]
    left = " or ".join(LEFT_OUT)

    def count(name: str) -> int:
        folder = tmp_path / name
        folder.mkdir()
        chosen = " and ".join(filter(None, (name, DIALECTS[name][0], f"not ({left})")))
        return passed(python, "langchain_client.py", folder, "-k", chosen, *options, BASE_URL=cluster.url())

    with ThreadPoolExecutor(len(DIALECTS)) as pool:
        counts = dict(zip(DIALECTS, pool.map(count, DIALECTS), strict=True))
    assert counts == {name: expected for name, (_cases, expected) in DIALECTS.items()}

"""The serial engine behind a real gateway: who finds it busy waits there."""

import asyncio
import importlib.util
from typing import Any

import httpx
import pytest

from tests.faults.small_model import make_model
from tests.integration.cluster import chat, config_text, running, stream_chat, text_of

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="mlx is not installed"),
]
PATIENCE_S = 240.0


def test_requests_to_a_serial_worker_are_served_one_after_the_other(tmp_path):
    model, draft = make_model(tmp_path / "m"), make_model(tmp_path / "draft")
    worker = (
        f'[[workers]]\nid = "w-1"\nmodel = "{model}"\nserved_name = "small"\nengine = "serial"\n'
        f'engine_options = {{ draft_model = "{draft}", num_draft_tokens = 2 }}\n'
    )

    async def scenario(url):
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
            sampled: dict[str, Any] = {
                "model": "small",
                "temperature": 0.8,
                "max_tokens": 40,
                "ignore_eos": True,
            }
            bodies = [chat("Hello", seed=seed, **sampled) for seed in range(5)]
            alone = [text_of(await stream_chat(client, body)) for body in bodies]
            together = await asyncio.gather(*(stream_chat(client, body) for body in bodies))
            assert [text_of(events) for events in together] == alone
            assert len(set(alone)) > 1

    with running(config_text(worker), "w-1", patience_s=PATIENCE_S) as cluster:
        state = cluster.worker("w-1")
        assert (state["engine"], state["max_num_seqs"], state["max_waiting"]) == ("serial", 1, 0)
        asyncio.run(scenario(cluster.url()))
        cluster.wait_idle()

"""The contract's cases, against the engines that need no model."""

from contextlib import asynccontextmanager

import pytest

from tests.worker.engine.contract import *  # noqa: F403
from worker.engine.base import run_blocking_startup_work
from worker.engine.fake import FakeEngine


@pytest.fixture
def make_engine():
    @asynccontextmanager
    async def make(max_num_seqs=2, max_waiting=0):
        engine = FakeEngine(
            "fake-model", max_num_seqs=max_num_seqs, max_waiting=max_waiting, decode_tokens_per_s=500
        )
        await run_blocking_startup_work(engine.prepare_for_start)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()

    return make

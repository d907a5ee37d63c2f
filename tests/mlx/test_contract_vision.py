"""The contract's cases, against the engine for models that see."""

from contextlib import asynccontextmanager

import pytest

from tests.worker.engine.contract import *  # noqa: F403
from worker.engine.vision import VisionEngine


@pytest.fixture(scope="module")
def make_engine(make_engine, untried, seeing):
    @asynccontextmanager
    async def make(max_num_seqs=2, max_waiting=0):
        async with make_engine(max_num_seqs, max_waiting, VisionEngine, str(seeing)) as engine:
            yield engine

    return make

"""The contract's cases, against the serial engine: plain, and with a draft."""

from contextlib import asynccontextmanager

import pytest

from tests.worker.engine.contract import *  # noqa: F403
from worker.engine.serial import SerialEngine


@pytest.fixture(scope="module", params=["plain", "draft"])
def make_engine(make_engine, untried, tiny, tiny_draft, request):
    """As many places as a case asks for; all but one of them wait."""
    options = {"draft_model": str(tiny_draft)} if request.param == "draft" else {}

    @asynccontextmanager
    async def make(max_num_seqs=2, max_waiting=0):
        waiting = max_num_seqs - 1 + max_waiting
        async with make_engine(1, waiting, SerialEngine, str(tiny), engine_options=options) as engine:
            yield engine

    return make

"""What a worker says of a gateway that it cannot reach over the network."""

from __future__ import annotations

import asyncio
import socket

import pytest

from protocol.reachability import OPEN, UNKNOWN_NAME, last_reaches
from worker import reach
from worker.dialing import Dial
from worker.reach import ReachWatch, meet

pytestmark = pytest.mark.integration


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_at_which_nobody_listens(host):
    met = asyncio.run(meet(Dial("gw-1", f"tcp://{host}:{closed_port()}")))
    assert met.met == "ECONNREFUSED"
    assert "errno" in met.line


def test_a_port_that_takes_connections_and_a_name_that_nobody_has():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert asyncio.run(meet(Dial("gw-1", f"tcp://127.0.0.1:{port}"))).met == OPEN
    assert asyncio.run(meet(Dial("gw-1", "tcp://nobody.invalid:1"))).met == UNKNOWN_NAME


def test_it_is_said_once_until_something_else_is_met_or_the_gateway_was_there(caplog, monkeypatch):
    monkeypatch.setattr(reach, "AGAIN_S", 0.0)

    async def watched() -> None:
        watch = ReachWatch(Dial("gw-1", f"tcp://127.0.0.1:{closed_port()}"), after_s=0.1)
        for connected in (False, True, False):
            for _ in range(20):
                watch.look(connected=connected, now=asyncio.get_running_loop().time())
                await asyncio.sleep(0.02)
        watch.close()

    asyncio.run(watched())
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert last_reaches(messages)["gw-1"].met == "ECONNREFUSED"


def test_a_gateway_of_this_machine_is_not_asked(caplog):
    async def watched() -> None:
        watch = ReachWatch(Dial("gw-1", "ipc:///nowhere"), after_s=0.0)
        for _ in range(3):
            watch.look(connected=False, now=asyncio.get_running_loop().time())
            await asyncio.sleep(0.01)
        watch.close()

    asyncio.run(watched())
    assert caplog.records == []

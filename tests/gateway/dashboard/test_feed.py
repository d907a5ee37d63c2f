"""The feed: whom it tells, until when, and how often it looks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message

from gateway.access import AdminKey
from gateway.dashboard import feed
from gateway.dashboard.feed import Feed
from gateway.lives import Lives
from protocol.errors import ClusterError, ErrorCode

HERE, THERE = "127.0.0.1", "192.0.2.7"


class Dispatching:
    def __init__(self) -> None:
        self.lives = Lives()


class Looked:
    """What the feed sees of a cluster; counts how often."""

    def __init__(self) -> None:
        self.stopping = False
        self.looks = 0
        self.dispatcher = Dispatching()

    def state(self) -> dict[str, Any]:
        self.looks += 1
        return {"gateways": [], "workers": [{"id": "w-1"}], "queues": []}


class Viewer:
    """One client of the feed."""

    def __init__(self, peer: str = HERE, key: str = "", method: str = "GET") -> None:
        headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
        self.scope = {"type": "http", "method": method, "headers": headers, "client": (peer, 1)}
        self.left = asyncio.Event()
        self.sent: asyncio.Queue[Message] = asyncio.Queue()

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def event(self) -> Any:
        message = await self.sent.get()
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            message = await self.sent.get()
        return json.loads(message["body"].removeprefix(b"data: "))

    def begin(self, endpoint: Feed) -> asyncio.Task[None]:
        return asyncio.create_task(endpoint(self.scope, self.receive, self.sent.put))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "PERIOD_S", 0.01)


def make(cluster: Looked, key: str = "") -> Feed:
    admin = AdminKey()
    if key:
        admin.take(key)
    return Feed(cluster, admin)  # type: ignore[arg-type]


def test_a_viewer_is_told_again_and_again_until_it_leaves():
    async def scenario() -> None:
        cluster, viewer = Looked(), Viewer()
        task = viewer.begin(make(cluster))
        for _ in range(3):
            assert (await viewer.event())["workers"] == [{"id": "w-1"}]
        viewer.left.set()
        await task
        assert cluster.looks >= 2

    asyncio.run(scenario())


def test_nobody_looks_when_nobody_watches_and_one_look_is_for_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feed, "PERIOD_S", 3600.0)

    async def scenario() -> None:
        cluster, viewers = Looked(), [Viewer(), Viewer()]
        endpoint = make(cluster)
        assert cluster.looks == 0
        tasks = [viewer.begin(endpoint) for viewer in viewers]
        assert await viewers[0].event() == await viewers[1].event()
        assert cluster.looks == 1
        for viewer in viewers:
            viewer.left.set()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_a_gateway_that_stops_says_so_and_ends_the_feed():
    async def scenario() -> None:
        cluster = Looked()
        viewer = Viewer()
        task = viewer.begin(make(cluster))
        await viewer.event()
        cluster.stopping = True
        await task
        last = None
        while not viewer.sent.empty():
            last = viewer.sent.get_nowait()
        assert last is not None
        assert not last["more_body"]

    asyncio.run(scenario())


def test_a_look_at_the_head_ends():
    async def scenario() -> None:
        await Viewer(method="HEAD").begin(make(Looked()))

    asyncio.run(asyncio.wait_for(scenario(), 10))


@pytest.mark.parametrize(
    ("in_force", "peer", "given", "refused"),
    [
        ("", HERE, "", None),
        ("", THERE, "", ErrorCode.FORBIDDEN),
        ("k", HERE, "", ErrorCode.UNAUTHENTICATED),
        ("k", HERE, "x", ErrorCode.FORBIDDEN),
        ("k", HERE, "k", None),
        ("k", THERE, "k", None),
    ],
)
def test_it_takes_the_key_where_one_is_set(in_force: str, peer: str, given: str, refused: ErrorCode | None):
    async def scenario() -> ErrorCode | None:
        viewer = Viewer(peer, given)
        task = viewer.begin(make(Looked(), in_force))
        viewer.left.set()
        try:
            await task
        except ClusterError as error:
            assert viewer.sent.empty()
            return error.code
        return None

    assert asyncio.run(scenario()) == refused


def test_a_viewer_whose_key_was_replaced_is_told_nothing_more():
    async def scenario() -> None:
        admin = AdminKey()
        admin.take("old")
        endpoint = Feed(Looked(), admin)  # type: ignore[arg-type]
        viewer = Viewer(key="old")
        task = viewer.begin(endpoint)
        await viewer.event()
        admin.take("new")
        while not viewer.sent.empty():
            viewer.sent.get_nowait()
        await asyncio.wait_for(task, 10)
        assert await viewer.sent.get() == {"type": "http.response.body", "body": b""}
        assert viewer.sent.empty()
        with pytest.raises(ClusterError, match="not the admin key"):
            await Viewer(key="old").begin(endpoint)

    asyncio.run(scenario())


def test_more_viewers_than_may_be_are_told_so_and_leaving_makes_room():
    async def scenario() -> None:
        endpoint = make(Looked())
        viewers = [Viewer() for _ in range(feed._MOST_VIEWERS)]
        tasks = [viewer.begin(endpoint) for viewer in viewers]
        for viewer in viewers:
            await viewer.event()
        with pytest.raises(ClusterError, match="close one"):
            await Viewer().begin(endpoint)
        for viewer in viewers:
            viewer.left.set()
        await asyncio.gather(*tasks)
        late = Viewer()
        task = late.begin(endpoint)
        await late.event()
        late.left.set()
        await task

    asyncio.run(scenario())

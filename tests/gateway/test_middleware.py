"""Ids and paths of requests, and the limits on their bodies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.access import Access, AdminKey
from gateway.body import Intake, check_headers, read_body
from gateway.middleware import Entrance, Reply, plain_path, request_id
from protocol.config import LimitsConfig
from protocol.errors import ClusterError

LIMITS = LimitsConfig(max_body_bytes=10)


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("/", "/"),
        ("/v1", "/"),
        ("/v1/", "/"),
        ("/v1/models", "/models"),
        ("//v1///models//", "/models"),
        ("/models/", "/models"),
        ("/v1/models/org/m", "/models/org/m"),
        ("/v1x/models", "/v1x/models"),
        ("/v1/v1/messages", "/messages"),
    ],
)
def test_a_path_has_one_spelling(path: str, plain: str):
    assert plain_path(path) == plain


def test_a_clients_id_is_kept_where_it_is_harmless():
    assert request_id([(b"x-request-id", b"a.B-c_1")]) == "a.B-c_1"
    assert request_id([(b"x-client-request-id", b"mine")]) == "mine"
    for bad in (b"", b"a b", b"a\nb", b"x" * 129, b"\xff"):
        made = request_id([(b"x-request-id", bad)])
        assert made.startswith("req-")
        assert made != request_id([])


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([], ""),
        ([(b"content-type", b"application/json; charset=utf-8")], ""),
        ([(b"content-type", b"application/vnd.api+json")], ""),
        ([(b"content-type", b"application/x-www-form-urlencoded")], "unsupported_media_type"),
        ([(b"content-type", b"multipart/form-data; boundary=x")], "unsupported_media_type"),
        ([(b"content-encoding", b"GZIP")], ""),
        ([(b"content-encoding", b"br")], "unsupported_media_type"),
        ([(b"content-encoding", b"gzip, gzip")], "unsupported_media_type"),
        ([(b"content-encoding", b"identity")], ""),
        ([(b"content-length", b"10")], ""),
        ([(b"content-length", b"11")], "request_too_large"),
    ],
)
def test_headers_are_checked_before_the_body_is_read(headers: list[tuple[bytes, bytes]], code: str):
    try:
        check_headers(headers, LIMITS)
        found = ""
    except ClusterError as error:
        found = str(error.code)
    assert found == code


def body_of(*messages: dict[str, Any]):
    left = list(messages)

    async def receive() -> dict[str, Any]:
        return left.pop(0)

    return receive


def _count(size: int) -> None:
    """Any number of bytes is fine."""


def part(body: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_in_parts_is_joined():
    assert asyncio.run(read_body(body_of(part(b"ab", True), part(b"c", False)), LIMITS, _count)) == b"abc"


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([part(b"x" * 6, True), part(b"x" * 6, True)], "request_too_large"),
        ([part(b"x", True), {"type": "http.disconnect"}], "client_closed_request"),
    ],
)
def test_a_body_that_cannot_be_read(messages: list[dict[str, Any]], code: str):
    with pytest.raises(ClusterError) as caught:
        asyncio.run(read_body(body_of(*messages), LIMITS, _count))
    assert caught.value.code == code


def test_a_body_that_does_not_come_is_a_timeout():
    async def scenario() -> None:
        await read_body(asyncio.Event().wait, LimitsConfig(body_timeout_s=0.01), _count)  # type: ignore[arg-type]

    with pytest.raises(ClusterError) as caught:
        asyncio.run(scenario())
    assert caught.value.code == "request_timeout"


def test_bodies_together_are_bounded_and_what_is_done_frees_its_share():
    limits = LimitsConfig(max_body_bytes=6)

    async def scenario() -> list[str]:
        intake = Intake(limits, max_held_bytes=8)
        slow: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        first = asyncio.create_task(intake.take([], slow.get, bytes.upper))
        slow.put_nowait(part(b"abcde", True))
        await asyncio.sleep(0)
        found = []
        for _ in range(2):
            try:
                found.append(str(await intake.take([], body_of(part(b"xyzw", False)), bytes.upper)))
            except ClusterError as error:
                found.append(str(error.code))
            slow.put_nowait(part(b"", False))
            assert await first == (b"ABCDE", 5)
        return found

    assert asyncio.run(scenario()) == ["overloaded", "(b'XYZW', 4)"]


def _enter(app, *, has_room: bool = True, path: str = "/v1/x", method: str = "GET") -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def scenario() -> None:
        scope = {"type": "http", "method": method, "path": path, "headers": [], "state": {"line": None}}
        await Entrance(app, lambda: has_room, Access(AdminKey()))(scope, body_of(part(b"", False)), send)

    asyncio.run(scenario())
    return sent


def test_a_mistake_of_ours_is_a_500_in_words_and_not_a_traceback():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise KeyError("secret")

    start, body = _enter(app)
    assert start["status"] == 500
    assert b"internal_error" in body["body"]
    assert b"secret" not in body["body"]
    assert dict(start["headers"])[b"x-request-id"] == dict(start["headers"])[b"request-id"]


def test_a_mistake_after_the_status_adds_nothing():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        reply: Reply = scope["state"]["reply"]
        await reply.send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError("late")

    assert [message["type"] for message in _enter(app)] == ["http.response.start"]


async def _never(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("not to be reached")


def test_options_is_answered_without_a_handler():
    start, _body = _enter(_never, method="OPTIONS")
    assert start["status"] == 204
    assert dict(start["headers"])[b"access-control-allow-origin"] == b"*"


def test_too_many_connections_are_refused_but_health_is_told():
    start, _body = _enter(_never, has_room=False)
    assert start["status"] == 429
    assert dict(start["headers"])[b"connection"] == b"close"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await scope["state"]["reply"].whole(200, [], b"")

    assert _enter(app, has_room=False, path="/health/live")[0]["status"] == 200


@pytest.mark.parametrize("path", ["/admin/state", "/admin/feed", "/dashboard", "/metrics"])
def test_the_operators_pages_are_not_for_other_sites(path: str):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await scope["state"]["reply"].whole(200, [], b"")

    assert b"access-control-allow-origin" not in dict(_enter(app, path=path)[0]["headers"])

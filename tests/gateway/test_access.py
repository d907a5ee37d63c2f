"""Who asks: keys in headers, the paths that ask for none, and what a gateway does without any."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from gateway.access import ANYBODY, OPERATOR, Access, AdminKey, terms
from gateway.flight import Terms
from protocol.api_keys import ApiKey, KeyFile, new_secret
from protocol.errors import ClusterError, ErrorCode

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY, SECRET = new_secret()
ALICE = ApiKey(name="alice", secrets=(SECRET,), created=NOW)
ADMIN = "a" * 43
HERE, THERE = "127.0.0.1", "10.0.0.7"


def access(metrics="local", *, keyless=True, file: KeyFile | None = KeyFile(keys=(ALICE,))) -> Access:  # noqa: B008
    admin = AdminKey()
    admin.take(ADMIN)
    made = Access(admin, metrics, keyless=keyless)
    made.take(file)
    return made


def caller(found: Access, *headers: tuple[bytes, str], path: str = "/chat/completions", peer: str = HERE):
    return found.caller(path, [(name, value.encode()) for name, value in headers], peer, NOW)


def refused(found: Access, *headers: tuple[bytes, str], **where: str) -> ClusterError:
    with pytest.raises(ClusterError) as raised:
        caller(found, *headers, **where)
    assert raised.value.code is ErrorCode.UNAUTHENTICATED
    return raised.value


BEARER = (b"authorization", f"Bearer {KEY}")
API_KEY = (b"x-api-key", KEY)
DUMMY = (b"x-api-key", "dummy")


@pytest.mark.parametrize(
    "headers",
    [
        (BEARER,),
        (API_KEY,),
        ((b"authorization", f"bearer  {KEY} "),),
        (BEARER, DUMMY),
        ((b"authorization", "Bearer dummy"), API_KEY),
        ((b"authorization", "Basic dummy"), API_KEY),
    ],
)
def test_a_key_is_found_in_either_header(headers):
    assert caller(access(), *headers) == ALICE


def test_without_a_good_key_all_are_told_the_same():
    found = access()
    words = {
        refused(found).message,
        refused(found, DUMMY).message,
        refused(found, (b"authorization", f"Bearer {KEY[:-1]}")).message,
        refused(found, (b"authorization", f"Basic {KEY}")).message,
        refused(found, (b"authorization", "Bearer ")).message,
        refused(access(file=KeyFile()), BEARER).message,
        refused(access(keyless=False, file=None), BEARER).message,
    }
    assert len(words) == 1
    assert KEY not in words.pop()


def test_where_there_are_no_keys_whatever_is_sent_is_passed_over():
    found = access(file=None)
    assert [caller(found), caller(found, DUMMY), caller(found, BEARER)] == [ANYBODY] * 3


def test_what_is_taken_counts_at_once():
    found = access(file=None)
    found.take(KeyFile(keys=(ALICE,)))
    refused(found)
    found.take(KeyFile())
    refused(found, BEARER)


@pytest.mark.parametrize(
    "path",
    ["/", "/health", "/health/ready", "/version", "/admin/state", "/api/version", "/dashboard/main.js"],
)
def test_what_tells_nothing_asks_for_no_key(path):
    assert caller(access(keyless=False), path=path) == ANYBODY


@pytest.mark.parametrize("path", ["/models", "/tokenize", "/api/tags", "/messages", "/nothing", "/healthy"])
def test_all_else_asks_for_one(path):
    refused(access(), path=path)


def test_the_admin_key_is_known_where_none_is_needed_too():
    assert caller(access(file=None), (b"x-api-key", ADMIN), path="/admin/state", peer=THERE) == OPERATOR
    assert caller(access(file=None), (b"x-api-key", KEY), path="/admin/state", peer=THERE) == ANYBODY


def test_the_admin_key_may_ask_too():
    assert caller(access(), (b"x-api-key", ADMIN)) == OPERATOR
    assert OPERATOR.allows(["any"])
    without = Access(AdminKey(), keyless=False)
    refused(without, (b"x-api-key", ""))


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("192.0.2.7", True),
        ("LocalHost:8000", True),
        ("fleet.example.", True),
        ("Proxy.example:443", True),
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("[evil.example]:80", False),
    ],
)
@pytest.mark.parametrize("path", ["/admin/state", "/admin/feed", "/admin/requests/r-1", "/metrics"])
def test_a_page_that_gives_its_own_name_this_machines_address_is_told_nothing(
    path: str, host: str, known: bool
):
    found = Access(AdminKey(), names=("fleet.example", "proxy.Example"))
    found.take(KeyFile(keys=(ALICE,)))
    if known:
        assert caller(found, (b"host", host), path=path) == ANYBODY
        return
    with pytest.raises(ClusterError, match=r"`hosts` in \[auth\]") as raised:
        caller(found, (b"host", host), path=path)
    assert raised.value.code is ErrorCode.FORBIDDEN


def test_by_another_name_there_is_all_that_takes_a_key_or_none():
    evil = (b"host", "evil.example")
    assert caller(access(), evil, (b"x-api-key", ADMIN), path="/admin/state") == OPERATOR
    assert caller(access(), evil, BEARER) == ALICE
    assert caller(access(file=None), evil) == ANYBODY
    assert caller(access(file=None), evil, path="/metrics") == ANYBODY
    assert caller(access("open"), evil, path="/metrics") == ANYBODY
    assert caller(access(), evil, path="/dashboard") == ANYBODY


@pytest.mark.parametrize(
    ("metrics", "peer", "needed"),
    [
        ("local", HERE, False),
        ("local", THERE, True),
        ("key", HERE, True),
        ("open", THERE, False),
    ],
)
def test_metrics_are_told_as_configured(metrics, peer, needed):
    found = access(metrics)
    if needed:
        refused(found, path="/metrics", peer=peer)
    else:
        assert caller(found, path="/metrics", peer=peer) == ANYBODY
    assert caller(found, BEARER, path="/metrics", peer=peer).name in ("", "alice")


def test_an_expired_key_is_none():
    refused(access(file=KeyFile(keys=(replace(ALICE, expires=NOW),))), BEARER)


def test_only_the_operator_chooses_a_worker():
    wish = [(b"x-worker-id", b"w-1"), (b"x-wait-for-model", b"true")]
    assert terms(wish, OPERATOR) == Terms(waits=True, only="w-1")
    assert terms([], ANYBODY) == Terms()
    with pytest.raises(ClusterError) as raised:
        terms(wish, ALICE)
    assert raised.value.code is ErrorCode.FORBIDDEN

"""Workers that come over tcp: each only as itself, and only while it is allowed."""

from __future__ import annotations

import pytest

from protocol.messages import Abort, Heartbeat, Welcome, WhoAreYou
from protocol.wire_keys import AllowList
from tests.gateway.fleet import Fleet, hello


@pytest.fixture
def fleet():
    fleet = Fleet()
    fleet.membership.allow(AllowList({"a": "KA", "b": "KB"}), 0.0)
    return fleet


def come(fleet, name, key, connection=None, **fields):
    connection = connection or name.encode()
    fleet.keys[connection] = key
    fleet.receive(connection, hello(name, **fields))


def beat(fleet, connection, key):
    fleet.keys[connection] = key
    fleet.receive(connection, Heartbeat(state="ready"))


def refusal(fleet, connection):
    return fleet.wire.to(connection, Welcome)[-1].refused


def test_a_worker_comes_with_its_key_and_one_of_this_machine_without(fleet):
    come(fleet, "a", "KA")
    fleet.join("c")
    assert [view.worker_id for view in fleet.registry.views()] == ["a", "c"]


def test_a_valid_key_does_not_make_another_worker(fleet):
    come(fleet, "a", "KA", incarnation="1")
    come(fleet, "a", "KB", connection=b"x", incarnation="2")
    assert "with the key of 'b'" in refusal(fleet, b"x")
    known = fleet.registry.named("a")
    assert known is not None
    assert (known.connection, known.incarnation) == (b"a", "1")


def test_a_peer_that_was_refused_is_not_heard(fleet):
    come(fleet, "a", "KB", connection=b"x")
    beat(fleet, b"x", "KB")
    assert fleet.registry.at(b"x") is None
    assert fleet.wire.to(b"x", WhoAreYou) == []


def test_whoever_speaks_with_another_key_on_a_workers_connection_is_not_that_worker(fleet):
    come(fleet, "a", "KA")
    beat(fleet, b"a", "KB")
    assert fleet.registry.at(b"a") is None
    fleet.join("c")
    come(fleet, "b", "KB", connection=b"c")
    assert "on the connection of 'c'" in refusal(fleet, b"c")


def test_a_worker_that_is_revoked_is_left_at_once_and_its_requests_go_elsewhere(fleet):
    come(fleet, "a", "KA")
    outlet = fleet.ask("r")
    fleet.accept(b"a")
    come(fleet, "b", "KB")
    fleet.membership.allow(AllowList({"b": "KB"}), fleet.now)
    assert "'a' is not allowed (any more)" in refusal(fleet, b"a")
    assert len(fleet.wire.to(b"a", Abort)) == 1
    fleet.now += 1.0
    fleet.membership.tick(fleet.now)
    assert fleet.at(b"b") == ["r"]
    assert outlet.error is None
    beat(fleet, b"a", "KA")
    assert fleet.wire.to(b"a", WhoAreYou) == []


def test_a_worker_that_is_allowed_again_is_asked_who_it_is(fleet):
    come(fleet, "a", "KA")
    fleet.membership.allow(AllowList(), fleet.now)
    beat(fleet, b"a", "KA")
    fleet.membership.allow(AllowList({"a": "KA"}), fleet.now)
    beat(fleet, b"a", "KA")
    assert len(fleet.wire.to(b"a", WhoAreYou)) == 1
    come(fleet, "a", "KA")
    assert refusal(fleet, b"a") == ""


def test_a_list_that_changes_for_others_disturbs_nobody(fleet):
    come(fleet, "a", "KA")
    fleet.join("c")
    fleet.membership.allow(AllowList({"a": "KA"}), fleet.now)
    assert all(view.connection for view in fleet.registry.views())

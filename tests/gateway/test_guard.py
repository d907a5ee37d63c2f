import pytest

from gateway.guard import Guard
from protocol.wire_keys import AllowList


@pytest.fixture
def guard():
    guard = Guard()
    guard.allowed = AllowList({"w-1": "K1", "w-2": "K2", "w-3": "K2"})
    return guard


def test_a_worker_may_come_with_its_own_key_and_machines_may_share_one(guard):
    assert not guard.refusal("K1", "w-1")
    assert not guard.refusal("K2", "w-2")
    assert not guard.refusal("K2", "w-3")
    assert guard.knows("K2")


def test_a_peer_of_this_machine_needs_no_key(guard):
    assert guard.knows("")
    assert not guard.refusal("", "w-1")


@pytest.mark.parametrize(
    ("key", "worker", "words"),
    [
        ("K1", "w-2", "with the key of 'w-1'"),
        ("K2", "w-9", "with the key of 'w-2', 'w-3'"),
        ("K9", "w-1", "another key than the one that is allowed"),
        ("K9", "w-9", "is not allowed"),
    ],
)
def test_a_refusal_names_cause_and_cure(guard, key, worker, words):
    refusal = guard.refusal(key, worker)
    assert words in refusal
    assert f"clusterctl worker-key allow {worker} '{key}'" in refusal


def test_an_unknown_key_is_named_once_a_minute_and_the_memory_of_them_is_bounded(guard):
    assert guard.should_name("K9", 0.0)
    assert not guard.should_name("K9", 59.0)
    assert guard.should_name("K9", 60.0)
    for number in range(10_000):
        assert guard.should_name(f"X{number}", 61.0)
    assert len(guard._named_at) <= 256

"""What is kept of responses, and what makes room."""

from __future__ import annotations

from gateway.dialects.response_store import Kept, ResponseStore
from protocol.values import ChatMessage


def kept(size: int) -> Kept:
    return Kept((ChatMessage(role="user", content="x" * size),), b"")


def test_what_was_used_longest_ago_makes_room():
    store = ResponseStore(max_bytes=10)
    for name in ("a", "b"):
        store.keep(name, kept(4))
    assert store.get("a") is not None
    store.keep("c", kept(4))
    assert [name for name in "abc" if store.get(name)] == ["a", "c"]


def test_one_that_is_too_large_by_itself_is_not_kept():
    store = ResponseStore(max_bytes=10)
    store.keep("a", kept(11))
    assert store.get("a") is None
    store.keep("b", kept(10))
    assert store.get("b") is not None


def test_the_number_is_bounded_and_what_is_forgotten_frees_its_bytes():
    store = ResponseStore(max_bytes=10, max_responses=2)
    for name in ("a", "b", "c"):
        store.keep(name, kept(1))
    assert store.get("a") is None
    assert store.forget("b")
    assert not store.forget("b")
    store.keep("d", kept(9))
    assert store.get("c") is not None
    store.keep("d", kept(8))  # in place of the other
    assert store.get("c") is not None

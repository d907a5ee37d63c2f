"""What a turn leaves to be done, when all its messages are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.turn import Turn


@dataclass
class Due:
    push_now: Callable[[], None]


def test_what_is_due_is_done_in_order_and_once():
    done: list[str] = []
    turn = Turn()
    turn.due.append(Due(lambda: done.append("a")))
    turn.due.append(Due(lambda: done.append("b")))
    turn.end()
    turn.end()
    assert done == ["a", "b"]


def test_what_becomes_due_meanwhile_is_done_in_the_next_turn():
    done: list[str] = []
    turn = Turn()
    turn.due.append(Due(lambda: turn.due.append(Due(lambda: done.append("later")))))
    turn.end()
    assert done == []
    turn.end()
    assert done == ["later"]


def test_all_is_made_before_any_is_written_and_is_written_once():
    done: list[str] = []
    turn = Turn()

    def write(piece: bytes) -> None:
        done.append(f"{piece.decode()} is written")

    def make(name: str) -> None:
        done.append(f"{name} is made")
        turn.writes.append((write, name.encode()))

    turn.due.append(Due(lambda: make("a")))
    turn.due.append(Due(lambda: make("b")))
    turn.end()
    assert done == ["a is made", "b is made", "a is written", "b is written"]
    turn.end()
    assert len(done) == 4

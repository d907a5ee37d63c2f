"""One callback of the loop for all that a turn leaves to be done."""

from __future__ import annotations

from collections.abc import Callable

from gateway.turn import Turn


def test_the_actions_of_a_turn_run_in_order_by_one_callback_and_once():
    planned: list[Callable[[], None]] = []
    done: list[str] = []
    turn = Turn(planned.append)
    turn.finally_do(lambda: done.append("a"))
    turn.finally_do(lambda: done.append("b"))
    assert (len(planned), done) == (1, [])
    planned.pop()()
    assert (planned, done) == ([], ["a", "b"])


def test_what_an_action_plans_is_done_in_the_next_turn():
    planned: list[Callable[[], None]] = []
    done: list[str] = []
    turn = Turn(planned.append)
    turn.finally_do(lambda: turn.finally_do(lambda: done.append("later")))
    planned.pop()()
    assert (len(planned), done) == (1, [])
    planned.pop()()
    assert done == ["later"]


def test_all_is_made_before_any_is_written_and_is_written_once():
    planned: list[Callable[[], None]] = []
    done: list[str] = []
    turn = Turn(planned.append)

    def write(piece: bytes) -> None:
        done.append(f"{piece.decode()} is written")

    def make(name: str) -> None:
        done.append(f"{name} is made")
        turn.write(write, name.encode())

    turn.finally_do(lambda: make("a"))
    turn.finally_do(lambda: make("b"))
    planned.pop()()
    assert done == ["a is made", "b is made", "a is written", "b is written"]
    turn.finally_do(lambda: None)
    planned.pop()()
    assert len(done) == 4

from protocol.messages import Accepted, Delta, Deltas, Finished, Started
from protocol.values import Load, Usage
from worker.outbox import TurnOutbox


def finished(name):
    return Finished(request_id=name, attempt=0, finish_reason="stop", usage=Usage(), load=Load())


def test_the_deltas_of_a_turn_are_one_message_between_begin_and_end():
    outbox = TurnOutbox()
    accepted = Accepted(request_id="c", attempt=0, load=Load())
    started = Started(request_id="c", attempt=0)
    one, two = Delta("a", 0, "x"), Delta("c", 0, "y")
    for message in (one, finished("a"), accepted, started, two):
        outbox.add(message)
    assert outbox.take() == [accepted, started, Deltas(deltas=(one, two)), finished("a")]


def test_what_was_taken_is_gone():
    outbox = TurnOutbox()
    outbox.add(finished("a"))
    assert outbox
    outbox.take()
    assert not outbox
    assert outbox.take() == []

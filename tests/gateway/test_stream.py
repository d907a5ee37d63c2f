"""The buffer between dispatcher and endpoint. The loop is used to wait, the clock is a number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.pieces import Piece
from gateway.spread import Spread
from gateway.stream import Group, Stream
from gateway.turn import Turn
from protocol.config import LimitsConfig
from protocol.messages import Delta, Finished, Started, TokenLogprob, ToolCallDelta
from protocol.values import Load, Usage
from tests.gateway.test_routing import view

NOW = 0.0
LIMITS = LimitsConfig(keepalive_s=10, stream_buffer_bytes=100, stream_stall_s=30)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def delta(text: str, **fields: Any) -> Delta:
    return Delta(request_id="r", attempt=0, text=text, **fields)


def finished() -> Finished:
    return Finished(request_id="r", attempt=0, finish_reason="stop", usage=Usage(), load=Load())


def group_of() -> Group:
    return Group(Turn())


def stream_of(clock: Clock, *, live: bool, group: Group | None = None) -> Stream:
    return Stream(LIMITS, clock, Spread((1.0,)), live=live, group=group or group_of())


async def _woken(group: Group, by) -> bool:
    """Whether `by` wakes who waits."""
    waiting = asyncio.ensure_future(group.changed())
    await asyncio.sleep(0)
    by()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    woken = waiting.done()
    waiting.cancel()
    return woken


def test_a_prompt_that_is_given_back_comes_once_and_first():
    """Also where the first worker was lost, and the second one gives it back again."""
    stream = stream_of(Clock(), live=True)
    for attempt in (0, 1):
        stream.delta(delta("a"), NOW)
        message = Started(request_id="r", attempt=attempt, prompt_text="p")
        stream.started(view("w"), message)
        pieces = [Piece(prompt_text="p")] if attempt == 0 else []
        assert stream.pieces() == [*pieces, Piece(text="a")]


def test_what_comes_while_nobody_reads_is_joined():
    stream = stream_of(Clock(), live=True)
    for piece in ("a", "b", "c"):
        stream.delta(delta(piece), NOW)
    stream.delta(delta("", reasoning="hm"), NOW)
    assert stream.pieces() == [Piece(text="abc"), Piece(reasoning="hm")]
    assert stream.pieces() == []


def test_one_text_takes_the_short_way_once():
    stream = stream_of(Clock(), live=True)
    stream.delta(delta("a"), NOW)
    assert stream.plain() == delta("a")
    assert stream.plain() is None
    assert stream.pieces() == []


@pytest.mark.parametrize(
    "deltas",
    [
        (),
        (delta(""),),
        (delta("a"), delta("b")),
        (delta("a", reasoning="hm"),),
        (delta("a", tool_calls=(ToolCallDelta(0, "f"),)),),
        (delta("a", logprobs=(TokenLogprob(1, "a", -1.0),)),),
    ],
)
def test_what_is_more_than_one_text_is_left_to_the_pieces(deltas: tuple[Delta, ...]):
    stream, other = (stream_of(Clock(), live=True) for _ in range(2))
    for each in deltas:
        stream.delta(each, NOW)
        other.delta(each, NOW)
    assert stream.plain() is None
    assert stream.pieces() == other.pieces()


def test_the_first_text_waits_for_the_prompt_before_it():
    stream = stream_of(Clock(), live=True)
    stream.started(view("w"), Started(request_id="r", attempt=0, prompt_text="p"))
    stream.delta(delta("a"), NOW)
    assert stream.plain() is None
    assert stream.pieces() == [Piece(prompt_text="p"), Piece(text="a")]
    stream.delta(delta("b"), NOW)
    assert stream.plain() == delta("b")


def test_text_wakes_a_live_reader_and_not_one_who_waits_for_the_whole():
    async def scenario() -> None:
        for live in (True, False):
            group = group_of()
            stream = stream_of(Clock(), live=live, group=group)
            assert await _woken(group, lambda s=stream: s.delta(delta("a"), NOW)) == live
            assert not await _woken(group, lambda s=stream: s.delta(delta(""), NOW))
            assert await _woken(group, lambda s=stream: s.finished(view("a"), finished()))
            assert group.is_over

    asyncio.run(scenario())


def test_news_that_come_while_nobody_waits_are_not_slept_through():
    """As during a write to a client that reads slowly."""

    async def scenario() -> None:
        group = group_of()
        streams = [stream_of(Clock(), live=True, group=group) for _ in range(2)]
        streams[0].finished(view("a"), finished())
        async with asyncio.timeout(5):
            await group.changed()
        assert not group.is_over
        assert await _woken(group, lambda: streams[1].finished(view("a"), finished()))
        assert group.is_over

    asyncio.run(scenario())


def _pushed(push: Callable[[], bool], *news: Callable[[Stream], None]) -> tuple[bool, Stream]:
    """Whether who waits beside `push` was woken by the news of one turn. Raises what the wait raises."""

    async def scenario() -> tuple[bool, Stream]:
        group = group_of()
        stream = stream_of(Clock(), live=True, group=group)
        waiting = asyncio.ensure_future(group.changed(push))
        await asyncio.sleep(0)
        for one in news:
            one(stream)
        group.turn.end()
        await asyncio.sleep(0)
        if waiting.done():
            waiting.result()
            return True, stream
        waiting.cancel()
        return False, stream

    return asyncio.run(scenario())


def _says(text: str) -> Callable[[Stream], None]:
    return lambda stream: stream.delta(delta(text), NOW)


def test_what_came_in_one_turn_is_pushed_together_and_wakes_nobody():
    pushes: list[int] = []

    def push() -> bool:
        pushes.append(1)
        return True

    woken, stream = _pushed(push, _says("a"), _says("b"))
    assert not woken
    assert pushes == [1]
    assert stream.pieces() == [Piece(text="ab")]


def test_what_cannot_be_pushed_wakes_who_waits():
    woken, stream = _pushed(lambda: False, _says("a"))
    assert woken
    assert stream.pieces() == [Piece(text="a")]


def test_an_end_in_the_same_turn_is_for_who_waits_with_all_that_came_before():
    def push() -> bool:
        raise AssertionError("not to be pushed")

    woken, stream = _pushed(push, _says("a"), lambda stream: stream.finished(view("a"), finished()))
    assert woken
    assert stream.pieces() == [Piece(text="a")]


def test_a_push_that_fails_fails_who_waits():
    def push() -> bool:
        raise KeyError("a mistake")

    with pytest.raises(KeyError, match="a mistake"):
        _pushed(push, _says("a"))


def test_what_comes_while_something_is_being_written_is_news_and_not_pushed():
    async def scenario() -> None:
        group = group_of()
        stream_of(Clock(), live=True, group=group).delta(delta("a"), NOW)
        async with asyncio.timeout(5):
            await group.changed(lambda: True)
        assert not group.turn.due

    asyncio.run(scenario())


def test_silence_asks_for_a_sign_of_life():
    async def scenario() -> list[bool]:
        clock, group = Clock(), group_of()
        stream = stream_of(clock, live=True, group=group)
        seen = []
        for now in (9.9, 10.0):
            stream.tick(now)
            seen.append(group.silent)
        group.writing(lambda: None)
        group.written()
        for now in (10.1, 20.0, 20.1):
            stream.tick(now)
            seen.append(group.silent)
        return seen

    assert asyncio.run(scenario()) == [False, True, False, False, True]


def test_fc_84_tokens_that_a_parser_holds_back_do_not_hide_the_silence():
    group = group_of()
    stream = stream_of(Clock(), live=True, group=group)
    stream.delta(Delta(request_id="r", attempt=0, text="", token_ids=(1, 2, 3), completion_tokens=3), NOW)
    stream.tick(10.0)
    assert group.silent


def test_a_reader_that_lets_too_much_pile_up_is_cut_off_once():
    cut: list[float] = []
    clock = Clock()
    group = group_of()
    stream = stream_of(clock, live=True, group=group)
    group.writing(lambda: cut.append(clock.now))
    stream.delta(delta("x" * 100), NOW)
    for clock.now in (0.1, 0.2, 0.3):
        stream.tick(clock.now)
        stream.delta(delta("x"), NOW)
    assert stream.overrun
    assert cut == [0.2]


def test_what_piles_up_while_nothing_is_being_written_cuts_nobody_off():
    stream = stream_of(Clock(), live=True)
    stream.delta(delta("x" * 1000), NOW)
    stream.tick(0.1)
    assert not stream.overrun


def test_times_are_measured_from_the_beginning():
    clock = Clock()
    stream = stream_of(clock, live=True)
    assert stream.seconds() == (None, 0.0)
    clock.now = 2.0
    stream.delta(delta("a"), clock.now)
    clock.now = 5.0
    stream.delta(delta("b"), clock.now)
    assert stream.seconds() == (2.0, 5.0)

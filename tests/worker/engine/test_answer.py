"""One answer: ids in, items out."""

import asyncio

import pytest

from worker.engine.answer import Answer, AnswerStream
from worker.engine.detokenizer import ByteDetokenizer, TokenTable, token_table
from worker.engine.sequence import Event

TABLE = TokenTable([bytes([value]) for value in range(256)])


def answer_of(stops=()):
    return Answer("r", ByteDetokenizer(TABLE), stops)


def tokens(answer, text, finish=None):
    data = text.encode()
    for index, token in enumerate(data):
        answer.take(Event(token=token, finish=finish if index == len(data) - 1 else None))


def items_of(answer):
    async def read():
        return [item async for item in AnswerStream(answer, lambda _answer: None)]

    return asyncio.run(read())


def test_tokens_that_pile_up_are_joined():
    answer = answer_of()
    answer.take(Event(cached_tokens=3))
    tokens(answer, "héllo", finish="length")
    (last,) = items_of(answer)
    assert (last.text, last.new_text) == ("héllo", "héllo")
    assert last.tokens == list("héllo".encode())
    assert (last.completion_tokens, last.cached_tokens, last.finish_reason) == (6, 3, "length")


@pytest.mark.parametrize(("reason", "text"), [("length", "a👩\u200d"), ("stop", "a👩\u200d\ufffd")])
def test_a_character_that_the_limit_cut_in_two_is_not_shown(reason, text):
    answer = answer_of()
    for byte in "a👩\u200d👧".encode()[:-2]:
        answer.take(Event(token=byte))
    answer.finish(reason)
    (last,) = items_of(answer)
    assert (last.text, last.completion_tokens) == (text, 10)


def test_the_first_item_tells_that_the_prompt_was_taken():
    async def case():
        answer = answer_of()
        answer.prompt_tokens = 9
        stream = AnswerStream(answer, lambda _answer: None)
        answer.take(Event(cached_tokens=4))
        first = await anext(stream)
        assert (first.tokens, first.text, first.finished) == ([], "", False)
        assert (first.prompt_tokens, first.cached_tokens) == (9, 4)
        tokens(answer, "a")
        assert (await anext(stream)).new_text == "a"

    asyncio.run(case())


def test_held_back_text_still_brings_its_tokens():
    async def case():
        answer = answer_of(["END"])
        stream = AnswerStream(answer, lambda _answer: None)
        tokens(answer, "aE")
        assert (await anext(stream)).new_text == "a"
        tokens(answer, "N")
        item = await anext(stream)
        assert (item.new_text, item.tokens, item.finished) == ("", [ord("N")], False)
        tokens(answer, "x")
        assert (await anext(stream)).new_text == "ENx"

    asyncio.run(case())


def test_a_stop_string_ends_it_and_what_follows_is_ignored():
    answer = answer_of(["END"])
    tokens(answer, "abENDxyz")
    (item,) = items_of(answer)
    assert (item.text, item.finish_reason, item.matched_stop) == ("ab", "stop", "END")
    assert item.completion_tokens == len("abEND")


def test_a_stop_token_counts_and_is_not_shown():
    answer = answer_of()
    tokens(answer, "ab", finish="stop")
    (item,) = items_of(answer)
    assert (item.text, item.completion_tokens, item.matched_stop) == ("a", 2, None)


def test_a_stop_token_that_was_asked_for_is_told():
    answer = answer_of()
    answer.take(Event(token=98, finish="stop"), frozenset({98}))
    assert items_of(answer)[-1].matched_stop == 98


def test_what_was_held_back_is_shown_at_the_end():
    answer = answer_of(["END"])
    tokens(answer, "aEN", finish="length")
    (item,) = items_of(answer)
    assert (item.text, item.finish_reason, item.matched_stop) == ("aEN", "length", None)


def test_a_failure_comes_after_what_was_there_before_it():
    async def case():
        released: list[Answer] = []
        answer = answer_of()
        stream = AnswerStream(answer, released.append)
        tokens(answer, "a")
        answer.fail(RuntimeError("broken"))
        answer.fail(RuntimeError("later"))
        tokens(answer, "b")
        assert (await anext(stream)).new_text == "a"
        with pytest.raises(RuntimeError, match="broken"):
            await anext(stream)
        assert released == [answer]
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    asyncio.run(case())


def test_a_replayed_beginning_is_not_shown_again():
    answer = answer_of(["END"])
    answer.replay(list(b"abE"))
    tokens(answer, "Nx", finish="length")
    (item,) = items_of(answer)
    assert (item.text, item.new_text, item.tokens) == ("abENx", "ENx", list(b"Nx"))
    assert item.completion_tokens == 5


def test_a_stop_string_across_the_break_ends_a_resumed_answer():
    answer = answer_of(["END"])
    answer.replay(list(b"abE"))
    tokens(answer, "NDx")
    assert (items_of(answer)[-1].text, answer.ended) == ("ab", True)


def test_a_stream_that_is_forgotten_or_closed_is_released():
    released: list[Answer] = []
    answer = answer_of()
    stream = AnswerStream(answer, released.append)
    asyncio.run(stream.aclose())
    assert released == [answer]
    del stream
    assert released == [answer, answer]


END_TABLE = {
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"<|終|>": 0, "a": 1, "Ã": 2}},
    "added_tokens": [
        {"id": 0, "content": "<|終|>", "special": True},
        {"id": 3, "content": "<|é|>", "special": True},
    ],
}
"""With end tokens that are no bytes; 9 is one beyond everything."""


@pytest.mark.parametrize("end", [0, 3, 9])
@pytest.mark.parametrize(("before", "text"), [([], ""), ([1], "a"), ([1, 2], "a\ufffd")])
def test_fc_104_an_unusual_end_token_ends_the_answer_and_is_never_shown(end, before, text):
    """Also as the first token, and in the middle of a character."""
    table = token_table(END_TABLE)
    assert table is not None
    answer = Answer("r", ByteDetokenizer(table), ())
    for token in before:
        answer.take(Event(token=token))
    answer.take(Event(token=end, finish="stop"))
    (last,) = items_of(answer)
    assert (last.text, last.finish_reason, last.completion_tokens) == (text, "stop", len(before) + 1)


def test_fc_104_an_end_token_that_is_ignored_is_not_shown_either():
    table = token_table(END_TABLE)
    assert table is not None
    answer = Answer("r", ByteDetokenizer(table), ())
    for token in (1, 0, 1, 3):
        answer.take(Event(token=token))
    answer.take(Event(token=1, finish="length"))
    (last,) = items_of(answer)
    assert (last.text, last.completion_tokens) == ("aaa", 5)

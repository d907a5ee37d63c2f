"""The cases that every engine must pass.

A test module gives a fixture `make_engine`, which returns an async context manager over a started
engine with so many slots and waiting places, and takes these cases in with
`from tests.worker.engine.contract import *`.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from worker.engine.base import BaseEngine, EngineBusy

MakeEngine = Callable[..., AbstractAsyncContextManager[BaseEngine]]

PROMPT = "Once upon a time there was a"
MESSAGES = [{"role": "user", "content": "Tell me a story."}]
LONG = 500


async def items_of(stream):
    return [item async for item in stream]


def greedy(engine, max_tokens=8, **kwargs):
    return engine.stream_generate(PROMPT, max_tokens=max_tokens, temperature=0.0, **kwargs)


def unending(engine, **kwargs):
    """A stream that goes on while a test looks at it."""
    return greedy(engine, LONG, ignore_eos=True, **kwargs)


async def first_token(stream):
    """The first item that carries a token."""
    while True:
        item = await anext(stream)
        if item.tokens:
            return item


async def comes_free(engine):
    """A new request, taken as soon as there is a place: at the latest after 20 s."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await engine.generate(PROMPT, max_tokens=1, temperature=0.0)
            except EngineBusy:
                await asyncio.sleep(0.005)


async def is_busy(engine, **kwargs):
    """Whether `EngineBusy` comes from the call, or instead of the first item."""
    try:
        stream = greedy(engine, **kwargs)
    except EngineBusy:
        return True
    try:
        await anext(stream)
    except EngineBusy:
        return True
    await stream.aclose()
    return False


def test_a_whole_answer(make_engine: MakeEngine):
    async def case():
        async with make_engine() as engine:
            answer = await engine.generate(PROMPT, max_tokens=5, temperature=0.0)
            assert answer.finished
            assert answer.finish_reason in ("stop", "length")
            assert answer.text
            assert len(answer.tokens) == answer.completion_tokens <= 5
            assert answer.prompt_tokens > 0

    asyncio.run(case())


def test_the_items_of_a_stream_add_up(make_engine: MakeEngine):
    async def case():
        async with make_engine() as engine:
            items = await items_of(greedy(engine))
            assert "".join(item.new_text for item in items) == items[-1].text
            assert [item.finished for item in items] == [False] * (len(items) - 1) + [True]
            assert {item.finish_reason for item in items[:-1]} <= {None}
            assert sum(len(item.tokens) for item in items) == items[-1].completion_tokens == 8
            counts = [item.completion_tokens for item in items]
            assert counts == sorted(counts)

    asyncio.run(case())


def test_stream_and_whole_answer_are_the_same(make_engine: MakeEngine):
    async def case():
        async with make_engine() as engine:
            whole = await engine.generate(PROMPT, max_tokens=8, temperature=0.0)
            items = await items_of(greedy(engine))
            assert whole.text == items[-1].text
            assert whole.tokens == [token for item in items for token in item.tokens]

    asyncio.run(case())


def test_chat_and_its_stream_are_the_same(make_engine: MakeEngine):
    async def case():
        async with make_engine() as engine:
            whole = await engine.chat(MESSAGES, max_tokens=6, temperature=0.0)
            items = await items_of(engine.stream_chat(MESSAGES, max_tokens=6, temperature=0.0))
            assert whole.text == items[-1].text
            assert whole.text

    asyncio.run(case())


def test_max_tokens_ends_with_length(make_engine: MakeEngine):
    async def case():
        async with make_engine() as engine:
            answer = await engine.generate(PROMPT, max_tokens=3, temperature=0.0)
            assert (answer.completion_tokens, answer.finish_reason) == (3, "length")

    asyncio.run(case())


def test_together_as_alone(make_engine: MakeEngine):
    async def case():
        async with make_engine(max_num_seqs=2) as engine:
            alone = await engine.generate(PROMPT, max_tokens=8, temperature=0.0)
            both = await asyncio.gather(items_of(greedy(engine)), items_of(greedy(engine)))
            assert [items[-1].text for items in both] == [alone.text, alone.text]

    asyncio.run(case())


def test_busy_when_all_places_are_taken(make_engine: MakeEngine):
    async def case():
        async with make_engine(max_num_seqs=1, max_waiting=0) as engine:
            running = unending(engine)
            await first_token(running)
            assert await is_busy(engine)
            with pytest.raises(EngineBusy):
                await engine.generate(PROMPT, max_tokens=1)
            with pytest.raises(EngineBusy):
                await engine.chat(MESSAGES, max_tokens=1)
            assert (await anext(running)).tokens
            await running.aclose()
            await comes_free(engine)

    asyncio.run(case())


def test_the_waiting_room_is_used_in_order(make_engine: MakeEngine):
    async def case():
        async with make_engine(max_num_seqs=1, max_waiting=1) as engine:
            running = unending(engine)
            await first_token(running)
            waiting = asyncio.create_task(items_of(greedy(engine)))
            await asyncio.sleep(0)
            assert await is_busy(engine)
            await running.aclose()
            assert (await waiting)[-1].completion_tokens == 8

    asyncio.run(case())


def test_closing_in_the_middle_frees_the_slot(make_engine: MakeEngine):
    async def case():
        async with make_engine(max_num_seqs=1, max_waiting=0) as engine:
            stream = unending(engine)
            await first_token(stream)
            await stream.aclose()
            await comes_free(engine)
            await stream.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    asyncio.run(case())


def test_closing_before_the_first_item_frees_the_slot(make_engine: MakeEngine):
    async def case():
        async with make_engine(max_num_seqs=1, max_waiting=0) as engine:
            stream = unending(engine)
            await stream.aclose()
            await comes_free(engine)

    asyncio.run(case())


def test_a_stream_that_nobody_holds_frees_the_slot(make_engine: MakeEngine):
    async def case():
        async with make_engine(max_num_seqs=1, max_waiting=0) as engine:
            stream = unending(engine)
            await first_token(stream)
            del stream
            await comes_free(engine)

    asyncio.run(case())


def test_a_cancelled_reader_that_closes_frees_the_slot(make_engine: MakeEngine):
    async def read(stream, begun):
        try:
            async for _ in stream:
                begun.set()
        finally:
            await stream.aclose()

    async def case():
        async with make_engine(max_num_seqs=1, max_waiting=0) as engine:
            begun = asyncio.Event()
            reader = asyncio.create_task(read(unending(engine), begun))
            await begun.wait()
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            await comes_free(engine)

    asyncio.run(case())


def test_abort_ends_a_running_request(make_engine: MakeEngine):
    async def case():
        async with make_engine(max_num_seqs=1, max_waiting=0) as engine:
            stream = unending(engine, request_id="r-1")
            await first_token(stream)
            assert await engine.abort_request("r-1")
            count = 0
            try:
                async for _ in stream:
                    count += 1
            except RuntimeError:
                pass
            assert count < LONG - 1
            assert not await engine.abort_request("r-1")
            await comes_free(engine)

    asyncio.run(case())


def test_aborting_an_unknown_request_is_no_error(make_engine: MakeEngine):
    async def case():
        async with make_engine() as engine:
            assert await engine.abort_request("nobody") is False

    asyncio.run(case())


def test_a_stop_string_ends_the_answer_wherever_tokens_are_cut(make_engine: MakeEngine):
    async def case():
        async with make_engine() as engine:
            text = (await engine.generate(PROMPT, max_tokens=16, temperature=0.0)).text
            stop = text[len(text) // 2 - 3 : len(text) // 2 + 4]
            answer = await engine.generate(PROMPT, max_tokens=16, temperature=0.0, stop=[stop])
            items = await items_of(greedy(engine, 16, stop=[stop]))
            assert answer.text == text[: text.index(stop)]
            assert "".join(item.new_text for item in items) == answer.text
            assert items[-1].finish_reason == answer.finish_reason == "stop"
            assert items[-1].completion_tokens <= 16

    asyncio.run(case())


def test_starting_twice_and_stopping_twice_is_harmless(make_engine: MakeEngine):
    async def case():
        async with make_engine() as engine:
            await engine.start()
            assert (await engine.generate(PROMPT, max_tokens=1, temperature=0.0)).completion_tokens == 1
            await engine.stop()
            await engine.stop()

    asyncio.run(case())


def test_stopping_ends_running_requests(make_engine: MakeEngine):
    async def case():
        async with make_engine() as engine:
            stream = unending(engine)
            await first_token(stream)
            reader = asyncio.create_task(items_of(stream))
            await asyncio.sleep(0)
            await engine.stop()
            async with asyncio.timeout(10):
                result = (await asyncio.gather(reader, return_exceptions=True))[0]
            assert isinstance(result, BaseException) or len(result) < LONG

    asyncio.run(case())


def test_the_defaults_of_the_contract(make_engine: MakeEngine):
    async def case():
        async with make_engine() as engine:
            assert engine.model_name
            assert isinstance(engine.is_mllm, bool)
            assert engine.tokenizer is not None
            assert engine.preserve_native_tool_format is False
            engine.preserve_native_tool_format = True
            assert engine.preserve_native_tool_format is True
            engine.preserve_native_tool_format = False
            assert isinstance(engine.get_stats(), dict)

    asyncio.run(case())

"""Vectors and scores in a worker: admitted, counted, told, aborted like answers in text."""

import asyncio
import functools

import pytest

from protocol.messages import Accepted, Embed, Failed, Finished, Rejected, Result, Score, Started
from protocol.values import Capacity, Scores, Task, Vectors
from tests.worker.test_core import Foreign, Wire, generate, serving
from worker.core import Core
from worker.engine import fake_vectors
from worker.engine.base import EngineBusy
from worker.engine.fake import FakeEngine
from worker.engine.output import EngineFacts


def in_loop(test):
    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    return run


SLOW = 'fake:{"prefill_ms": 600000}'


def embed(*inputs, request_id="r", **fields):
    return Embed(request_id=request_id, inputs=inputs, model="m", **fields)


def score(query, *texts, request_id="r", **fields):
    return Score(request_id=request_id, attempt=0, queries=(query,), texts=texts, model="m", **fields)


def engine(task=Task.EMBED, **options):
    return FakeEngine("m", task=task, dimensions=8, **options)


async def said(request, task=Task.EMBED, **options):
    made = engine(task, **options)
    async with serving(made) as (core, wire):
        core.learn(made.facts())
        core.compute("gw", request)
        await core.ended()
        core.flush()
        return wire.of("r")


@in_loop
async def test_vectors_are_told_between_the_beginning_and_the_end():
    accepted, started, result, finished = await said(embed("one two", "three"))
    assert isinstance(accepted, Accepted)
    assert isinstance(started, Started)
    assert started.prompt_tokens == 3
    assert isinstance(result, Result)
    assert result.value == Vectors(
        dimensions=8, data=fake_vectors.vector("one two", 8) + fake_vectors.vector("three", 8)
    )
    assert isinstance(finished, Finished)
    assert finished.usage.prompt_tokens == 3
    assert finished.usage.completion_tokens == 0


@in_loop
async def test_token_ids_are_the_texts_that_they_stand_for():
    made = engine()
    ids = tuple(made.tokenizer.encode("one two"))
    async with serving(made) as (core, wire):
        core.learn(made.facts())
        core.compute("gw", Embed(request_id="r", inputs=(), token_ids=(ids,)))
        result = await wire.until_said("r", Result)
    assert result.value.data == fake_vectors.vector("one two", 8)


@in_loop
async def test_scores_are_told_for_each_pair():
    _accepted, started, result, _finished = await said(score("a b", "a", "b a", "c"), Task.RERANK)
    assert result.value == Scores(scores=(0.5, 1.0, 0.0))
    assert started.prompt_tokens == 3 * 2 + 4


@pytest.mark.parametrize(
    ("request_", "options", "code", "param"),
    [
        (embed("ok", "one two three four"), {"max_model_len": 3}, "context_length_exceeded", "input[1]"),
        (embed("a", dimensions=9), {}, "unsupported", "dimensions"),
    ],
)
@in_loop
async def test_what_cannot_be_taken_names_its_place(request_, options, code, param):
    failed = (await said(request_, **options))[-1]
    assert isinstance(failed, Failed)
    assert (failed.code, failed.param) == (code, param)


@pytest.mark.parametrize("task", list(Task))
@in_loop
async def test_a_request_for_another_task_is_refused_in_words(task):
    made = engine(task)
    async with serving(made) as (core, wire):
        core.learn(made.facts())
        core.generate("gw", generate("hi", "text"))
        core.compute("gw", embed("hi", request_id="vectors"))
        core.compute("gw", score("hi", "ho", request_id="scores"))
        await core.ended()
        core.flush()
        own = {Task.GENERATE: "text", Task.EMBED: "vectors", Task.RERANK: "scores"}[task]
        for request_id in ("text", "vectors", "scores"):
            last = wire.of(request_id)[-1]
            assert isinstance(last, Finished if request_id == own else Failed)
            if isinstance(last, Failed):
                assert (last.code, last.param) == ("unsupported", "model")
                assert last.message.endswith(f"it is there to {task.words}")


@in_loop
async def test_they_take_places_like_all_others_and_give_them_back_when_aborted():
    made = engine(max_num_seqs=1, max_waiting=0)
    async with serving(made, slots=1) as (core, wire):
        core.learn(made.facts())
        core.compute("gw", embed(SLOW, request_id="first"))
        await wire.until_said("first", Started)
        core.compute("gw", embed("a", request_id="second"))
        rejected = await wire.until_said("second", Rejected)
        assert rejected.reason == "engine_busy"
        assert core.load().running == 1
        core.abort("gw", "first")
        await wire.until(lambda: not core.held)
        core.compute("gw", embed("a", request_id="third"))
        await wire.until_said("third", Finished)
        assert wire.kinds("first") == ["Accepted", "Started"]


@in_loop
async def test_an_engine_that_is_busy_after_all_rejects():
    class Busy(FakeEngine):
        async def embed(self, request, request_id, began):
            raise EngineBusy("no memory")

    made = Busy("m", task=Task.EMBED)
    async with serving(made) as (core, wire):
        core.learn(made.facts())
        core.compute("gw", embed("a"))
        await core.ended()
        core.flush()
        assert wire.kinds("r") == ["Accepted", "Rejected"]


@in_loop
async def test_the_time_for_an_answer_holds():
    failed = (await said(embed(SLOW, time_left_s=0.01)))[-1]
    assert (type(failed), failed.code) == (Failed, "deadline_exceeded")


@in_loop
async def test_an_engine_of_others_says_that_it_makes_none():
    wire = Wire()
    core = Core(Foreign([]), Capacity(), wire.send, freed=wire.free, broken=wire.broken.append)
    core.closed = None
    core.learn(EngineFacts(task=Task.EMBED))
    core.compute("gw", embed("a"))
    await core.ended()
    core.flush()
    failed = wire.of("r")[-1]
    assert (type(failed), failed.code) == (Failed, "unsupported")


def test_what_comes_out_is_the_same_in_every_process():
    vector = fake_vectors.vector("a word", 4)
    assert vector.hex() == EXPECTED
    assert fake_vectors.vector("a word", 4, 2) != vector[:8]


EXPECTED = "d8016bbefa73163f3a5821bfb3a7e73e"
"""Four numbers of 32 bits."""

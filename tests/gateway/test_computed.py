"""Requests for vectors and scores take the way of all others: choice, queue, rejection, retry, loss."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ClusterError, ErrorCode
from protocol.messages import Accepted, Embed, Failed, Finished, Rejected, Result, Score, Started, Work
from protocol.values import Load, Task, Usage
from tests.gateway.fleet import Fleet, Outlet

VECTORS = {"dimensions": 1, "data": b"\0\0\x80?"}


def embed(fleet: Fleet, request_id: str = "r", model: str = "m") -> Outlet:
    outlet = Outlet()
    request = Embed(request_id=request_id, inputs=("a",), model=model)
    fleet.dispatcher.submit(request, outlet, 10, fleet.now)
    return outlet


def last(fleet: Fleet, connection: bytes, kind: type[Work] = Embed) -> Work:
    return fleet.wire.to(connection, kind)[-1]


def end(fleet: Fleet, connection: bytes, request: Work) -> None:
    fleet.receive(
        connection,
        Finished(
            request_id=request.request_id,
            attempt=request.attempt,
            finish_reason="stop",
            usage=Usage(prompt_tokens=3),
            load=Load(),
        ),
    )


def answer(fleet: Fleet, connection: bytes) -> None:
    request = last(fleet, connection)
    ids: dict[str, Any] = {"request_id": request.request_id, "attempt": request.attempt}
    fleet.receive(connection, Accepted(load=Load(running=1), **ids))
    fleet.receive(connection, Started(prompt_tokens=3, **ids))
    fleet.receive(connection, Result(value=VECTORS, **ids))
    end(fleet, connection, request)


def test_a_result_comes_before_its_end():
    fleet = Fleet()
    fleet.join("a", task=Task.EMBED)
    outlet = embed(fleet)
    answer(fleet, b"a")
    assert outlet.value == VECTORS
    assert outlet.end is not None
    assert outlet.end.usage.prompt_tokens == 3
    assert fleet.counts == (0, 0)


def test_it_goes_to_workers_that_are_for_its_task_only():
    fleet = Fleet()
    fleet.join("a")
    fleet.join("b", task=Task.RERANK)
    fleet.join("c", task=Task.EMBED)
    embed(fleet)
    assert last(fleet, b"c").request_id == "r"
    outlet = Outlet()
    score = Score(request_id="s", attempt=0, queries=("q",), texts=("t",), model="m")
    fleet.dispatcher.submit(score, outlet, 10, fleet.now)
    assert last(fleet, b"b", Score).request_id == "s"


def test_a_worker_that_is_busy_is_passed_by_and_the_rest_waits_in_line():
    fleet = Fleet()
    fleet.join("a", "b", task=Task.EMBED)
    outlet = embed(fleet)
    first = b"a" if fleet.wire.to(b"a", Embed) else b"b"
    other = b"b" if first == b"a" else b"a"
    request = last(fleet, first)
    busy = Rejected(request_id="r", attempt=0, load=Load(running=1), reason="engine_busy")
    fleet.receive(first, busy)
    assert last(fleet, other) == request
    waiting = embed(fleet, "late")
    assert fleet.counts == (1, 1)
    answer(fleet, other)
    assert outlet.value == VECTORS
    answer(fleet, other)
    assert waiting.value == VECTORS


def test_one_whose_worker_is_lost_begins_anew_elsewhere_and_the_lost_ones_result_is_none():
    fleet = Fleet()
    fleet.join("a", "b", task=Task.EMBED)
    outlet = embed(fleet)
    first = b"a" if fleet.wire.to(b"a", Embed) else b"b"
    other = b"b" if first == b"a" else b"a"
    fleet.receive(first, Accepted(request_id="r", attempt=0, load=Load(running=1)))
    fleet.receive(first, Result(request_id="r", value="of an attempt without an end"))
    fleet.lose(first)
    assert last(fleet, other).attempt == 1
    fleet.receive(other, Result(request_id="r", attempt=0, value="of the first attempt"))
    answer(fleet, other)
    assert outlet.value == VECTORS
    assert outlet.ends == 1


def test_its_own_fault_is_not_tried_again():
    fleet = Fleet()
    fleet.join("a", "b", task=Task.EMBED)
    outlet = embed(fleet)
    first = b"a" if fleet.wire.to(b"a", Embed) else b"b"
    fleet.receive(
        first,
        Failed(
            request_id="r",
            attempt=0,
            code="context_length_exceeded",
            message="too long",
            load=Load(),
            param="input[1]",
        ),
    )
    assert outlet.error is not None
    assert (outlet.error.code, outlet.error.param) == (ErrorCode.CONTEXT_LENGTH_EXCEEDED, "input[1]")


def test_a_model_for_another_task_is_refused_with_those_that_can():
    fleet = Fleet()
    fleet.join("a", model="writer")
    fleet.join("b", model="embedder", task=Task.EMBED, aliases=("vectors",))
    named = fleet.catalog.named_for
    assert named(Task.EMBED, "vectors") == "embedder"
    assert named(Task.GENERATE, "writer") == "writer"
    for task, model, able in ((Task.EMBED, "writer", "embedder"), (Task.GENERATE, "vectors", "writer")):
        with pytest.raises(ClusterError) as caught:
            named(task, model)
        assert caught.value.code is ErrorCode.UNSUPPORTED
        assert caught.value.param == "model"
        assert f"models that can: {able}" in caught.value.message
    with pytest.raises(ClusterError, match=r"cannot rank texts$"):
        named(Task.RERANK, "writer")


def test_without_a_name_the_only_model_for_the_task_is_meant():
    fleet = Fleet()
    fleet.join("a", model="writer")
    fleet.join("b", model="embedder", task=Task.EMBED)
    assert fleet.catalog.named_for(Task.EMBED, None) == "embedder"
    assert fleet.catalog.named_for(Task.GENERATE, None) == "writer"
    with pytest.raises(ClusterError, match="model is missing"):
        fleet.catalog.named_for(Task.RERANK, None)


def test_of_a_model_without_a_worker_nobody_knows_what_it_is_for():
    fleet = Fleet()
    fleet.join("a", model="gone", task=Task.EMBED)
    fleet.lose(b"a")
    assert fleet.catalog.named_for(Task.EMBED, "gone") == "gone"
    with pytest.raises(ClusterError, match="cannot generate text"):
        fleet.catalog.named_for(Task.GENERATE, "gone")

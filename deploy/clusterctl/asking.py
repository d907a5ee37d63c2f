"""Having a worker show that it serves: it answers a question of the kind that its model is for."""

from __future__ import annotations

from typing import Any, TypeVar, assert_never

import msgspec

from clusterctl.admin import ActionError, exchange
from protocol.addresses import Home
from protocol.values import Task

T = TypeVar("T")


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What a model said, and which worker it was."""

    text: str
    worker_id: str


class _Text(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Text


class _Chat(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...]


class _Vector(msgspec.Struct, frozen=True):
    embedding: tuple[float, ...]


class _Vectors(msgspec.Struct, frozen=True):
    data: tuple[_Vector, ...]


class _Score(msgspec.Struct, frozen=True):
    score: float


class _Scores(msgspec.Struct, frozen=True):
    data: tuple[_Score, ...]


class _Model(msgspec.Struct, frozen=True):
    id: str
    task: Task = Task.GENERATE


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...]


def ask_model(home: Home, gateway_id: str, model: str, timeout_s: float, *, only: str = "") -> Answered:
    """One token, vector or score of the model, made for this question; by the worker `only`, where named.

    Raises `ActionError` and `KeyFileError`.
    """

    worker_id = ""

    def ask(path: str, kind: type[T], **fields: Any) -> T:
        nonlocal worker_id
        headers, text = exchange(home, gateway_id, path, timeout_s, {"model": model, **fields}, only=only)
        worker_id = headers.get("x-worker-id", "")
        return _decoded(gateway_id, text, kind)

    try:
        match _task_of(home, gateway_id, model, timeout_s):
            case Task.GENERATE:
                question = {"role": "user", "content": "Say hello."}
                chat = ask("/v1/chat/completions", _Chat, max_tokens=1, temperature=0, messages=[question])
                told = chat.choices[0].message.content or ""
            case Task.EMBED:
                vectors = ask("/v1/embeddings", _Vectors, input="hello")
                told = f"a vector of {len(vectors.data[0].embedding)} numbers"
            case Task.RERANK:
                told = (
                    f"a score of {ask('/v1/score', _Scores, text_1='hello', text_2='hi').data[0].score:.3g}"
                )
            case never:
                assert_never(never)
    except IndexError as error:
        raise ActionError(f"the gateway {gateway_id} gave an empty answer") from error
    return Answered(text=told, worker_id=worker_id)


def _task_of(home: Home, gateway_id: str, model: str, timeout_s: float) -> Task:
    """What the model is for, as its workers tell; text where nobody has told yet."""
    _headers, text = exchange(home, gateway_id, "/v1/models", timeout_s)
    found = (each.task for each in _decoded(gateway_id, text, _Models).data if each.id == model)
    return next(found, Task.GENERATE)


def _decoded(gateway_id: str, text: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise ActionError(f"the gateway {gateway_id} gave an answer that is none: {error}") from error

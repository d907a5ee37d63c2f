"""OpenAI's completions: plain prompts, several at once, with the text or its token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.dialects import sse
from gateway.dialects.base import Answered, Asked, Identity
from gateway.dialects.chunk_usage import ChunkEnd, UsageWanted, usage_object, usage_wanted
from gateway.dialects.fields import Body, Fields, missing, token_ids, unsupported, wrong_type, wrong_value
from gateway.dialects.openai_sampling import sampling, seed
from gateway.pieces import Piece
from protocol.errors import ClusterError
from protocol.messages import Finished, TokenLogprob
from protocol.values import Usage

_encode = msgspec.json.encode
_DEFAULT_MAX_TOKENS = 16
_MAX_ANSWERS = 128
_FINISH_REASONS = frozenset({"stop", "length"})
_LEAST = -9999.0
"""Stands for a log-probability of minus infinity, which JSON cannot say."""

Prompt = str | tuple[int, ...]


class CompletionRequest(Asked, frozen=True, kw_only=True):
    """One request for completions."""

    echo: bool = False
    usage: UsageWanted = UsageWanted()


def parse(body: bytes) -> CompletionRequest:
    """Raises `ClusterError` with the path of the fault."""
    fields = Body(body)
    prompts = _prompts(fields)
    stream = fields.flag("stream")
    n = fields.integer("n", 1, _MAX_ANSWERS) or 1
    if n * len(prompts) > _MAX_ANSWERS:
        raise wrong_value("n", f"and the prompts ask for more than {_MAX_ANSWERS} answers at once")
    _check_best_of(fields, n, stream)
    if fields.text("suffix"):
        raise unsupported("suffix", "is not available; write your model's own marks into the prompt")
    return CompletionRequest(
        model=fields.text("model"),
        prompts=prompts,
        n=n,
        sampling=msgspec.structs.replace(
            sampling(fields, _DEFAULT_MAX_TOKENS), logprobs=fields.integer("logprobs", 0, 20)
        ),
        seed=seed(fields),
        stream=stream,
        echo=_echo(fields, prompts),
        usage=usage_wanted(fields, stream),
    )


def _prompts(fields: Fields) -> tuple[Prompt, ...]:
    value = fields.raw("prompt")
    if value is None:
        raise missing("prompt")
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise wrong_type("prompt", "a string or an array", value)
    if not value:
        raise wrong_value("prompt", "must not be empty")
    if not isinstance(value[0], str | list):
        return (_token_ids(value, "prompt"),)
    return tuple(
        item if isinstance(item, str) else _token_ids(item, f"prompt[{index}]")
        for index, item in enumerate(value)
    )


def _token_ids(value: Any, path: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of token ids", value)
    if not value:
        raise wrong_value(path, "must not be empty")
    return token_ids(value, path)


def _check_best_of(fields: Fields, n: int, stream: bool) -> None:
    best_of = fields.integer("best_of", 1, _MAX_ANSWERS)
    if best_of is None or best_of == n:
        return
    if best_of < n:
        raise wrong_value("best_of", f"must be at least n, which is {n}")
    if stream:
        raise wrong_value("best_of", "above n cannot be streamed")
    raise unsupported("best_of", "above n is not available; ask for more with n, and choose")


def _echo(fields: Fields, prompts: tuple[Prompt, ...]) -> bool:
    if not fields.flag("echo"):
        return False
    if fields.raw("logprobs") is not None:
        raise unsupported("echo", "with logprobs is not available: the prompt's own are not computed")
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise unsupported("echo", "is available for prompts of text only")
    return True


class Completions:
    """The dialect."""

    stream_headers = sse.HEADERS

    def parse(self, body: bytes) -> CompletionRequest:
        return parse(body)

    def writer(self, asked: CompletionRequest, identity: Identity) -> StreamWriter:
        return StreamWriter(asked, identity)

    def whole(
        self, asked: CompletionRequest, identity: Identity, answers: Sequence[Answered], usage: Usage
    ) -> bytes:
        choices = [_choice(asked, index, answer) for index, answer in enumerate(answers)]
        return _encode(_common(identity) | {"choices": choices, "usage": usage_object(usage)})


class StreamWriter:
    """The chunks of one request's answers."""

    def __init__(self, asked: CompletionRequest, identity: Identity) -> None:
        self._asked = asked
        self._head = b"data: " + _encode(_common(identity))[:-1] + b',"choices":['
        self._end = ChunkEnd(asked.usage)
        self._offsets: dict[int, int] = {}

    def start(self, usage: Usage) -> bytes:
        self._end.start(usage)
        if not self._asked.echo:
            return b""
        count = len(self._asked.prompts) * self._asked.n
        return b"".join(self._chunk(index, _prompt_text(self._asked, index)) for index in range(count))

    def piece(self, index: int, piece: Piece) -> bytes:
        self._end.count(index, piece.completion_tokens)
        text = shown(piece)
        if not text and not piece.logprobs:
            return b""
        logprobs = b"null"
        if self._asked.sampling.logprobs is not None:
            found = logprobs_object(piece.logprobs, self._offsets.get(index, 0))
            self._offsets[index] = self._offsets.get(index, 0) + sum(map(len, found["tokens"]))
            logprobs = _encode(found)
        return self._chunk(index, text, logprobs)

    def finish(self, index: int, finished: Finished) -> bytes:
        self._end.count(index, finished.usage.completion_tokens)
        return self._chunk(index, "", reason=_encode(_finish_reason(finished)))

    def end(self, usage: Usage) -> bytes:
        last = self._head + b'],"usage":' + _encode(usage_object(usage)) + b"}\n\n"
        return (last if self._asked.usage.last else b"") + sse.DONE

    def keepalive(self) -> bytes:
        return sse.KEEPALIVE

    def fail(self, error: ClusterError) -> bytes:
        return sse.error_event(error)

    def _chunk(self, index: int, text: str, logprobs: bytes = b"null", reason: bytes = b"null") -> bytes:
        choice = b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}]' % (
            index,
            _encode(text),
            logprobs,
            reason,
        )
        return self._head + choice + self._end.now


def shown(piece: Piece) -> str:
    """The piece as the plain text that it was: a completion knows no channels."""
    return piece.reasoning + piece.text + "".join(call.name + call.arguments for call in piece.tool_calls)


def logprobs_object(logprobs: Sequence[TokenLogprob], offset: int) -> dict[str, list[Any]]:
    """OpenAI's older form: four lists, one item a token. `offset` is where its text begins."""
    tokens = [item.token for item in logprobs]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [max(_LEAST, item.logprob) for item in logprobs],
        "top_logprobs": [
            {token: max(_LEAST, logprob) for _id, token, logprob in item.top} for item in logprobs
        ],
        "text_offset": offsets,
    }


def _common(identity: Identity) -> dict[str, Any]:
    return {
        "id": f"cmpl-{identity.token}",
        "object": "text_completion",
        "created": identity.created,
        "model": identity.model,
        "system_fingerprint": identity.fingerprint,
    }


def _choice(asked: CompletionRequest, index: int, answer: Answered) -> dict[str, Any]:
    text = "".join(map(shown, answer.pieces))
    found = [item for piece in answer.pieces for item in piece.logprobs]
    return {
        "index": index,
        "text": _prompt_text(asked, index) + text if asked.echo else text,
        "logprobs": None if asked.sampling.logprobs is None else logprobs_object(found, 0),
        "finish_reason": _finish_reason(answer.finished),
    }


def _prompt_text(asked: CompletionRequest, index: int) -> str:
    prompt = asked.prompts[index // asked.n]
    return prompt if isinstance(prompt, str) else ""


def _finish_reason(finished: Finished) -> str:
    return finished.finish_reason if finished.finish_reason in _FINISH_REASONS else "stop"

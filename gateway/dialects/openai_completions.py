"""OpenAI's completions: plain prompts, several at once, with the text or its token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.dialects import openai_rows as rows
from gateway.dialects import sse
from gateway.dialects.base import Answered, Asked, Identity
from gateway.dialects.chunk_usage import ChunkEnd, UsageWanted, usage_object, usage_wanted
from gateway.dialects.fields import Body, Fields, missing, token_ids, unsupported, wrong_type, wrong_value
from gateway.dialects.formats import parse_formats
from gateway.dialects.openai_sampling import cache_key, level, sampling, seed
from gateway.pieces import Piece
from protocol.errors import ClusterError
from protocol.messages import Finished
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

    begins_with_prompt: bool = False
    """The answers do: with the text as it was sent, or with what token ids stand for."""
    usage: UsageWanted = UsageWanted()


def parse(body: bytes) -> CompletionRequest:
    """Raises `ClusterError` with the path of the fault."""
    fields = Body(body)
    prompts = _prompts(fields)
    stream = fields.flag("stream")
    n = rows.N.integer(fields) or 1
    if n * len(prompts) > _MAX_ANSWERS:
        raise wrong_value("n", f"and the prompts ask for more than {_MAX_ANSWERS} answers at once")
    _check_best_of(fields, n, stream)
    if fields.text("suffix"):
        raise unsupported("suffix", "is not available; write your model's own marks into the prompt")
    echo = fields.flag("echo")
    drawn = sampling(fields, _DEFAULT_MAX_TOKENS, least_tokens=0 if echo else 1)
    prompt_only = drawn.max_tokens == 0
    logprobs = rows.LOGPROBS.integer(fields)
    of_ids = not all(isinstance(prompt, str) for prompt in prompts)
    return CompletionRequest(
        model=fields.text("model"),
        prompts=prompts,
        n=n,
        sampling=msgspec.structs.replace(
            drawn, logprobs=logprobs, max_tokens=None if prompt_only else drawn.max_tokens
        ),
        seed=seed(fields),
        stream=stream,
        begins_with_prompt=echo,
        echo=echo and (of_ids or prompt_only or logprobs is not None),
        prompt_only=prompt_only,
        usage=usage_wanted(fields, stream),
        response_format=parse_formats(fields),
        cache_key=cache_key(fields),
        level=level(fields),
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
    best_of = rows.BEST_OF.integer(fields)
    if best_of is None or best_of == n:
        return
    if best_of < n:
        raise wrong_value("best_of", f"must be at least n, which is {n}")
    if stream:
        raise wrong_value("best_of", "above n cannot be streamed")
    raise unsupported("best_of", "above n is not available; ask for more with n, and choose")


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
        """A prompt that no worker has to give back is known already."""
        self._end.start(usage)
        if not self._asked.begins_with_prompt or self._asked.echo:
            return b""
        count = len(self._asked.prompts) * self._asked.n
        return b"".join(self._chunk(index, _prompt_text(self._asked, index)) for index in range(count))

    def piece(self, index: int, piece: Piece) -> bytes:
        if self._end.each:
            self._end.count(index, piece.completion_tokens)
        text = shown(piece)
        if piece.prompt_text or piece.prompt_logprobs:
            text = _prompt_text(self._asked, index, piece) + text
        if not text and not piece.logprobs:
            return b""
        logprobs = b"null"
        if self._asked.sampling.logprobs is not None:
            found = logprobs_object((piece,), self._offsets.get(index, 0))
            self._offsets[index] = self._offsets.get(index, 0) + sum(map(len, found["tokens"]))
            logprobs = _encode(found)
        return self._chunk(index, text, logprobs)

    def text(self, index: int, text: str, completion_tokens: int) -> bytes:
        return self.piece(index, Piece(text=text, completion_tokens=completion_tokens))

    def finish(self, index: int, finished: Finished) -> bytes:
        if self._end.each:
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


def logprobs_object(pieces: Sequence[Piece], offset: int) -> dict[str, list[Any]]:
    """OpenAI's older form: four lists, one item a token. `offset` is where their text begins."""
    prompt = [item for piece in pieces for item in piece.prompt_logprobs]
    items = prompt + [item for piece in pieces for item in piece.logprobs]
    tokens = [item.token for item in items]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    logprobs: list[float | None] = [max(_LEAST, item.logprob) for item in items]
    tops: list[dict[str, float] | None] = [
        {token: max(_LEAST, logprob) for _id, token, logprob in item.top} for item in items
    ]
    if prompt:
        logprobs[0] = tops[0] = None
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}


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
    if asked.begins_with_prompt:
        text = _prompt_text(asked, index, *answer.pieces[:1]) + text
    return {
        "index": index,
        "text": text,
        "logprobs": None if asked.sampling.logprobs is None else logprobs_object(answer.pieces, 0),
        "finish_reason": _finish_reason(answer.finished),
    }


def _prompt_text(asked: CompletionRequest, index: int, piece: Piece | None = None) -> str:
    """The prompt as it was sent, else as the worker reads its ids."""
    prompt = asked.prompts[index // asked.n]
    if isinstance(prompt, str):
        return prompt
    return "" if piece is None else piece.prompt_text


def _finish_reason(finished: Finished) -> str:
    return finished.finish_reason if finished.finish_reason in _FINISH_REASONS else "stop"

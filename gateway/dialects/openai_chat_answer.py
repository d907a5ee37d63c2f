"""OpenAI's chat completions, the answer: a whole body, or the chunks of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from gateway.dialects import sse
from gateway.dialects.base import Answered, Identity
from gateway.dialects.chunk_usage import ChunkEnd, usage_object
from gateway.dialects.openai_chat import ChatRequest, parse
from gateway.pieces import Piece
from protocol.errors import ClusterError
from protocol.messages import Finished, TokenLogprob, ToolCallDelta
from protocol.values import Usage

_encode = msgspec.json.encode
_FINISH_REASONS = frozenset({"stop", "length", "tool_calls"})
_LEAST = -9999.0
"""Stands for a log-probability of minus infinity, which JSON cannot say."""
_SIGN_OF_LIFE = 5
"""Comments, ten seconds apart, pass some clients by: every so many-th time a chunk goes out."""


class ChatCompletions:
    """The dialect."""

    stream_headers = sse.HEADERS

    def parse(self, body: bytes) -> ChatRequest:
        return parse(body)

    def writer(self, asked: ChatRequest, identity: Identity) -> StreamWriter:
        return StreamWriter(asked, identity)

    def whole(
        self, asked: ChatRequest, identity: Identity, answers: Sequence[Answered], usage: Usage
    ) -> bytes:
        choices = [_choice(asked, identity, index, answer) for index, answer in enumerate(answers)]
        return _encode(
            _common(asked, identity, "chat.completion") | {"choices": choices, "usage": usage_object(usage)}
        )


class StreamWriter:
    """The chunks of one request's answers. All that does not change is encoded once, ahead."""

    __slots__ = (
        *("_asked", "_identity", "_head", "_end", "_deltas", "_texts", "_idle", "_began"),
        *("_plain_end", "_text_end"),
    )

    def __init__(self, asked: ChatRequest, identity: Identity) -> None:
        self._asked = asked
        self._identity = identity
        common = _encode(_common(asked, identity, "chat.completion.chunk"))
        self._head = b"data: " + common[:-1] + b',"choices":['
        self._end = ChunkEnd(asked.usage)
        self._deltas = [self._head + b'{"index":%d,"delta":' % index for index in range(asked.n)]
        self._texts = [delta + b'{"content":' for delta in self._deltas]
        self._idle = 0
        self._began = False
        self._set_ends()

    def _set_ends(self) -> None:
        self._plain_end = b',"logprobs":null,"finish_reason":null}]' + self._end.now
        self._text_end = b"}" + self._plain_end

    def start(self, usage: Usage) -> bytes:
        self._end.start(usage)
        self._set_ends()
        return self._roles()

    def _roles(self) -> bytes:
        """The first chunks, and the only ones with a role; nothing when they are out."""
        began, self._began = self._began, True
        role = b'{"role":"assistant","content":""}'
        return b"" if began else b"".join(self._chunk(index, role) for index in range(self._asked.n))

    def piece(self, index: int, piece: Piece) -> bytes:
        self._idle = 0
        if self._end.each:
            self._count(index, piece.completion_tokens)
        chunks = b""
        if piece.reasoning:
            text = _encode(piece.reasoning)
            # Under both names that clients read.
            chunks = self._chunk(index, b'{"reasoning_content":' + text + b',"reasoning":' + text + b"}")
        if piece.logprobs:
            text = b'{"content":' + _encode(piece.text) + b"}" if piece.text else b"{}"
            chunks += self._chunk(index, text, piece.logprobs)
        elif piece.text:
            chunks += self._texts[index] + _encode(piece.text) + self._text_end
        for call in piece.tool_calls:
            for item in self._call(index, call):
                chunks += self._chunk(index, _encode({"tool_calls": [item]}))
        return chunks

    def text(self, index: int, text: str, completion_tokens: int) -> bytes:
        self._idle = 0
        if self._end.each:
            self._count(index, completion_tokens)
        return self._texts[index] + _encode(text) + self._text_end

    def finish(self, index: int, finished: Finished) -> bytes:
        if self._end.each:
            self._count(index, finished.usage.completion_tokens)
        reason = _encode(_finish_reason(finished))
        end = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b}]' % (index, reason)
        return self._head + end + self._end.now

    def end(self, usage: Usage) -> bytes:
        if not self._asked.usage.last:
            return sse.DONE
        return self._head + b'],"usage":' + _encode(usage_object(usage)) + b"}\n\n" + sse.DONE

    def keepalive(self) -> bytes:
        self._idle += 1
        return sse.KEEPALIVE if self._idle % _SIGN_OF_LIFE else self._roles() or self._chunk(0, b"{}")

    def fail(self, error: ClusterError) -> bytes:
        return sse.error_event(error)

    def _count(self, index: int, completion_tokens: int) -> None:
        self._end.count(index, completion_tokens)
        self._set_ends()

    def _chunk(self, index: int, delta: bytes, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        end = self._plain_end
        if logprobs:
            end = b',"logprobs":%b,"finish_reason":null}]' % _encode(logprobs_object(logprobs))
            end += self._end.now
        return self._deltas[index] + delta + end

    def _call(self, index: int, call: ToolCallDelta) -> Iterator[dict[str, Any]]:
        """The id and the name once, without arguments; then pieces of these, and nothing else."""
        if call.name:
            call_id = _call_id(self._identity, index, call.index)
            function = {"name": call.name, "arguments": ""}
            yield {"index": call.index, "id": call_id, "type": "function", "function": function}
        if call.arguments:
            yield {"index": call.index, "function": {"arguments": call.arguments}}


def logprobs_object(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    content = [
        _logprob(item.token, item.logprob, item.piece)
        | {
            "top_logprobs": [
                _logprob(token, logprob, piece)
                for (_id, token, logprob), piece in zip_longest(item.top, item.top_pieces[: len(item.top)])
            ]
        }
        for item in logprobs
    ]
    return {"content": content, "refusal": None}


def _logprob(token: str, logprob: float, piece: bytes | None) -> dict[str, Any]:
    """Without its bytes, a text that is no whole characters stands for bytes that nobody knows."""
    if piece is None and "\ufffd" not in token:
        piece = token.encode()
    return {
        "token": token,
        "logprob": max(_LEAST, logprob),
        "bytes": None if piece is None else list(piece),
    }


def _common(asked: ChatRequest, identity: Identity, kind: str) -> dict[str, Any]:
    tier = {} if asked.service_tier is None else {"service_tier": asked.service_tier}
    return tier | {
        "id": f"chatcmpl-{identity.token}",
        "object": kind,
        "created": identity.created,
        "model": identity.model,
        "system_fingerprint": identity.fingerprint,
    }


def _choice(asked: ChatRequest, identity: Identity, index: int, answer: Answered) -> dict[str, Any]:
    text = "".join(piece.text for piece in answer.pieces)
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if reasoning := "".join(piece.reasoning for piece in answer.pieces):
        message |= {"reasoning_content": reasoning, "reasoning": reasoning}
    if calls := _calls(identity, index, answer):
        message |= {"content": text or None, "tool_calls": calls}
    logprobs = [item for piece in answer.pieces for item in piece.logprobs]
    return {
        "index": index,
        "message": message,
        "logprobs": None if asked.sampling.logprobs is None else logprobs_object(logprobs),
        "finish_reason": _finish_reason(answer.finished),
    }


def _calls(identity: Identity, index: int, answer: Answered) -> list[dict[str, Any]]:
    names: dict[int, str] = {}
    arguments: dict[int, list[str]] = {}
    for call in (call for piece in answer.pieces for call in piece.tool_calls):
        names[call.index] = names.get(call.index, "") + call.name
        arguments.setdefault(call.index, []).append(call.arguments)
    return [
        {
            "id": _call_id(identity, index, number),
            "type": "function",
            "function": {"name": name, "arguments": "".join(arguments[number]) or "{}"},
        }
        for number, name in names.items()
    ]


def _call_id(identity: Identity, index: int, number: int) -> str:
    return f"call_{identity.token}{index:02d}{number:02d}"


def _finish_reason(finished: Finished) -> str:
    """Clients check the word against a closed list."""
    return finished.finish_reason if finished.finish_reason in _FINISH_REASONS else "stop"

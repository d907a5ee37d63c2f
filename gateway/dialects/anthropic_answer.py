"""Anthropic's messages, the answer: a whole body, or the events of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gateway.dialects import sse
from gateway.dialects.anthropic_messages import parse
from gateway.dialects.base import Answered, Asked, Identity
from gateway.dialects.blocks import Block, Blocks, Kind, Step
from gateway.failures import Shape, error_object
from gateway.pieces import Piece
from protocol.errors import ClusterError
from protocol.messages import Finished
from protocol.values import Usage

_encode = msgspec.json.encode
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_SIGNATURE = "c3R1ZGlvZmxlZXQ="
"""Clients want one beneath a thought, and send it back; there is nothing to sign."""
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))


def usage_object(usage: Usage) -> dict[str, int]:
    """`input_tokens` are those that had to be computed."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def whole_body(identity: Identity, answers: Sequence[Answered]) -> bytes:
    """The body of an answer that is not streamed."""
    (answer,) = answers
    blocks = Blocks()
    for piece in answer.pieces:
        for _step in blocks.feed(piece):
            pass
    for _step in blocks.end(never_empty=True):
        pass
    content = [_whole_block(identity, block) for block in blocks.all]
    usage = answer.finished.usage
    return _encode(_message(identity, content, usage) | _stop(answer.finished))


class StreamWriter:
    """The events of one answer. What repeats with each token is encoded once for its block."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._blocks = Blocks()
        self._delta = b""

    def start(self, usage: Usage) -> bytes:
        return event("message_start", message=_message(self._identity, [], usage)) + PING

    def piece(self, index: int, piece: Piece) -> bytes:
        return self._events(self._blocks.feed(piece))

    def text(self, index: int, text: str, completion_tokens: int) -> bytes:
        return self.piece(index, Piece(text=text, completion_tokens=completion_tokens))

    def finish(self, index: int, finished: Finished) -> bytes:
        return (
            self._events(self._blocks.end(never_empty=True))
            + event("message_delta", delta=_stop(finished), usage=usage_object(finished.usage))
            + event("message_stop")
        )

    def end(self, usage: Usage) -> bytes:
        return b""

    def keepalive(self) -> bytes:
        return PING

    def fail(self, error: ClusterError) -> bytes:
        return b"event: error\ndata: %b\n\n" % _encode(error_object(error, Shape.ANTHROPIC))

    def _events(self, steps: Iterable[tuple[Step, Block, str]]) -> bytes:
        return b"".join(self._event(step, block, text) for step, block, text in steps)

    def _event(self, step: Step, block: Block, text: str) -> bytes:
        if step is Step.ADD:
            # Arguments are told at their end: clients want the pieces of an object.
            return b"" if block.kind is Kind.TOOL_CALL else self._delta + _encode(text) + b"}}\n\n"
        if step is Step.OPEN:
            return self._open(block)
        closing = b""
        if block.parts and block.kind is Kind.TOOL_CALL:
            closing = self._delta + _encode(_encode(block.arguments).decode()) + b"}}\n\n"
        if block.kind is Kind.REASONING:
            delta = {"type": "signature_delta", "signature": _SIGNATURE}
            closing = event("content_block_delta", index=block.position, delta=delta)
        return closing + event("content_block_stop", index=block.position)

    def _open(self, block: Block) -> bytes:
        kind, field = {
            Kind.REASONING: (b"thinking_delta", b"thinking"),
            Kind.TEXT: (b"text_delta", b"text"),
            Kind.TOOL_CALL: (b"input_json_delta", b"partial_json"),
        }[block.kind]
        self._delta = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":' % (block.position, kind, field)
        )
        empty = _block(self._identity, block, "", {}) | (
            {"signature": ""} if block.kind is Kind.REASONING else {}
        )
        return event("content_block_start", index=block.position, content_block=empty)


def _message(identity: Identity, content: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
    return {
        "id": f"msg_{identity.token}",
        "type": "message",
        "role": "assistant",
        "model": identity.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_object(usage),
    }


def _stop(finished: Finished) -> dict[str, Any]:
    if isinstance(finished.matched_stop, str) and finished.finish_reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": finished.matched_stop}
    return {"stop_reason": _STOP_REASONS.get(finished.finish_reason, "end_turn"), "stop_sequence": None}


def _whole_block(identity: Identity, block: Block) -> dict[str, Any]:
    given = block.arguments if block.kind is Kind.TOOL_CALL else {}
    return _block(identity, block, block.text, given)


def _block(identity: Identity, block: Block, text: str, given: dict[str, Any]) -> dict[str, Any]:
    if block.kind is Kind.REASONING:
        return {"type": "thinking", "thinking": text, "signature": _SIGNATURE}
    if block.kind is Kind.TEXT:
        return {"type": "text", "text": text}
    call_id = f"toolu_{identity.token}{block.number:02d}"
    return {"type": "tool_use", "id": call_id, "name": block.name, "input": given}


class Messages:
    """The dialect."""

    stream_headers = sse.HEADERS

    def __init__(self, *, drop_billing_line: bool) -> None:
        self._drop_billing_line = drop_billing_line

    def parse(self, body: bytes) -> Asked:
        return parse(body, drop_billing_line=self._drop_billing_line)

    def writer(self, asked: Asked, identity: Identity) -> StreamWriter:
        return StreamWriter(identity)

    def whole(self, asked: Asked, identity: Identity, answers: Sequence[Answered], usage: Usage) -> bytes:
        return whole_body(identity, answers)

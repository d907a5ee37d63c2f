"""Ollama's chat and generate, the answer: one JSON object, or one a line."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from gateway.dialects.base import Answered, Identity
from gateway.dialects.blocks import Block, Blocks, Kind, Step
from gateway.dialects.ollama import OllamaRequest
from gateway.failures import Headers, Shape, error_object
from gateway.pieces import Piece
from protocol.errors import ClusterError
from protocol.messages import Finished
from protocol.values import Usage

_encode = msgspec.json.encode
_NS = 1_000_000_000
HEADERS: Headers = [
    (b"content-type", b"application/x-ndjson"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class Ollama:
    """The dialect, for one of its two routes."""

    stream_headers = HEADERS

    def __init__(self, parse: Callable[[bytes], OllamaRequest]) -> None:
        self._parse = parse

    def parse(self, body: bytes) -> OllamaRequest:
        return self._parse(body)

    def writer(self, asked: OllamaRequest, identity: Identity) -> LineWriter:
        return LineWriter(asked, identity)

    def whole(
        self, asked: OllamaRequest, identity: Identity, answers: Sequence[Answered], usage: Usage
    ) -> bytes:
        (answer,) = answers
        writer = self.writer(asked, identity)
        parts: dict[str, Any] = {"content": "", "thinking": "", "tool_calls": []}
        for piece in answer.pieces:
            for part in writer.parts(piece):
                parts = {name: value + part.get(name, type(value)()) for name, value in parts.items()}
        for part in writer.rest():
            parts["tool_calls"] += part.get("tool_calls", [])
        told = {name: value for name, value in parts.items() if value or name == "content"}
        return _encode(writer.object(told) | _end(answer.finished))


class LineWriter:
    """The lines of one answer. A call of a tool is told when it is complete."""

    def __init__(self, asked: OllamaRequest, identity: Identity) -> None:
        self._generate = asked.generate
        self._blocks = Blocks()
        created = datetime.datetime.fromtimestamp(identity.created, datetime.UTC)
        self._common = {
            "model": identity.model,
            "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def start(self, usage: Usage) -> bytes:
        return b""

    def piece(self, index: int, piece: Piece) -> bytes:
        return b"".join(self._line(part) for part in self.parts(piece))

    def text(self, index: int, text: str, completion_tokens: int) -> bytes:
        return self.piece(index, Piece(text=text, completion_tokens=completion_tokens))

    def finish(self, index: int, finished: Finished) -> bytes:
        lines = b"".join(self._line(part) for part in self.rest())
        return lines + _encode(self.object({"content": ""}) | _end(finished)) + b"\n"

    def end(self, usage: Usage) -> bytes:
        return b""

    def keepalive(self) -> bytes:
        """An empty line would be no JSON."""
        return self._line({"content": ""})

    def fail(self, error: ClusterError) -> bytes:
        return _encode(error_object(error, Shape.OLLAMA)) + b"\n"

    def parts(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """What a piece adds to the message."""
        for step, block, text in self._blocks.feed(piece):
            yield from _part(step, block, text)

    def rest(self) -> Iterator[dict[str, Any]]:
        for step, block, text in self._blocks.end():
            yield from _part(step, block, text)

    def object(self, part: dict[str, Any]) -> dict[str, Any]:
        """A part of the answer as this route tells it."""
        if not self._generate:
            return {**self._common, "message": {"role": "assistant", "content": "", **part}, "done": False}
        told = {"response": part.get("content", "")}
        if "thinking" in part:
            told["thinking"] = part["thinking"]
        return {**self._common, **told, "done": False}

    def _line(self, part: dict[str, Any]) -> bytes:
        return _encode(self.object(part)) + b"\n"


def _part(step: Step, block: Block, text: str) -> Iterator[dict[str, Any]]:
    if block.kind is Kind.TOOL_CALL:
        if step is Step.CLOSE:
            function = {"name": block.name, "arguments": block.arguments}
            yield {"tool_calls": [{"function": function}]}
    elif step is Step.ADD:
        yield {"thinking" if block.kind is Kind.REASONING else "content": text}


def _end(finished: Finished) -> dict[str, Any]:
    times = finished.timings
    return {
        "done": True,
        "done_reason": "length" if finished.finish_reason == "length" else "stop",
        "total_duration": int((times.queued_s + times.prefill_s + times.decode_s) * _NS),
        "load_duration": 0,
        "prompt_eval_count": finished.usage.prompt_tokens,
        "prompt_eval_duration": int(times.prefill_s * _NS),
        "eval_count": finished.usage.completion_tokens,
        "eval_duration": int(times.decode_s * _NS),
    }

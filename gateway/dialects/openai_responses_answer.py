"""OpenAI's responses, the answer. The whole body is what the last event of the stream carries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gateway.dialects import sse
from gateway.dialects.base import Answered, Identity
from gateway.dialects.blocks import Block, Blocks, Kind, Step
from gateway.dialects.openai_responses import ResponseRequest, parse
from gateway.dialects.openai_responses_tools import Tool
from gateway.dialects.response_store import Kept, ResponseStore
from gateway.dialects.text_logprobs import TextLogprobs
from gateway.failures import error_fields
from gateway.pieces import Piece
from protocol.errors import ClusterError
from protocol.messages import Finished
from protocol.values import ChatMessage, ToolCall, ToolSpec, Usage

_encode = msgspec.json.encode
_SIGN_OF_LIFE = 3
"""Comments, ten seconds apart, pass some clients by: every so many-th time an event goes out."""
_PREFIXES = {Kind.REASONING: "rs", Kind.TEXT: "msg"}
_DELTAS = {Kind.REASONING: "response.reasoning_text.delta", Kind.TEXT: "response.output_text.delta"}


class ResponseWriter:
    """The events of one response, numbered; keeps the response when it is complete."""

    def __init__(self, asked: ResponseRequest, identity: Identity, store: ResponseStore) -> None:
        self._asked = asked
        self._identity = identity
        self._store = store
        self._tools = {tool.spec.name: tool for tool in asked.declared}
        self._blocks = Blocks()
        self._items: list[dict[str, Any]] = []
        self._number = 0
        self._idle = 0
        self._delta = b""
        self._logprobs = TextLogprobs()
        self._new_logprobs: list[dict[str, Any]] = []
        self._text_logprobs: list[dict[str, Any]] = []
        """Of the open text."""
        self.body = b""
        """Of the whole response, once it is complete."""

    @property
    def response_id(self) -> str:
        return f"resp_{self._identity.token}"

    def start(self, usage: Usage) -> bytes:
        return self._begin()

    def _begin(self) -> bytes:
        """The first events; nothing when they are out."""
        if self._number:
            return b""
        response = self.response("in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def piece(self, index: int, piece: Piece) -> bytes:
        self._idle = 0
        if self._asked.sampling.logprobs is not None:
            self._new_logprobs = self._logprobs.feed(piece)
        return self._events(self._blocks.feed(piece), "completed")

    def text(self, index: int, text: str, completion_tokens: int) -> bytes:
        return self.piece(index, Piece(text=text, completion_tokens=completion_tokens))

    def finish(self, index: int, finished: Finished) -> bytes:
        status = "incomplete" if finished.finish_reason == "length" else "completed"
        events = self._events(self._blocks.end(never_empty=True), status)
        response = self.response(status, finished)
        self.body = _encode(response)
        if self._asked.store:
            turns = (*self._asked.turns, self._turn())
            self._store.keep(self.response_id, Kept(turns, self.body, self._identity.owner))
        return events + self._event(f"response.{status}", response=response)

    def end(self, usage: Usage) -> bytes:
        return b""

    def keepalive(self) -> bytes:
        self._idle += 1
        if self._idle % _SIGN_OF_LIFE:
            return sse.KEEPALIVE
        return self._begin() or self._event("response.in_progress", response=self.response("in_progress"))

    def fail(self, error: ClusterError) -> bytes:
        told = error_fields(error)
        response = self.response("failed")
        response["error"] = {"code": told["code"], "message": told["message"]}
        return self._event("response.failed", response=response)

    def response(self, status: str, finished: Finished | None = None) -> dict[str, Any]:
        """The response as it stands."""
        completed = None
        if finished is not None and status == "completed":
            completed = self._identity.created + round(finished.timings.prefill_s + finished.timings.decode_s)
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self._identity.created,
            "completed_at": completed,
            "status": status,
            "model": self._identity.model,
            "output": list(self._items),
            "error": None,
            "incomplete_details": reason,
            "usage": None if finished is None else _usage_object(finished.usage),
            **self._asked.echoed,
        }

    # --- events ---

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = self._number
        self._number += 1
        told = _encode({"type": kind, "sequence_number": number, **fields})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), told)

    def _events(self, steps: Iterable[tuple[Step, Block, str]], status: str) -> bytes:
        return b"".join(self._step(step, block, text, status) for step, block, text in steps)

    def _step(self, step: Step, block: Block, text: str, status: str) -> bytes:
        if step is Step.OPEN:
            return self._open(block)
        if step is Step.ADD:
            if self._tool(block).custom:
                return b""  # its text stands inside JSON that is not complete yet
            number = self._number
            self._number += 1
            return self._delta % number + _encode(text) + self._delta_end(block)
        return self._close(block, status)

    def _delta_end(self, block: Block) -> bytes:
        if block.kind is not Kind.TEXT:
            return b"}\n\n"
        if not self._new_logprobs:
            return b',"logprobs":[]}\n\n'
        self._text_logprobs += self._new_logprobs
        return b',"logprobs":%b}\n\n' % _encode(self._new_logprobs)

    def _open(self, block: Block) -> bytes:
        self._text_logprobs = []
        item = self._item(block, "in_progress", "")
        kind = _DELTAS.get(block.kind, "response.function_call_arguments.delta")
        where = {"item_id": item["id"], "output_index": block.position}
        added = self._event("response.output_item.added", output_index=block.position, item=item)
        if block.kind is not Kind.TOOL_CALL:
            where["content_index"] = 0
            added += self._event("response.content_part.added", **where, part=self._part(block.kind, ""))
        fixed = _encode({"type": kind, **where})[:-1].replace(b"%", b"%%")
        self._delta = b"event: %b\ndata: %b" % (kind.encode(), fixed)
        self._delta += b',"sequence_number":%d,"delta":'
        return added

    def _close(self, block: Block, status: str) -> bytes:
        item = self._item(block, status, block.text)
        self._items.append(item)
        where = {"item_id": item["id"], "output_index": block.position}
        if block.kind is Kind.TOOL_CALL:
            events = self._call_done(block, item, where)
        else:
            where["content_index"] = 0
            done: dict[str, Any] = {"logprobs": self._text_logprobs} if block.kind is Kind.TEXT else {}
            name = _DELTAS[block.kind].replace(".delta", ".done")
            events = self._event(name, **where, text=block.text, **done)
            events += self._event(
                "response.content_part.done", **where, part=self._part(block.kind, block.text)
            )
        return events + self._event("response.output_item.done", output_index=block.position, item=item)

    def _call_done(self, block: Block, item: dict[str, Any], where: dict[str, Any]) -> bytes:
        if not self._tool(block).custom:
            name = "response.function_call_arguments.done"
            return self._event(name, **where, arguments=item["arguments"], name=item["name"])
        name = "response.custom_tool_call_input"
        return self._event(f"{name}.delta", **where, delta=item["input"]) + self._event(
            f"{name}.done", **where, input=item["input"]
        )

    # --- items ---

    def _item(self, block: Block, status: str, text: str) -> dict[str, Any]:
        if block.kind is Kind.TOOL_CALL:
            return self._call_item(block, status, text)
        item: dict[str, Any] = {"id": f"{_PREFIXES[block.kind]}_{self._identity.token}{block.position:02d}"}
        content = [] if status == "in_progress" else [self._part(block.kind, text)]
        if block.kind is Kind.REASONING:
            return item | {"type": "reasoning", "summary": [], "content": content, "status": status}
        return item | {"type": "message", "role": "assistant", "content": content, "status": status}

    def _part(self, kind: Kind, text: str) -> dict[str, Any]:
        if kind is Kind.REASONING:
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._text_logprobs}

    def _call_item(self, block: Block, status: str, text: str) -> dict[str, Any]:
        tool = self._tool(block)
        token = f"{self._identity.token}{block.position:02d}"
        item = {"call_id": f"call_{token}", "name": tool.name, "status": status}
        if tool.namespace:
            item["namespace"] = tool.namespace
        if tool.custom:
            return {"id": f"ctc_{token}", "type": "custom_tool_call", **item, "input": _free_text(text)}
        arguments = text if status == "in_progress" else text or "{}"
        return {"id": f"fc_{token}", "type": "function_call", **item, "arguments": arguments}

    def _tool(self, block: Block) -> Tool:
        return self._tools.get(block.name) or Tool(spec=ToolSpec(name=block.name), name=block.name)

    def _turn(self) -> ChatMessage:
        """The answer as the next request tells it."""
        texts = {kind: [b.text for b in self._blocks.all if b.kind is kind] for kind in Kind}
        calls = [
            ToolCall(
                id=f"call_{self._identity.token}{block.position:02d}", name=block.name, arguments=block.text
            )
            for block in self._blocks.all
            if block.kind is Kind.TOOL_CALL
        ]
        return ChatMessage(
            role="assistant",
            content="\n".join(texts[Kind.TEXT]),
            reasoning="\n".join(texts[Kind.REASONING]),
            tool_calls=tuple(calls),
        )


def _free_text(arguments: str) -> str:
    """What a model gave a tool of free text; where it is not in the one argument, all of it."""
    try:
        given = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return arguments
    text = given.get("input") if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


def _usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class Responses:
    """The dialect. Owns the responses that it keeps."""

    stream_headers = sse.HEADERS

    def __init__(self) -> None:
        self.store = ResponseStore()

    def parse(self, body: bytes) -> ResponseRequest:
        return parse(body, self.store)

    def writer(self, asked: ResponseRequest, identity: Identity) -> ResponseWriter:
        return ResponseWriter(asked, identity, self.store)

    def whole(
        self, asked: ResponseRequest, identity: Identity, answers: Sequence[Answered], usage: Usage
    ) -> bytes:
        (answer,) = answers
        writer = self.writer(asked, identity)
        for piece in answer.pieces:
            writer.piece(0, piece)
        writer.finish(0, answer.finished)
        return writer.body

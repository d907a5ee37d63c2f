"""Ollama's embeddings: of several texts, and in the older form of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.dialects.base import Identity
from gateway.dialects.computed import Posed, as_array, check_number, listed, not_empty, text_at, vectors
from gateway.dialects.fields import Body, Fields, missing, wrong_type
from gateway.dialects.openai_rows import DIMENSIONS, most_tokens
from protocol.messages import Embed
from protocol.values import Usage


class OllamaEmbedRequest(Posed, frozen=True, kw_only=True):
    """One request for embeddings."""

    request: Embed


class OllamaEmbed:
    """The dialect of `/api/embed`."""

    def parse(self, body: bytes) -> OllamaEmbedRequest:
        """Raises `ClusterError` with the path of the fault."""
        fields = Body(body)
        cuts = fields.raw("truncate") is None or fields.flag("truncate")
        return _posed(fields, _texts(fields), dimensions=DIMENSIONS.integer(fields), cuts=cuts)

    def whole(
        self, posed: OllamaEmbedRequest, identity: Identity, value: Any, usage: Usage
    ) -> Iterator[bytes]:
        """Raises `ClusterError` for vectors that are none."""
        arrays = map(as_array, vectors(value, len(posed.request.inputs)))
        after = {"prompt_eval_count": usage.prompt_tokens}
        return listed({"model": identity.model}, "embeddings", arrays, after)


class OllamaEmbedding:
    """The dialect of `/api/embeddings`."""

    def parse(self, body: bytes) -> OllamaEmbedRequest:
        """Raises `ClusterError` with the path of the fault."""
        fields = Body(body)
        prompt = fields.text("prompt")
        if prompt is None:
            raise missing("prompt")
        return _posed(fields, (not_empty(prompt, "prompt"),), dimensions=None, cuts=True)

    def whole(
        self, posed: OllamaEmbedRequest, identity: Identity, value: Any, usage: Usage
    ) -> Iterator[bytes]:
        """Raises `ClusterError` for a vector that is none."""
        (vector,) = vectors(value, 1)
        yield b'{"embedding":' + as_array(vector) + b"}"


def _posed(
    fields: Fields, texts: tuple[str, ...], *, dimensions: int | None, cuts: bool
) -> OllamaEmbedRequest:
    cut = most_tokens(-1) if cuts else None
    embed = Embed(request_id="", inputs=texts, dimensions=dimensions, most_tokens=cut)
    return OllamaEmbedRequest(model=fields.text("model") or fields.text("name"), request=embed)


def _texts(fields: Fields) -> tuple[str, ...]:
    given = fields.raw("input")
    if given is None:
        raise missing("input")
    if isinstance(given, str):
        return (not_empty(given, "input"),)
    if not isinstance(given, list):
        raise wrong_type("input", "a string or an array of strings", given)
    check_number(given, "input")
    return tuple(not_empty(text_at(given, index, "input"), f"input[{index}]") for index in range(len(given)))

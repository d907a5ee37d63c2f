"""OpenAI's embeddings: texts or their token ids, as lists of numbers or as base64."""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from typing import Any

from gateway.dialects import openai_rows as rows
from gateway.dialects.base import Identity
from gateway.dialects.computed import Posed, as_array, check_number, listed, not_empty, usage_object, vectors
from gateway.dialects.fields import Body, Fields, missing, token_ids, wrong_type, wrong_value
from gateway.dialects.openai_sampling import level
from protocol.messages import Embed
from protocol.values import Usage

_FORMATS = ("float", "base64")


class EmbeddingsRequest(Posed, frozen=True, kw_only=True):
    """One request for embeddings."""

    request: Embed
    base64: bool = False


class Embeddings:
    """The dialect."""

    def parse(self, body: bytes) -> EmbeddingsRequest:
        """Raises `ClusterError` with the path of the fault."""
        fields = Body(body)
        texts, ids = _inputs(fields)
        cut = rows.TRUNCATE.integer(fields)
        return EmbeddingsRequest(
            model=fields.text("model"),
            request=Embed(
                request_id="",
                inputs=texts,
                token_ids=ids,
                dimensions=rows.DIMENSIONS.integer(fields),
                most_tokens=rows.most_tokens(cut),
            ),
            level=level(fields),
            base64=_format(fields) == "base64",
        )

    def whole(
        self, posed: EmbeddingsRequest, identity: Identity, value: Any, usage: Usage
    ) -> Iterator[bytes]:
        """Raises `ClusterError` for vectors that are none."""
        found = vectors(value, len(posed.request.inputs or posed.request.token_ids))
        entries = (_entry(index, data, base64=posed.base64) for index, data in enumerate(found))
        after = {"model": identity.model, "usage": usage_object(usage)}
        return listed({"object": "list"}, "data", entries, after)


def _inputs(fields: Fields) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """The texts, or their token ids."""
    given = fields.raw("input")
    if given is None:
        raise missing("input")
    if isinstance(given, str):
        return (not_empty(given, "input"),), ()
    if not isinstance(given, list):
        raise wrong_type("input", "a string or an array", given)
    if given and isinstance(given[0], int) and not isinstance(given[0], bool):
        return (), (token_ids(given, "input"),)
    check_number(given, "input")
    if isinstance(given[0], list):
        return (), tuple(_ids(item, f"input[{index}]") for index, item in enumerate(given))
    return tuple(_text(item, f"input[{index}]") for index, item in enumerate(given)), ()


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(path, "a string, like the first one", value)
    return not_empty(value, path)


def _ids(value: Any, path: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise wrong_type(path, "an array of token ids, like the first one", value)
    if not value:
        raise wrong_value(path, "must not be empty")
    return token_ids(value, path)


def _format(fields: Fields) -> str:
    given = fields.text("encoding_format") or "float"
    if given not in _FORMATS:
        raise wrong_value("encoding_format", f"must be one of {', '.join(_FORMATS)}")
    return given


def _entry(index: int, data: bytes, *, base64: bool) -> bytes:
    shown = b'"%b"' % binascii.b2a_base64(data, newline=False) if base64 else as_array(data)
    return b'{"object":"embedding","index":%d,"embedding":%b}' % (index, shown)

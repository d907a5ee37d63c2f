"""Texts ranked by how well they answer a query: Jina's and Cohere's rerank, vLLM's score."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.dialects import ranking_rows as rows
from gateway.dialects.base import Identity
from gateway.dialects.computed import Posed, check_count, check_number, checked, listed, text_at, usage_object
from gateway.dialects.fields import Body, Fields, missing, wrong_type, wrong_value
from gateway.dialects.openai_rows import TRUNCATE, most_tokens
from gateway.dialects.openai_sampling import level
from protocol.messages import Score
from protocol.values import Scores, Usage

_encode = msgspec.json.encode
_LONG = ("documents", "query", "text_1", "text_2", "queries")


class ScoreRequest(Posed, frozen=True, kw_only=True):
    """One request to score pairs of texts."""

    request: Score


class RerankRequest(ScoreRequest, frozen=True, kw_only=True):
    """One request to rank documents."""

    top_n: int | None = None
    shows: bool = True
    """The answer repeats the documents."""


class Rerank:
    """The dialect. `shows`: whether answers repeat the documents where the client does not say."""

    def __init__(self, *, shows: bool) -> None:
        self._shows = shows

    def parse(self, body: bytes) -> RerankRequest:
        """Raises `ClusterError` with the path of the fault."""
        fields = Body(body, long=_LONG)
        query = fields.text("query")
        if query is None:
            raise missing("query")
        if not query:
            raise wrong_value("query", "must not be empty")
        cut = rows.MAX_TOKENS_PER_DOC.integer(fields)
        said = fields.raw("return_documents") is not None
        return RerankRequest(
            model=fields.text("model"),
            request=Score(
                request_id="",
                attempt=0,
                queries=(query,),
                texts=_documents(fields),
                most_tokens=most_tokens(TRUNCATE.integer(fields) if cut is None else cut),
            ),
            level=level(fields),
            top_n=rows.TOP_N.integer(fields),
            shows=fields.flag("return_documents") if said else self._shows,
        )

    def whole(self, posed: RerankRequest, identity: Identity, value: Any, usage: Usage) -> Iterator[bytes]:
        """Raises `ClusterError` for scores that are none."""
        scores, texts = _scores(posed, value), posed.request.texts
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
        entries = (
            _encode(
                {"index": index, "relevance_score": scores[index]}
                | ({"document": {"text": texts[index]}} if posed.shows else {})
            )
            for index in order[: posed.top_n]
        )
        before = {"id": f"rerank-{identity.token}", "model": identity.model}
        return listed(before, "results", entries, {"usage": usage_object(usage)})


class Pairs:
    """The dialect of `/score`."""

    def parse(self, body: bytes) -> ScoreRequest:
        """Raises `ClusterError` with the path of the fault."""
        fields = Body(body, long=_LONG)
        queries = _texts(fields, "text_1", "queries")
        texts = _texts(fields, "text_2", "documents")
        if len(queries) not in (1, len(texts)):
            words = f"has {len(queries)} texts, which goes with as many in text_2, not with {len(texts)}"
            raise wrong_value("text_1", words)
        cut = most_tokens(TRUNCATE.integer(fields))
        score = Score(request_id="", attempt=0, queries=queries, texts=texts, most_tokens=cut)
        return ScoreRequest(model=fields.text("model"), request=score, level=level(fields))

    def whole(self, posed: ScoreRequest, identity: Identity, value: Any, usage: Usage) -> Iterator[bytes]:
        """Raises `ClusterError` for scores that are none."""
        entries = (
            _encode({"index": index, "object": "score", "score": score})
            for index, score in enumerate(_scores(posed, value))
        )
        before = {
            "id": f"score-{identity.token}",
            "object": "list",
            "created": identity.created,
            "model": identity.model,
        }
        return listed(before, "data", entries, {"usage": usage_object(usage)})


def _scores(posed: ScoreRequest, value: Any) -> tuple[float, ...]:
    scores = checked(value, Scores).scores
    check_count(len(scores), len(posed.request.texts))
    return scores


def _documents(fields: Fields) -> tuple[str, ...]:
    given = fields.items("documents")
    if given is None:
        raise missing("documents")
    check_number(given, "documents")
    return tuple(_document(given, index) for index in range(len(given)))


def _document(given: list[Any], index: int) -> str:
    path = f"documents[{index}]"
    if isinstance(given[index], dict):
        text = Fields(given[index], path).text("text")
        if text is None:
            raise missing(f"{path}.text")
        return text
    return text_at(given, index, "documents")


def _texts(fields: Fields, name: str, other: str) -> tuple[str, ...]:
    """One text or several, under either name."""
    name = other if fields.raw(name) is None and fields.raw(other) is not None else name
    given = fields.raw(name)
    if given is None:
        raise missing(name)
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, list):
        raise wrong_type(name, "a string or an array of strings", given)
    check_number(given, name)
    return tuple(text_at(given, index, name) for index in range(len(given)))

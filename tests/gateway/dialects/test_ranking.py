"""Rerank in Jina's and Cohere's words, and vLLM's score."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.dialects.base import Identity
from gateway.dialects.computed import MOST_TEXTS, Computed
from gateway.dialects.ranking import Pairs, Rerank
from protocol.errors import ClusterError, ErrorCode
from protocol.values import Usage

IDENTITY = Identity("t", 1, "asked", None)
RERANK = {"model": "m", "query": "q", "documents": ["a", "b", "c"]}
SCORE = {"model": "m", "text_1": "q", "text_2": ["a", "b"]}
JINA, COHERE = Rerank(shows=True), Rerank(shows=False)


def body(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def told(dialect: Computed, fields: dict[str, Any], scores: list[float]) -> dict[str, Any]:
    posed = dialect.parse(body(fields))
    whole = b"".join(dialect.whole(posed, IDENTITY, {"scores": scores}, Usage(prompt_tokens=9)))
    return dict(json.loads(whole))


def test_the_best_documents_come_first_with_the_places_where_they_stood():
    answer = told(JINA, RERANK, [0.25, 0.75, 0.25])
    assert [(entry["index"], entry["relevance_score"]) for entry in answer["results"]] == [
        (1, 0.75),
        (0, 0.25),
        (2, 0.25),
    ]
    assert [entry["document"] for entry in answer["results"]] == [{"text": t} for t in "bac"]
    assert answer["id"].startswith("rerank-")
    assert answer["model"] == "asked"
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}


@pytest.mark.parametrize(("top_n", "found"), [(1, [1]), (2, [1, 0]), (9, [1, 0, 2]), (None, [1, 0, 2])])
def test_only_as_many_as_are_asked_for(top_n: int | None, found: list[int]):
    answer = told(JINA, RERANK | {"top_n": top_n}, [0.5, 0.75, 0.25])
    assert [entry["index"] for entry in answer["results"]] == found


@pytest.mark.parametrize(
    ("dialect", "said", "shown"),
    [(JINA, None, True), (COHERE, None, False), (JINA, False, False), (COHERE, True, True)],
)
def test_documents_are_repeated_as_the_client_is_used_to(dialect: Rerank, said: bool | None, shown: bool):
    answer = told(dialect, RERANK | {"return_documents": said}, [0.5, 0.75, 0.25])
    assert all(("document" in entry) is shown for entry in answer["results"])


def test_documents_may_be_objects_with_a_text():
    posed = JINA.parse(body(RERANK | {"documents": ["a", {"text": "b", "title": "x"}, ""]}))
    assert posed.request.texts == ("a", "b", "")
    assert posed.request.queries == ("q",)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": ""}, "query"),
        ({"query": None}, "query"),
        ({"query": ["q"]}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": None}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": ["a", 1]}, "documents[1]"),
        ({"documents": ["a", {"title": "x"}]}, "documents[1].text"),
        ({"documents": ["a", {"text": 1}]}, "documents[1].text"),
        ({"documents": ["a"] * (MOST_TEXTS + 1)}, "documents"),
        ({"top_n": 0}, "top_n"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
        ({"return_documents": "yes"}, "return_documents"),
    ],
)
def test_what_is_refused_names_its_place(fields: dict[str, Any], param: str):
    with pytest.raises(ClusterError) as caught:
        JINA.parse(body(RERANK | fields))
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.param == param


def test_documents_are_cut_where_the_client_says_to_how_many_tokens():
    assert JINA.parse(body(RERANK)).request.most_tokens is None
    assert JINA.parse(body(RERANK | {"max_tokens_per_doc": 5})).request.most_tokens == 5
    assert JINA.parse(body(RERANK | {"truncate_prompt_tokens": 6})).request.most_tokens == 6


def test_documents_of_many_megabytes_are_taken():
    documents = ["x" * 1_000_000] * 3
    assert JINA.parse(body(RERANK | {"documents": documents})).request.texts == tuple(documents)


def test_scores_are_told_in_the_order_of_the_pairs():
    answer = told(Pairs(), SCORE, [0.25, 0.75])
    assert answer["object"] == "list"
    assert answer["data"] == [
        {"index": 0, "object": "score", "score": 0.25},
        {"index": 1, "object": "score", "score": 0.75},
    ]
    assert (answer["created"], answer["usage"]["total_tokens"]) == (1, 9)


@pytest.mark.parametrize(
    ("fields", "queries", "texts"),
    [
        ({}, ("q",), ("a", "b")),
        ({"text_1": ["p", "q"]}, ("p", "q"), ("a", "b")),
        ({"text_2": "a"}, ("q",), ("a",)),
        ({"text_1": None, "queries": "p"}, ("p",), ("a", "b")),
        ({"text_2": None, "documents": ["c"]}, ("q",), ("c",)),
    ],
)
def test_pairs_are_one_query_with_each_text_or_each_with_its_own(
    fields: dict[str, Any], queries: Any, texts: Any
):
    request = Pairs().parse(body(SCORE | fields)).request
    assert (request.queries, request.texts) == (queries, texts)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text_1": ["a", "b", "c"]}, "text_1"),
        ({"text_1": None}, "text_1"),
        ({"text_2": []}, "text_2"),
        ({"text_2": [1]}, "text_2[0]"),
        ({"text_1": {}}, "text_1"),
    ],
)
def test_pairs_that_are_none_are_refused(fields: dict[str, Any], param: str):
    with pytest.raises(ClusterError) as caught:
        Pairs().parse(body(SCORE | fields))
    assert caught.value.param == param


@pytest.mark.parametrize("scores", [[0.5], [0.5, float("nan")], [0.5, 1.5], [0.5, None], None])
def test_what_is_no_score_for_each_pair_is_the_workers_fault(scores: Any):
    with pytest.raises(ClusterError) as caught:
        told(Pairs(), SCORE, scores)
    assert caught.value.code is ErrorCode.INTERNAL_ERROR

"""Embeddings in OpenAI's words: what is taken, what is refused, and the two forms of a vector."""

from __future__ import annotations

import base64
import json
from array import array
from typing import Any

import pytest

from gateway.dialects.base import Identity
from gateway.dialects.computed import MOST_TEXTS
from gateway.dialects.openai_embeddings import Embeddings, EmbeddingsRequest
from protocol.errors import ClusterError, ErrorCode
from protocol.values import Usage, Vectors

IDENTITY = Identity("t", 1, "asked", None)


def parse(**fields: Any) -> EmbeddingsRequest:
    return Embeddings().parse(json.dumps({"model": "m", "input": "x", **fields}).encode())


def refusal(**fields: Any) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        parse(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("given", "texts", "ids"),
    [
        ("a", ("a",), ()),
        (["a", "b"], ("a", "b"), ()),
        ([1, 2], (), ((1, 2),)),
        ([[1], [2, 3]], (), ((1,), (2, 3))),
        ([" "], (" ",), ()),
    ],
)
def test_inputs_are_texts_or_token_ids_one_or_several(given: Any, texts: Any, ids: Any):
    request = parse(input=given).request
    assert (request.inputs, request.token_ids) == (texts, ids)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": ["a", 1]}, "input[1]"),
        ({"input": [1, "a"]}, "input[1]"),
        ({"input": [[1], "a"]}, "input[1]"),
        ({"input": [True]}, "input[0]"),
        ({"input": [-1]}, "input[0]"),
        ({"input": [[1, 2**63]]}, "input[0][1]"),
        ({"input": {}}, "input"),
        ({"input": None}, "input"),
        ({"input": ["x"] * (MOST_TEXTS + 1)}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ],
)
def test_what_is_refused_names_its_place(fields: dict[str, Any], param: str):
    error = refusal(**fields)
    assert error.code is ErrorCode.INVALID_REQUEST
    assert error.param == param


def test_as_many_texts_are_taken_as_openai_takes():
    assert len(parse(input=["x"] * MOST_TEXTS).request.inputs) == MOST_TEXTS


@pytest.mark.parametrize(("cut", "most"), [(None, None), (7, 7), (-1, 2**63 - 1), (0, 2**63 - 1)])
def test_texts_are_cut_where_the_client_allows_it(cut: int | None, most: int | None):
    assert parse(truncate_prompt_tokens=cut).request.most_tokens == most


def test_both_forms_of_a_vector_are_the_same_numbers():
    numbers = array("f", [0.25, -1.5, 0.1, 3e-8, 0.0, 1.0])
    value = {"dimensions": 3, "data": numbers.tobytes()}  # as it comes off the wire
    bodies = {}
    for form in ("float", "base64"):
        posed = parse(input=["a", "b"], encoding_format=form)
        body = b"".join(Embeddings().whole(posed, IDENTITY, value, Usage(prompt_tokens=5)))
        bodies[form] = json.loads(body)
    told = bodies["float"]
    assert told["object"] == "list"
    assert told["model"] == "asked"
    assert told["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    assert [entry["index"] for entry in told["data"]] == [0, 1]
    assert {entry["object"] for entry in told["data"]} == {"embedding"}
    assert [n for entry in told["data"] for n in entry["embedding"]] == numbers.tolist()
    coded = b"".join(base64.b64decode(entry["embedding"]) for entry in bodies["base64"]["data"])
    assert coded == numbers.tobytes()


@pytest.mark.parametrize(
    "value",
    [
        {"dimensions": 2, "data": bytes(8)},
        {"dimensions": 0, "data": b""},
        {"dimensions": 1},
        [],
        Vectors(dimensions=1, data=bytes(12)),
    ],
)
def test_what_is_no_vector_for_each_input_is_the_workers_fault(value: Any):
    with pytest.raises(ClusterError) as caught:
        list(Embeddings().whole(parse(input=["a", "b"]), IDENTITY, value, Usage()))
    assert caught.value.code is ErrorCode.INTERNAL_ERROR

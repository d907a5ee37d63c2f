"""Embeddings in Ollama's words, the newer and the older ones."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from gateway.dialects.base import Identity
from gateway.dialects.computed import MOST_TEXTS
from gateway.dialects.ollama_embeddings import OllamaEmbed, OllamaEmbedding
from protocol.errors import ClusterError, InvalidRequestError
from protocol.values import Usage

IDENTITY = Identity("t", 1, "asked", None)
NUMBERS = array("f", [0.25, -1.5, 0.1, 3e-8])


def parse(**fields: Any) -> Any:
    return OllamaEmbed().parse(json.dumps({"model": "m", **fields}).encode())


def older(**fields: Any) -> Any:
    return OllamaEmbedding().parse(json.dumps(fields).encode())


@pytest.mark.parametrize(("given", "texts"), [("a", ("a",)), (["a", "b"], ("a", "b"))])
def test_a_text_or_several_are_taken_and_cut_unless_told_otherwise(given: Any, texts: tuple[str, ...]):
    asked = parse(input=given).request
    assert (asked.inputs, asked.most_tokens, asked.dimensions) == (texts, 2**63 - 1, None)
    assert parse(input=given, truncate=False, dimensions=8).request.most_tokens is None
    assert parse(input=given, truncate=False, dimensions=8).request.dimensions == 8


def test_the_older_form_has_one_text():
    asked = older(prompt="a", name="m")
    assert (asked.model, asked.request.inputs, asked.request.most_tokens) == ("m", ("a",), 2**63 - 1)


@pytest.mark.parametrize(
    ("make", "fields", "param"),
    [
        (parse, {}, "input"),
        (parse, {"input": ""}, "input"),
        (parse, {"input": []}, "input"),
        (parse, {"input": ["a", ""]}, "input[1]"),
        (parse, {"input": ["a", [1]]}, "input[1]"),
        (parse, {"input": 5}, "input"),
        (parse, {"input": ["x"] * (MOST_TEXTS + 1)}, "input"),
        (parse, {"input": "a", "dimensions": [1] * 1000}, "dimensions"),
        (parse, {"input": "a", "truncate": "no"}, "truncate"),
        (older, {}, "prompt"),
        (older, {"prompt": ""}, "prompt"),
        (older, {"prompt": ["a"]}, "prompt"),
    ],
)
def test_what_is_refused_names_its_place(make: Any, fields: dict[str, Any], param: str):
    with pytest.raises(InvalidRequestError) as caught:
        make(**fields)
    assert caught.value.param == param


def test_vectors_are_told_as_numbers():
    value = {"dimensions": 2, "data": NUMBERS.tobytes()}
    usage = Usage(prompt_tokens=5)
    body = json.loads(b"".join(OllamaEmbed().whole(parse(input=["a", "b"]), IDENTITY, value, usage)))
    halves = [NUMBERS.tolist()[:2], NUMBERS.tolist()[2:]]
    assert body == {"model": "asked", "embeddings": halves, "prompt_eval_count": 5}
    one = {"dimensions": 4, "data": NUMBERS.tobytes()}
    told = json.loads(b"".join(OllamaEmbedding().whole(older(prompt="a"), IDENTITY, one, usage)))
    assert told == {"embedding": NUMBERS.tolist()}


def test_what_is_no_vector_for_each_text_is_the_workers_fault():
    value = {"dimensions": 4, "data": NUMBERS.tobytes()}
    with pytest.raises(ClusterError, match="entries, not"):
        list(OllamaEmbed().whole(parse(input=["a", "b"]), IDENTITY, value, Usage()))

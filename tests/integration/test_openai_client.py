"""The official client, with its strict validation on, against a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.integration.cluster import Cluster, config_text, fake_worker, running, script

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = config_text(
        fake_worker("w-1", aliases=["default"]) + fake_worker("w-2", served_name="org/other")
    )
    with running(config, "w-1", "w-2") as found:
        yield found


@pytest.fixture
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=cluster.url() + "/v1", api_key="none", _strict_response_validation=True, max_retries=0
    ) as found:
        yield found


def test_check_01_a_whole_answer(client: openai.OpenAI):
    answer = client.chat.completions.create(
        model="fake-model",
        messages=[{"role": "user", "content": script(tokens=["Hel", "lo", " 👋"], bytes=["f09f98", "80"])}],
        temperature=0.5,
        seed=3,
        max_tokens=20,
    )
    assert answer.choices[0].message.content == "Hello 👋😀"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens >= 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model == "fake-model"
    assert answer._request_id


def test_check_01_a_streamed_answer(client: openai.OpenAI):
    chunks = list(
        client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": script(tokens=["a", "b"], repeat=10)}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "ab" * 10
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert {(c.id, c.created, c.model) for c in chunks} == {(chunks[0].id, chunks[0].created, "default")}


def test_the_stream_helper(client: openai.OpenAI):
    with client.chat.completions.stream(
        model="fake-model", messages=[{"role": "user", "content": script(tokens=["x", "y"])}]
    ) as stream:
        assert "".join(event.delta for event in stream if event.type == "content.delta") == "xy"
        assert stream.get_final_completion().choices[0].message.content == "xy"


def test_a_stop_string_ends_the_answer_and_is_left_out(client: openai.OpenAI):
    answer = client.chat.completions.create(
        model="fake-model",
        messages=[{"role": "user", "content": script(tokens=["one ", "tw", "o th", "ree"])}],
        stop=["two"],
    )
    assert answer.choices[0].message.content == "one "
    assert answer.choices[0].finish_reason == "stop"


def test_several_answers_are_streamed_side_by_side(client: openai.OpenAI):
    chunks = list(
        client.chat.completions.create(
            model="fake-model",
            messages=[{"role": "user", "content": script(tokens=["a", "b"], repeat=3, delay_ms=20)}],
            n=40,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    texts = dict.fromkeys(range(40), "")
    ends = dict.fromkeys(range(40), 0)
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
        ends[choice.index] += choice.finish_reason is not None
    assert set(texts.values()) == {"ababab"}
    assert set(ends.values()) == {1}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 40 * 6


def test_log_probabilities(client: openai.OpenAI):
    asked: dict[str, Any] = {
        "model": "fake-model",
        "messages": [{"role": "user", "content": script(tokens=["Hel", "lo"], bytes=["f09f98", "80"])}],
        "logprobs": True,
        "top_logprobs": 2,
    }
    answer = client.chat.completions.create(**asked)
    assert answer.choices[0].logprobs is not None
    entries = answer.choices[0].logprobs.content or []
    assert b"".join(bytes(entry.bytes or []) for entry in entries).decode() == "Hello😀"
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0].logprobs
    assert streamed is not None
    assert streamed.content == entries


def test_max_tokens_ends_with_length(client: openai.OpenAI):
    answer = client.chat.completions.create(
        model="fake-model",
        messages=[{"role": "user", "content": script(tokens=["a"], repeat=50)}],
        max_completion_tokens=7,
    )
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("a" * 7, "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7


def test_check_01_models_are_listed_and_retrieved(client: openai.OpenAI):
    assert [model.id for model in client.models.list()] == ["fake-model", "org/other"]
    assert client.models.retrieve("org/other").id == "org/other"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nothing")
    assert caught.value.code == "model_not_found"


def test_errors_are_the_clients_own_classes(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="fake-model", messages=[], temperature=9)
    assert caught.value.param in ("messages", "temperature")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nothing", messages=[{"role": "user", "content": "x"}])


def test_a_failure_in_mid_stream_is_raised(client: openai.OpenAI):
    stream = client.chat.completions.create(
        model="fake-model",
        messages=[{"role": "user", "content": script(tokens=["a"], repeat=20, delay_ms=20, raise_at=5)}],
        stream=True,
    )
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "internal_error"


def test_a_failure_before_the_first_token_is_a_status(client: openai.OpenAI):
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(
            model="fake-model", messages=[{"role": "user", "content": script(tokens=["a"], raise_at=0)}]
        )

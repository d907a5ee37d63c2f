"""LiteLLM as a client. BASE_URL is a gateway's with a fake engine, which says TEXT and TWO_CALLS."""

import asyncio
import json
import os

import litellm
import pytest

BASE_URL, TEXT, TWO_CALLS = os.environ["BASE_URL"], os.environ["TEXT"], os.environ["TWO_CALLS"]
SAID = "Hello there."
CALLS = [("f", {"a": 1, "b": "<é>"}), ("g", {})]
ANYTHING = {"type": "object", "properties": {}, "additionalProperties": True}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": ANYTHING}} for name in "fg"]
ROUTES = [
    {"model": "openai/fake-model", "api_base": BASE_URL + "/v1"},
    {"model": "hosted_vllm/fake-model", "api_base": BASE_URL + "/v1"},
    {"model": "anthropic/claude-local", "api_base": BASE_URL},
]
ALL_ROUTES = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route["model"].split("/")[0])


def asked(text, route, **fields):
    return {
        "messages": [{"role": "user", "content": text}],
        "api_key": "none",
        "num_retries": 0,
        **route,
        **fields,
    }


def calls_of(message):
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]


@ALL_ROUTES
def test_a_text(route):
    answer = litellm.completion(**asked(TEXT, route))
    assert answer.choices[0].message.content == SAID
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0


@ALL_ROUTES
def test_a_stream_and_what_is_built_of_its_chunks(route):
    request = asked(TEXT, route, stream=True, stream_options={"include_usage": True})
    chunks = list(litellm.completion(**request))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == SAID
    whole = litellm.stream_chunk_builder(chunks, messages=request["messages"])
    assert whole.choices[0].message.content == SAID
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens == litellm.completion(**asked(TEXT, route)).usage.completion_tokens


@ALL_ROUTES
def test_two_calls_after_reasoning(route):
    answer = litellm.completion(**asked(TWO_CALLS, route, tools=TOOLS))
    message = answer.choices[0].message
    assert (calls_of(message), message.content.strip()) == (CALLS, "ok")
    assert message.reasoning_content == "hm, yes"
    assert answer.choices[0].finish_reason == "tool_calls"


@ALL_ROUTES
def test_two_calls_in_a_stream(route):
    request = asked(TWO_CALLS, route, tools=TOOLS, stream=True)
    whole = litellm.stream_chunk_builder(list(litellm.completion(**request)), messages=request["messages"])
    message = whole.choices[0].message
    assert (calls_of(message), message.content.strip()) == (CALLS, "ok")
    assert message.reasoning_content == "hm, yes"
    assert whole.choices[0].finish_reason == "tool_calls"


@ALL_ROUTES
def test_results_of_calls_are_taken_back(route):
    request = asked(TWO_CALLS, route, tools=TOOLS)
    message = litellm.completion(**request).choices[0].message
    request["messages"] += [message.model_dump()]
    request["messages"] += [
        {"role": "tool", "tool_call_id": c.id, "content": "done"} for c in message.tool_calls
    ]
    request["messages"] += [{"role": "user", "content": TEXT}]
    assert litellm.completion(**request).choices[0].message.content == SAID


@ALL_ROUTES
def test_a_stream_for_asyncio(route):
    async def said():
        answer = await litellm.acompletion(**asked(TEXT, route, stream=True))
        return "".join([chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices])

    assert asyncio.run(said()) == SAID


@ALL_ROUTES
def test_an_unknown_model_is_its_own_exception(route):
    request = asked(TEXT, route | {"model": route["model"].split("/")[0] + "/nobody"})
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**request)


def test_a_response():
    answer = litellm.responses(
        model=ROUTES[0]["model"], input=TEXT, api_base=ROUTES[0]["api_base"], api_key="none"
    )
    assert answer.output[-1].content[0].text == SAID


def test_a_text_completion():
    answer = litellm.text_completion(
        model="text-completion-openai/fake-model", prompt=TEXT, api_base=BASE_URL + "/v1", api_key="none"
    )
    assert answer.choices[0].text == SAID

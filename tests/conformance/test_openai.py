"""OpenAI's own client, with its strict validation on, over completions and responses."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.conformance.scripts import TWO_CALLS
from tests.integration.cluster import Cluster, script, sse

pytestmark = pytest.mark.integration

MODEL = "fake-model"
OK = {"type": "input_text", "text": "ok"}


def test_check_01_a_completion(client: openai.OpenAI):
    answer = client.completions.create(model=MODEL, prompt=script(tokens=["a", " b"]), echo=False)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("a b", "stop")


def test_prompts_times_n(client: openai.OpenAI):
    prompts = [script(tokens=["x"]), script(tokens=["y"])]
    answer = client.completions.create(model=MODEL, prompt=prompts, n=2, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == [
        prompts[0] + "x",
        prompts[0] + "x",
        prompts[1] + "y",
        prompts[1] + "y",
    ]
    assert answer.usage is not None
    assert answer.usage.completion_tokens % 4 == 0


def test_a_prompt_is_scored(cluster: Cluster):
    """Of token ids, and with no answer after it, as evaluation suites ask for it.

    The first token's number is null, as with the vendor, although its client's types forbid it.
    """
    text = "a small prompt"
    ids = httpx.post(cluster.url() + "/tokenize", json={"model": MODEL, "prompt": text}).json()["tokens"]
    for prompt in (text, ids):
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 2}
        answer = httpx.post(cluster.url() + "/completions", json=body).json()
        (choice,) = answer["choices"]
        assert (choice["text"], choice["finish_reason"]) == (text, "length")
        assert choice["logprobs"]["tokens"] == ["a", " small", " prompt"]
        assert choice["logprobs"]["text_offset"] == [0, 1, 7]
        first, *rest = choice["logprobs"]["token_logprobs"]
        assert first is None
        assert all(number < 0 for number in rest)
        assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:]] == [2, 2]
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, 0)


def test_prompts_are_scored_while_answers_are_streamed(cluster: Cluster):
    prompts = [script(tokens=["x", "y"]), script(tokens=["z"])]
    body = {"model": MODEL, "prompt": prompts, "n": 2, "echo": True, "logprobs": 0, "stream": True}
    events = sse(httpx.post(cluster.url() + "/completions", json=body).text.split("\n"))
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    for index in range(4):
        mine = [choice for choice in choices if choice["index"] == index]
        text = "".join(choice["text"] for choice in mine)
        assert text == prompts[index // 2] + ("xy", "z")[index // 2]
        told = [choice["logprobs"] for choice in mine if choice["logprobs"]]
        assert "".join(token for part in told for token in part["tokens"]) == text
        assert [n is None for part in told for n in part["token_logprobs"]].index(True) == 0
        assert sum(n is None for part in told for n in part["token_logprobs"]) == 1


def test_a_streamed_completion_of_several_answers(cluster: Cluster):
    body = {
        "model": MODEL,
        "prompt": [script(tokens=["x"], repeat=5), script(tokens=["y"], repeat=5)],
        "n": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = httpx.post(cluster.url() + "/completions", json=body)
    events = sse(answer.text.split("\n"))
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["total_tokens"] > 0
    choices = [choice for event in events[:-2] for choice in event["choices"]]
    texts = ["".join(c["text"] for c in choices if c["index"] == index) for index in range(4)]
    assert texts == ["xxxxx", "xxxxx", "yyyyy", "yyyyy"]
    assert [sum(c["finish_reason"] is not None for c in choices if c["index"] == i) for i in range(4)] == [
        1
    ] * 4


def test_a_response_with_logprobs(client: openai.OpenAI):
    asked: dict[str, Any] = {"model": MODEL, "input": script(tokens=["<think>x</think>", "a", " b"])}
    asked |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    message: Any = client.responses.create(**asked).output[-1]
    found = message.content[0].logprobs
    assert [(entry.token, len(entry.top_logprobs)) for entry in found] == [("a", 2), (" b", 2)]
    events = [
        e for e in client.responses.create(**asked, stream=True) if e.type == "response.output_text.delta"
    ]
    assert [entry.token for event in events for entry in event.logprobs] == ["a", " b"]


def test_check_01_a_response_and_one_that_goes_on_from_it(client: openai.OpenAI):
    first = client.responses.create(model=MODEL, input=script(tokens=["one", " two"]), instructions="brief")
    assert first.output_text == "one two"
    assert first.status == "completed"
    assert first.usage is not None
    assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens
    second = client.responses.create(
        model=MODEL, input=script(echo_prompt=True), previous_response_id=first.id
    )
    assert "one two" in second.output_text
    assert client.responses.retrieve(first.id).output_text == "one two"
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input="x", previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_check_01_a_streamed_response(client: openai.OpenAI):
    with client.responses.stream(model=MODEL, input=script(tokens=["a", "b"])) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == "ab"
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


TOOLS: Any = [
    {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False},
    {"type": "custom", "name": "g"},
]


def test_check_01_thought_text_and_two_calls_whole_and_streamed(client: openai.OpenAI):
    whole = client.responses.create(model=MODEL, input=TWO_CALLS, tools=TOOLS)
    with client.responses.stream(model=MODEL, input=TWO_CALLS, tools=TOOLS) as stream:
        for _event in stream:
            pass
        streamed = stream.get_final_response()
    for answer in (whole, streamed):
        thought, text, first, second = answer.output
        assert thought.type == "reasoning"
        assert thought.content is not None
        assert thought.content[0].text == "hm, yes"
        assert text.type == "message"
        assert answer.output_text == "ok"
        assert first.type == "function_call"
        assert (first.name, first.arguments) == ("f", '{"a": 1, "b": "<é>"}')
        assert second.type == "custom_tool_call"
        assert second.name == "g"


def test_fc_64_what_is_emitted_is_taken_back_and_reaches_the_prompt(client: openai.OpenAI):
    answer = client.responses.create(model=MODEL, input=TWO_CALLS, tools=TOOLS)
    history: Any = [item.model_dump(exclude_none=True) for item in answer.output]
    for item in answer.output:
        if item.type in ("function_call", "custom_tool_call"):
            history.append(
                {"type": f"{item.type}_output", "call_id": item.call_id, "output": item.name + "-77"}
            )
    history.append({"role": "user", "content": script(echo_prompt=True)})
    prompt = client.responses.create(model=MODEL, input=history, tools=TOOLS).output_text
    assert prompt.count("f-77") == prompt.count("g-77") == 1
    assert prompt.index('"name": "f"') < prompt.index("f-77") < prompt.index("g-77")


def test_the_budget_makes_a_response_incomplete(client: openai.OpenAI):
    answer = client.responses.create(model=MODEL, input=script(tokens=["a"], repeat=50), max_output_tokens=3)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


CALLS = (
    '<tool_call>{"name": "docs__find", "arguments": {"q": "x"}}</tool_call>',
    '<tool_call>{"name": "apply_patch", "arguments": {"input": "***"}}</tool_call>',
)
AGENT = script(tokens=["<think>hm</think>", "fine", *CALLS])


@pytest.mark.parametrize(
    ("fields", "kind", "code"),
    [
        ({"tokens": ["a"], "repeat": 20, "delay_ms": 5, "raise_at": 3}, "response.failed", "internal_error"),
        ({"tokens": ["a"], "repeat": 20}, "response.incomplete", None),
    ],
)
def test_check_22_what_did_not_end_well_says_why(
    cluster: Cluster, fields: dict[str, Any], kind: str, code: str | None
):
    body = {"model": MODEL, "input": script(**fields), "stream": True, "max_output_tokens": 9}
    last = sse(httpx.post(cluster.url() + "/responses", json=body).text.split("\n"))[-1]
    assert last["type"] == kind
    assert (last["response"]["error"] or {}).get("code") == code
    assert (last["response"]["incomplete_details"] is None) == (code is not None)


def test_check_22_fc_66_a_turn_of_a_coding_agent(cluster: Cluster):
    body: dict[str, Any] = {
        "model": MODEL,
        "instructions": "You are an agent.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
            {"type": "reasoning", "summary": [], "encrypted_content": "x"},
            {"type": "custom_tool_call", "call_id": "c3", "name": "apply_patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "c3", "output": "done"},
            {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [{"type": "input_text", "text": "ok"}],
            },
            {"type": "message", "role": "user", "content": AGENT},
        ],
        "tools": [
            *({"type": kind} for kind in ("web_search", "tool_search", "local_shell", "of_next_year")),
            {"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": False},
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}},
            {"type": "namespace", "name": "docs", "tools": [{"type": "function", "name": "find"}]},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": None,
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "text": {"verbosity": "low"},
    }
    answer = httpx.post(cluster.url() + "/responses", json=body)
    assert answer.status_code == 200
    events = sse(answer.text.split("\n"))
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert {"response.output_text.delta", "response.reasoning_text.delta"} <= {*kinds}
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert kinds.count("response.output_item.added") == len(done)
    thought, message, found, patch = done
    assert (thought["content"][0]["text"], message["content"][0]["text"]) == ("hm", "fine")
    assert (found["type"], found["namespace"], found["name"]) == ("function_call", "docs", "find")
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "apply_patch", "***")
    last = events[-1]["response"]
    assert last["output"] == done
    assert last["id"].startswith("resp_")
    usage = last["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    probe = httpx.post(
        cluster.url() + "/responses", json={"model": MODEL, "input": [], "max_output_tokens": 1}
    )
    assert probe.status_code == 200

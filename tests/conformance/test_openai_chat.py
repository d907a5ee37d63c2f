"""OpenAI's own client, with its strict validation on, over chat: text, reasoning, tools, both ways."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionToolParam

from tests.integration.cluster import Cluster, script, sse

pytestmark = pytest.mark.integration

MODEL = "fake-model"
TOOLS: list[ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "</tool_call>"}}\n</tool_call>'
NOW = '<tool_call>{"name": "now"}</tool_call>'
ANSWER = f"<think>\nhm, 👩\n</think>\n\nLet me see.\n{ADD}\n{NOW}"


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def ask(cluster: Cluster, messages: list[dict[str, Any]], **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": messages, **fields}
    return httpx.post(cluster.url() + "/v1/chat/completions", json=body, timeout=30)


def message_of(answer: httpx.Response) -> dict[str, Any]:
    return dict(answer.json()["choices"][0]["message"])


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def check(answer: ChatCompletion) -> None:
    (choice,) = answer.choices
    message = choice.message
    assert (message.content, choice.finish_reason) == ("Let me see.", "tool_calls")
    assert (message.model_extra or {})["reasoning_content"] == "hm, 👩"
    assert (message.model_extra or {})["reasoning"] == "hm, 👩"
    calls = message.tool_calls
    assert calls is not None
    functions = [call.function for call in calls if call.type == "function"]
    assert [function.name for function in functions] == ["add", "now"]
    assert json.loads(functions[0].arguments) == {"a": 1, "b": "</tool_call>"}
    assert functions[1].arguments == "{}"
    assert len({call.id for call in calls}) == 2


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_check_01_fc_71_reasoning_text_and_two_calls_at_any_border(client: openai.OpenAI, size: int):
    said = script(tokens=cut(ANSWER, size))
    whole = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": said}], tools=TOOLS, seed=1
    )
    check(whole)
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    reasoning = whole.usage.completion_tokens_details.reasoning_tokens
    assert reasoning is not None
    assert 0 < reasoning < whole.usage.completion_tokens or size == 1000
    with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": said}],
        tools=TOOLS,
        stream_options={"include_usage": True},
    ) as stream:
        found = stream.get_final_completion()
    message = found.choices[0].message
    assert (message.content, found.choices[0].finish_reason) == ("Let me see.", "tool_calls")
    assert found.usage == whole.usage
    first = whole.choices[0].message.tool_calls or []
    assert [call.function.arguments for call in message.tool_calls or []] == [
        call.function.arguments for call in first if call.type == "function"
    ]


def test_fc_64_the_next_turn_goes_on_from_the_prompt_of_the_one_before(cluster: Cluster):
    first = [user(script(echo_prompt=True))]
    answer = message_of(ask(cluster, first))
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 77}'}},
            {"id": "c2", "type": "function", "function": {"name": "now", "arguments": "{"}},
        ],
    }
    results = [
        {"role": "tool", "tool_call_id": "c2", "content": ""},
        {"role": "tool", "tool_call_id": "c1", "content": "RESULT-77"},
    ]
    second = [*first, called, *results, user(script(echo_prompt=True))]
    told = message_of(ask(cluster, second))["content"]  # without tools, the calls in it are text
    shown = answer["content"].removesuffix("<|im_start|>assistant\n")
    assert told.startswith(shown)
    rest = told.removeprefix(shown)
    assert rest.count("RESULT-77") == 1
    assert rest.index('{"name": "add", "arguments": {"a": 77}}') < rest.index("RESULT-77")
    assert rest.count("<|im_start|>tool\n") == 2


def test_fc_66_system_texts_wherever_they_stand_become_one_at_the_head(cluster: Cluster):
    messages = [
        {"role": "developer", "content": "one"},
        user("hi"),
        {"role": "system", "content": "two"},
        {"role": "assistant", "content": "x"},
        {"role": "system", "content": "three"},
        user(script(echo_prompt=True)),
    ]
    told = message_of(ask(cluster, messages))["content"]
    assert told.startswith("<|im_start|>system\none\n\ntwo\n\nthree<|im_end|>\n")
    assert told.count("<|im_start|>system") == 1


@pytest.mark.parametrize(
    "arguments", ["{", "", None, "[1]", {"a": 1}, "\\d+", '{"a": "\\ud800"}', '{"a": NaN}']
)
def test_fc_69_whatever_was_called_can_be_sent_back(cluster: Cluster, arguments: Any):
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}
    history = [user("hi"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    answer = ask(cluster, [*history, {"role": "tool", "tool_call_id": "c", "content": "x"}], tools=TOOLS)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "broken",
    [
        '<tool_call>{"name": "add", "arguments": {a: 1}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "argu',
        "<tool_c literal",
    ],
)
def test_fc_68_what_is_no_call_is_text_and_can_be_sent_back(cluster: Cluster, broken: str):
    said = user(script(tokens=cut(f"a {broken}", 5)))
    choice = ask(cluster, [said], tools=TOOLS).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"] == {"role": "assistant", "content": f"a {broken}", "refusal": None}
    streamed = ask(cluster, [said], tools=TOOLS, stream=True).text
    events = [event for event in sse(streamed.split("\n")) if event != "[DONE]"]
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events) == f"a {broken}"
    assert ask(cluster, [said, choice["message"], user("and?")], tools=TOOLS).status_code == 200


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}])
def test_no_tools_no_calls(cluster: Cluster, fields: dict[str, Any]):
    choice = ask(cluster, [user(script(tokens=[ADD]))], **fields).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (ADD, "stop")


def test_tools_that_may_not_be_called_are_not_shown_to_the_model(cluster: Cluster):
    echo = [user(script(echo_prompt=True))]
    assert "# Tools" in message_of(ask(cluster, echo, tools=TOOLS))["content"]
    assert "# Tools" not in message_of(ask(cluster, echo, tools=TOOLS, tool_choice="none"))["content"]


def test_one_call_where_parallel_calls_are_not_wanted(cluster: Cluster):
    said = [user(script(tokens=cut(ANSWER, 4)))]
    choice = ask(cluster, said, tools=TOOLS, parallel_tool_calls=False).json()["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["add"]
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "reasoning", "content"),
    [
        ({"chat_template_kwargs": {"enable_thinking": True}}, "hm", "yes"),
        ({"reasoning_effort": "none"}, None, "hm</think>\n\nyes"),
        ({}, None, "hm</think>\n\nyes"),
    ],
)
def test_reasoning_that_the_prompt_began(
    cluster: Cluster, fields: dict[str, Any], reasoning: str | None, content: str
):
    message = message_of(ask(cluster, [user(script(tokens=["hm", "</think>", "\n\n", "yes"]))], **fields))
    assert (message.get("reasoning_content"), message["content"]) == (reasoning, content)


def test_max_tokens_inside_of_reasoning_and_of_a_call(cluster: Cluster):
    said = [user(script(tokens=["<think>", "a", "b", "</think>", NOW[:20], NOW[20:]]))]
    thought = ask(cluster, said, tools=TOOLS, max_tokens=2).json()["choices"][0]
    assert (thought["finish_reason"], thought["message"]["content"]) == ("length", "")
    assert thought["message"]["reasoning"] == "a"
    called = ask(cluster, said, tools=TOOLS, max_tokens=5).json()["choices"][0]
    assert (called["finish_reason"], called["message"]["content"]) == ("length", NOW[:20])


def test_several_answers_with_calls(client: openai.OpenAI):
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": script(tokens=[NOW])}], tools=TOOLS, n=3
    )
    calls = [call for choice in answer.choices for call in choice.message.tool_calls or []]
    assert len({call.id for call in calls}) == 3
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def both_ways(cluster: Cluster, said: str, **fields: Any) -> tuple[str, str, dict[str, Any]]:
    """The text of one answer, which streamed and whole have alike; how it finished, and its usage."""
    whole = ask(cluster, [user(said)], **fields).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    events = sse(ask(cluster, [user(said)], **fields, **options).text.split("\n"))[:-1]
    choices = [choice for event in events for choice in event["choices"]]
    deltas = [choice["delta"] for choice in choices]
    assert all(delta for delta in deltas[:-1]), "a chunk that says nothing"
    text = "".join(delta.get("content") or "" for delta in deltas)
    assert text == whole["choices"][0]["message"]["content"]
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert events[-1]["usage"] == whole["usage"]
    return text, choices[-1]["finish_reason"], whole["usage"]


FAMILY = ["f0", "9f91a9", "e280", "8d", "f09f", "91", "a7"]


@pytest.mark.parametrize("tools", [[], TOOLS])
@pytest.mark.parametrize(
    ("fields", "max_tokens", "text", "finish"),
    [
        ({"bytes": FAMILY}, 100, "👩\u200d👧", "stop"),
        ({"bytes": [*FAMILY, "20", "f09f"]}, 100, "👩\u200d👧 \ufffd", "stop"),
        ({"bytes": [*FAMILY, "20", "f09f", "91a7"]}, 9, "👩\u200d👧 ", "length"),
        ({"tokens": ["a \ufffd b"]}, 100, "a \ufffd b", "stop"),
        ({"tokens": [" \n", "", "\n a", " \n"]}, 100, " \n\n a \n", "stop"),
    ],
)
def test_fc_58_characters_in_pieces(
    cluster: Cluster, tools: list[Any], fields: dict[str, Any], max_tokens: int, text: str, finish: str
):
    said, end, _usage = both_ways(cluster, script(**fields), max_tokens=max_tokens, tools=tools)
    assert (said, end) == (text, finish)


@pytest.mark.parametrize("tools", [[], TOOLS])
@pytest.mark.parametrize(
    ("tokens", "stop", "text", "count"),
    [
        (["The quick br", "own f", "ox jumps"], ["own fox"], "The quick br", 3),
        (["The quick br", "own f", "ox jumps"], ["fox jumps!"], "The quick brown fox jumps", 3),
        (["xa", "bc", "d"], ["ab", "abc"], "x", 2),
        (["stop", "a"], ["stop"], "", 1),
        (["a", "\n", "\n", "b"], ["\n\n"], "a", 3),
        (["<think>stop</think>", "a stop"], ["stop"], "a ", 2),
        (["a ", "b"], ["", "b"], "a ", 2),
    ],
)
def test_fc_60_a_stop_string_over_tokens(
    cluster: Cluster, tools: list[Any], tokens: list[str], stop: list[str], text: str, count: int
):
    said, end, usage = both_ways(cluster, script(tokens=tokens), stop=stop, tools=tools)
    assert (said, end, usage["completion_tokens"]) == (text, "stop", count)


def test_fc_60_a_stop_string_inside_of_a_call_is_none(cluster: Cluster):
    answer = ask(cluster, [user(script(tokens=cut(ADD, 3)))], stop=["add", "/tool"], tools=TOOLS).json()
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "add"

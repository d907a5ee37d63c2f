"""Checks 12 and 13: what an answer has to be, in every dialect, where they can with the official clients."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.conformance import spoken
from tests.integration.cluster import script, sse, text_of

pytestmark = pytest.mark.integration

MODEL = "fake-model"
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 12}, "y": {"enum": ["a", "b"]}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
PARAMETERS = {"now": {"type": "object", "properties": {}}, "point": POINT}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in PARAMETERS.items()
]
FLAT_TOOLS = [{"type": "function", "name": name, "parameters": schema} for name, schema in PARAMETERS.items()]
CLAUDE_TOOLS: list[Any] = [{"name": name, "input_schema": schema} for name, schema in PARAMETERS.items()]
FORMAT = {"type": "json_schema", "json_schema": {"name": "point", "schema": POINT, "strict": True}}
FLAT_FORMAT = {"type": "json_schema", "name": "point", "schema": POINT}
SAID = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'


def user(content: str = "hi") -> list[Any]:
    return [{"role": "user", "content": content}]


def check_point(text: str | None) -> None:
    value = json.loads(text or "")
    assert value.keys() == {"x", "y"}
    assert value["x"] >= 12
    assert value["y"] in ("a", "b")


def named(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


def ask(http: httpx.Client, path: str, **fields: Any) -> httpx.Response:
    return http.post(path, json={"model": MODEL, **fields})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"now", "point"}), (named("point"), {"point"}), (named("now"), {"now"})],
)
def test_check_12_a_call_is_forced(client: Any, choice: Any, names: set[str], stream: bool):
    fields: dict[str, Any] = {"model": MODEL, "messages": user(), "tools": TOOLS, "tool_choice": choice}
    if stream:
        with client.chat.completions.stream(**fields) as events:
            answer: Any = events.get_final_completion()
    else:
        answer = client.chat.completions.create(**fields)
    (found,) = answer.choices
    (call,) = found.message.tool_calls or []
    assert (found.finish_reason, found.message.content or None) == ("tool_calls", None)
    assert call.function.name in names
    if call.function.name == "point":
        check_point(call.function.arguments)
    else:
        assert call.function.arguments == "{}"


def test_check_12_auto_and_none(client: Any):
    said = user(script(tokens=[SAID]))
    for choice, calls in (("auto", 1), ("none", 0)):
        answer = client.chat.completions.create(model=MODEL, messages=said, tools=TOOLS, tool_choice=choice)
        assert len(answer.choices[0].message.tool_calls or []) == calls


@pytest.mark.parametrize(("parallel", "calls"), [(True, 2), (False, 1)])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_check_12_one_call_where_parallel_calls_are_not_wanted(
    client: Any, choice: Any, parallel: bool, calls: int
):
    answer = client.chat.completions.create(
        model=MODEL,
        messages=user(script(tokens=[SAID, SAID])),
        tools=TOOLS,
        tool_choice=choice,
        parallel_tool_calls=parallel,
    )
    assert len(answer.choices[0].message.tool_calls or []) == calls
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"messages": user(), "tool_choice": "required"}, "tool_choice"),
        (
            "/v1/chat/completions",
            {"messages": user(), "tools": TOOLS, "tool_choice": named("x")},
            "tool_choice",
        ),
        ("/v1/chat/completions", {"messages": user(), "tools": TOOLS, "tool_choice": "must"}, "tool_choice"),
        ("/v1/responses", {"input": "hi", "tool_choice": "required"}, "tool_choice"),
        (
            "/v1/responses",
            {"input": "hi", "tools": FLAT_TOOLS, "tool_choice": {"type": "function", "name": "x"}},
            "tool_choice.name",
        ),
    ],
)
def test_check_12_a_choice_that_cannot_be_is_refused(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str
):
    answer = ask(http, path, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_check_12_in_a_response(client: Any):
    for choice, name in (("required", None), ({"type": "function", "name": "point"}, "point")):
        answer = client.responses.create(model=MODEL, input="hi", tools=FLAT_TOOLS, tool_choice=choice)
        (item,) = answer.output
        assert item.type == "function_call"
        assert name in (None, item.name)


def test_check_12_in_a_message(claude: Any):
    for choice, name in (({"type": "any"}, None), ({"type": "tool", "name": "point"}, "point")):
        answer = claude.messages.create(
            model=MODEL, max_tokens=200, messages=user(), tools=CLAUDE_TOOLS, tool_choice=choice
        )
        (block,) = answer.content
        assert (block.type, answer.stop_reason) == ("tool_use", "tool_use")
        assert name in (None, block.name)


FORCED: dict[str, dict[str, Any]] = {
    spoken.CHAT: {"tools": TOOLS, "tool_choice": named("point")},
    spoken.RESPONSES: {"tools": FLAT_TOOLS, "tool_choice": {"type": "function", "name": "point"}},
    spoken.MESSAGES: {"tools": CLAUDE_TOOLS, "tool_choice": {"type": "tool", "name": "point"}},
    spoken.OLLAMA: {"tools": TOOLS, "tool_choice": named("point")},
}


@pytest.mark.parametrize("path", FORCED)
def test_check_12_a_forced_call_that_is_cut_off_is_one_streamed_or_not(http: httpx.Client, path: str):
    """Its marks are never shown, and what is there of its arguments is no complete call."""

    def said(room: int, *, stream: bool) -> spoken.Said:
        body = spoken.body(path, "hi", max_tokens=room, stream=stream) | FORCED[path]
        answer = http.post(path, json=body)
        return spoken.streamed(path, answer.text) if stream else spoken.whole(path, answer.json())

    whole = said(200, stream=False)
    ((name, arguments),) = whole.calls
    assert (name, arguments.keys()) == ("point", {"x", "y"})
    for room in range(1, whole.completion_tokens, 2):
        cut = said(room, stream=False)
        assert cut == said(room, stream=True)
        assert (cut.text, cut.finish, cut.completion_tokens) == ("", "length", room)
        assert all(name == "point" for name, _arguments in cut.calls)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 123}}}},
            "response_format",
        ),
        ({"guided_json": {"type": 123}}, "guided_json"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_grammar": "root ::= (("}, "guided_grammar"),
        ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_check_13_what_is_no_format_is_refused(
    http: httpx.Client, fields: dict[str, Any], param: str, stream: bool
):
    answer = ask(http, "/v1/chat/completions", messages=user(), stream=stream, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"prompt": "x", "guided_json": {"type": 123}}, "guided_json"),
        ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        (
            "/v1/responses",
            {"input": "x", "text": {"format": {"type": "json_schema", "schema": {"type": 123}}}},
            "text.format",
        ),
    ],
)
def test_check_13_in_other_places(http: httpx.Client, path: str, fields: dict[str, Any], param: str):
    answer = ask(http, path, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_check_13_in_dialects_without_a_param(http: httpx.Client):
    broken = {"type": "json_schema", "schema": {"type": 123}}
    answer = ask(http, "/v1/messages", messages=user(), max_tokens=9, output_config={"format": broken})
    assert answer.status_code == 400
    assert "output_config.format" in answer.json()["error"]["message"]
    answer = ask(http, "/api/chat", messages=user(), format={"type": 123})
    assert answer.status_code == 400
    assert "format" in answer.json()["error"]


def test_check_13_an_answer_has_the_form(client: Any):
    answer = client.chat.completions.create(model=MODEL, messages=user(), response_format=FORMAT, n=2)
    for choice in answer.choices:
        check_point(choice.message.content)
        assert choice.finish_reason == "stop"
    anything = client.chat.completions.create(
        model=MODEL, messages=user(), response_format={"type": "json_object"}
    )
    assert isinstance(json.loads(anything.choices[0].message.content or ""), dict)
    response = client.responses.create(model=MODEL, input="hi", text={"format": FLAT_FORMAT})
    check_point(response.output_text)


def test_check_13_a_streamed_answer_has_it_too(http: httpx.Client):
    answer = ask(http, "/v1/chat/completions", messages=user(), response_format=FORMAT, stream=True)
    check_point(text_of(sse(answer.text.split("\n"))))


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"guided_choice": ["yes", "no"]}, ("yes", "no")),
        ({"guided_regex": "a{2}"}, ("aa",)),
        ({"guided_grammar": 'root ::= "x"'}, ("x",)),
        ({"structured_outputs": {"choice": ["yes"]}}, ("yes",)),
    ],
)
def test_check_13_in_vllms_words(http: httpx.Client, fields: dict[str, Any], allowed: tuple[str, ...]):
    chat = ask(http, "/v1/chat/completions", messages=user(), **fields).json()
    assert chat["choices"][0]["message"]["content"] in allowed
    plain = ask(http, "/v1/completions", prompt="hi", **fields).json()
    assert plain["choices"][0]["text"] in allowed


def test_check_13_in_a_message_and_for_ollama(http: httpx.Client):
    config = {"format": FLAT_FORMAT}
    message = ask(http, "/v1/messages", messages=user(), max_tokens=200, output_config=config).json()
    check_point(message["content"][0]["text"])
    chat = ask(http, "/api/chat", messages=user(), format=POINT, stream=False).json()
    check_point(chat["message"]["content"])
    text = ask(http, "/api/generate", prompt="hi", format="json", stream=False).json()
    assert isinstance(json.loads(text["response"]), dict)


def test_a_format_does_not_keep_the_model_from_calling(client: Any):
    answer = client.chat.completions.create(
        model=MODEL, messages=user(script(tokens=[SAID])), tools=TOOLS, response_format=FORMAT
    )
    assert answer.choices[0].finish_reason == "tool_calls"


def test_marks_inside_of_a_format_are_text(http: httpx.Client):
    text = '{"a": "<think>x</think><tool_call>"}'
    said = script(tokens=[text[at : at + 3] for at in range(0, len(text), 3)])
    fields = {"messages": user(said), "response_format": {"type": "json_object"}}
    answer = ask(http, "/v1/chat/completions", **fields).json()
    assert answer["choices"][0]["message"]["content"] == text

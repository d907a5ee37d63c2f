import pytest

from protocol.messages import Generate
from protocol.values import ChatMessage, ContentPart, SamplingParams, ToolCall, ToolSpec
from worker.request import (
    UNKNOWN_ROOM,
    chat_messages,
    chat_tools,
    engine_arguments,
    images,
    prompt_bytes,
    room,
    unsupported,
)


def generate(**fields):
    sampling = SamplingParams(**fields.pop("sampling", {}))
    return Generate(request_id="r", attempt=1, model="m", sampling=sampling, seed=5, **fields)


def arguments(request, can_resume=True):
    return engine_arguments(request, "r", None, can_resume=can_resume)


def test_settings_at_their_default_are_not_passed():
    assert arguments(generate(sampling={"max_tokens": 9, "stop": ("x",)})) == {
        "max_tokens": 9,
        "temperature": 1.0,
        "top_p": 1.0,
        "request_id": "r",
        "attempt": 1,
        "seed": 5,
        "top_k": 0,
        "min_p": 0.0,
    }


def test_other_settings_are_passed_under_their_names():
    given = arguments(
        generate(sampling={"ignore_eos": True, "stop_token_ids": (1, 2), "presence_penalty": 0.5})
    )
    assert (given["ignore_eos"], given["stop_token_ids"], given["presence_penalty"]) == (True, [1, 2], 0.5)


def test_resuming_is_asked_only_of_engines_that_can():
    request = generate(resume_token_ids=(4, 5))
    assert arguments(request)["resume_token_ids"] == [4, 5]
    assert "resume_token_ids" not in arguments(request, can_resume=False)


@pytest.mark.parametrize(
    ("asked", "model", "tokens"), [(7, 100, 7), (None, 100, 100), (None, None, UNKNOWN_ROOM)]
)
def test_the_room_for_an_answer(asked, model, tokens):
    assert room(generate(sampling={"max_tokens": asked}), model) == tokens


def test_the_size_of_a_prompt_is_that_of_its_text():
    assert prompt_bytes(generate(prompt="höre")) == 5
    parts = (ContentPart(type="text", text="ab"), ContentPart(type="text", text="c"))
    messages = (ChatMessage(role="system", content="12"), ChatMessage(role="user", content=parts))
    assert prompt_bytes(generate(messages=messages)) == 5


def test_messages_take_the_form_of_chat_templates():
    call = ToolCall(id="c", name="f", arguments="{}")
    messages = (
        ChatMessage(role="user", content="hi", name="Ann"),
        ChatMessage(role="user", content=(ContentPart(type="text", text="part"),)),
        ChatMessage(role="assistant", tool_calls=(call,)),
        ChatMessage(role="tool", content="42", tool_call_id="c"),
    )
    assert chat_messages(generate(messages=messages)) == [
        {"role": "user", "content": "hi", "name": "Ann"},
        {"role": "user", "content": [{"type": "text", "text": "part"}]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "42", "tool_call_id": "c", "name": "f"},
    ]


def test_template_options_are_for_conversations():
    options = {"enable_thinking": False}
    assert arguments(generate(template_options=options))["chat_template_kwargs"] == options
    assert "chat_template_kwargs" not in arguments(generate(template_options=options, prompt="hi"))


def test_tools_take_their_usual_form():
    assert chat_tools(generate()) is None
    assert chat_tools(generate(tools=(ToolSpec(name="f"),), tool_choice="none")) is None
    tools = chat_tools(generate(tools=(ToolSpec(name="f", parameters={"type": "object"}),)))
    assert tools == [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


IMAGE = ChatMessage(role="user", content=(ContentPart(type="image", frame=1),))


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"prompt": (1, 2)}, "prompt", "token ids"),
        ({"prompt": "x", "echo": True}, "echo", "echo"),
        ({"sampling": {"logprobs": 0}}, "logprobs", "logprobs"),
        ({"response_format": {"json": "{}", "field": "guided_json"}}, "guided_json", "guided_json"),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice"),
        ({"tools": (ToolSpec(name="f"),)}, "tools", "tools"),
        ({"messages": (IMAGE,)}, "messages", "text only"),
    ],
)
def test_what_cannot_be_done_is_said(fields, field, words):
    problem = unsupported(generate(**fields), tools=False, ids=False, logprobs=False, shapes=False)
    assert problem is not None
    assert problem[0] == field
    assert words in problem[1]


def test_pictures_are_taken_where_the_engine_sees_and_all_of_them_came():
    able = dict.fromkeys(("tools", "ids", "logprobs", "shapes"), True)
    request = generate(messages=(IMAGE,))
    assert unsupported(request, **able, frames=1) is None
    assert unsupported(request, **able, frames=0) == (
        "messages",
        "a picture of the request did not come along",
    )


def test_pictures_become_parts_and_data_urls_in_their_order():
    parts = (
        ContentPart(type="image", frame=2, media_type="image/gif"),
        ContentPart(type="text", text="between"),
        ContentPart(type="image", frame=1, media_type="image/png"),
    )
    request = generate(messages=(ChatMessage(role="user", content=parts),))
    assert images(request, [b"one", b"two"]) == ["data:image/gif;base64,dHdv", "data:image/png;base64,b25l"]
    assert chat_messages(request)[0]["content"] == [
        {"type": "image"},
        {"type": "text", "text": "between"},
        {"type": "image"},
    ]


def test_ordinary_requests_and_tools_where_they_are_known_are_fine():
    little, all_of_it = (
        dict.fromkeys(("tools", "ids", "logprobs", "shapes"), False),
        dict.fromkeys(("tools", "ids", "logprobs", "shapes"), True),
    )
    assert unsupported(generate(prompt="hi"), **little) is None
    assert unsupported(generate(tools=(ToolSpec(name="f"),), tool_choice="none"), **little) is None
    assert unsupported(generate(tools=(ToolSpec(name="f"),), sampling={"logprobs": 0}), **all_of_it) is None
    assert unsupported(generate(prompt=(1, 2)), **all_of_it) is None


def test_a_call_can_be_forced_where_the_model_would_not_call_by_itself():
    request = generate(tools=(ToolSpec(name="f"),), tool_choice="named:f")
    assert unsupported(request, tools=False, ids=True, logprobs=True, shapes=True) is None
    assert arguments(request)["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert "parallel_tool_calls" not in arguments(request)
    one = generate(tools=(ToolSpec(name="f"),), tool_choice="required", parallel_tool_calls=False)
    assert (arguments(one)["tool_choice"], arguments(one)["parallel_tool_calls"]) == ("required", False)


def test_a_format_is_passed_on():
    form = {"json": "{}", "field": "response_format"}
    assert arguments(generate(response_format=form))["structured_outputs"] == form


def test_room_without_end_is_cut_to_what_can_be_added_up():
    request = Generate(
        request_id="r", attempt=0, model="m", sampling=SamplingParams(max_tokens=2**62), seed=0
    )
    assert room(request, None) == 2**31 - 1
